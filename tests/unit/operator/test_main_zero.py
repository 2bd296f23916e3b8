"""A whole operator with a service that may be at zero: its port, and the slice that holds its first start."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from kubeloop import informer
from kubeloop.resources import ENDPOINT_SLICE
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.readers.holding_ports import candidates

from tests.unit.api_server import ApiServer, llmservice
from tests.unit.running_operator import Running, running

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")

PORT = next(candidates("uid-chat"))
SERVICES = Settings(scaler_address="llms-activator.system.svc:9443", scaler_authentication="scaler")


def a_service() -> dict[str, Any]:
    scaling = {"replicas": 1, "autoscaling": {"minReplicas": 0, "maxReplicas": 4}}
    return llmservice("chat", 5, spec={"model": {"uri": "hf://a/b"}, "fitPolicy": "Ignore", "scaling": scaling})


def activators(version: int, *addresses: str) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": "llms-activator"}
    metadata = {"namespace": "system", "name": "llms-activator-abcde", "uid": "a", "labels": labels}
    found = {"apiVersion": ENDPOINT_SLICE.api_version, "kind": ENDPOINT_SLICE.kind, "addressType": "IPv4"}
    endpoints = [{"addresses": [address], "conditions": {"ready": True}} for address in addresses]
    return found | {"metadata": metadata | {"resourceVersion": str(version)}, "endpoints": endpoints}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(informer, "FIRST_PAUSE", 0.02)
    yield
    gc.collect()  # a session that kopf left open would be another test's affair


def addresses(operator: Running) -> list[str]:
    """Of the slice of ours; empty where there is none."""
    found = operator.api.find("EndpointSlice", "chat-activator-ipv4", "ns") or {}
    return [each["addresses"][0] for each in found.get("endpoints", ())]


@pytest.mark.usefixtures("quick")
async def test_it_allots_the_port_and_holds_the_first_start_and_follows_the_activators() -> None:
    api = ApiServer(a_service(), activators(6, "10.1.0.1"))
    async with running(api, services=SERVICES) as operator:
        await operator.eventually(lambda: addresses(operator) == ["10.1.0.1"])
        await operator.acts_on("ns", "chat")
        lease = api.find("Lease", f"llmservice-port-{PORT}", "system")
        assert lease is not None
        assert lease["spec"] == {"holderIdentity": "ns/chat/uid-chat"}
        await operator.eventually(lambda: (api.find("LLMService", "chat") or {})["status"]["holding"] == {"port": PORT})
        changed = activators(900, "10.1.0.1", "10.1.0.2")
        for _ in range(2):  # the operator's two watches of this kind
            api.bring("MODIFIED", changed)
        await operator.eventually(lambda: addresses(operator) == ["10.1.0.1", "10.1.0.2"])


@pytest.mark.usefixtures("quick")
async def test_without_the_right_to_see_the_activators_everything_else_goes_on() -> None:
    api = ApiServer(a_service(), activators(6, "10.1.0.1"))
    api.refused["system/endpointslices"] = 403
    async with running(api, services=SERVICES) as operator:
        await operator.becomes_ready()
        await operator.acts_on("ns", "chat")
        assert api.find("Deployment", "chat") is not None
        assert addresses(operator) == []
