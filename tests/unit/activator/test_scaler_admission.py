"""The whole activator: clients that spec.scaling.holding.from does not admit wake nobody, those it admits do."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.unit.activator.test_scaler_client_pods import pod
from tests.unit.api_server import ApiServer
from tests.unit.scaler_world import certificates, running
from tests.unit.scaler_zero_world import ask, at_zero, follow_scale

__all__ = ["certificates"]

SEARCH = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "search", "labels": {"team": "search"}}}
CLIENT = pod("search/client", "127.0.0.1")
OF_SEARCH = {
    "namespaceSelector": {"matchLabels": {"team": "search"}},
    "podSelector": {"matchLabels": {"app": "client"}},
}


@pytest.mark.parametrize(
    ("peer", "is_admitted"),
    [
        (OF_SEARCH, True),
        ({"ipBlock": {"cidr": "127.0.0.0/8"}}, True),
        ({"podSelector": {}}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "chat"}}}, False),
        ({"ipBlock": {"cidr": "127.0.0.0/8", "except": ["127.0.0.1/32"]}}, False),
    ],
    ids=["its pod", "its address", "pods of another namespace", "another team", "all but its address"],
)
async def test_only_admitted_clients_wake_a_service(peer: Any, is_admitted: bool, certificates: Path) -> None:
    port = free_port()
    api = ApiServer(at_zero(port=port, scaling={"holding": {"from": [peer]}}), SEARCH, CLIENT)
    async with running(api, certificates) as world:
        follow_scale(world)
        await world.until(lambda: world.scaler.holding.is_listening("uid-chat", port))
        asked = asyncio.create_task(ask(port))
        if is_admitted:
            await world.until(lambda: api.find("LLMService", "chat")["spec"]["scaling"]["replicas"] == 1)  # type: ignore[index]
            asked.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asked
            return
        answer = await asyncio.wait_for(asked, PATIENCE)
        assert (answer.status, answer.body["error"]["type"]) == (403, "permission_denied")
        assert api.find("LLMService", "chat")["spec"]["scaling"]["replicas"] == 0  # type: ignore[index]
        assert not [call for call in api.calls if "patch" in call]
