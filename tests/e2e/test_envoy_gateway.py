"""What is rendered for Envoy AI Gateway, at the real API server with the projects' own CRDs. No Gateway runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcluster import gateway
from localcluster.programs import Group
from localcluster.progress import Progress
from tests.e2e.conftest import own_namespace
from tests.support.cluster import Cluster
from tests.support.services import llmservice

pytestmark = pytest.mark.full

ADAPTERS = [{"name": f"adapter-{number}", "uri": "file:///models/adapter"} for number in range(64)]
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], set[str]]] = {
    "plain": ({}, (), {"Backend", "AIServiceBackend", "AIGatewayRoute"}),
    "with adapters": ({"adapters": ADAPTERS, "lora": {}}, (), {"Backend", "AIServiceBackend", "AIGatewayRoute"}),
    "a pool": ({"routing": {"mode": "pool"}}, (), {"AIGatewayRoute"}),
    "limits": (
        {},
        ("--requests-per-minute", "60", "--tokens-per-minute", "4294967295", "--clients-by", "x-team"),
        {"Backend", "AIServiceBackend", "AIGatewayRoute", "BackendTrafficPolicy"},
    ),
}


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    gateway.install(cluster.paths, os.environ, Progress(), Group.ENVOY_GATEWAY)
    try:
        with own_namespace(cluster, "e2e-envoy-gateway") as made:
            yield made
    finally:
        gateway.remove(cluster.paths, os.environ, Progress(), Group.ENVOY_GATEWAY)


@pytest.mark.parametrize(("spec", "arguments", "kinds"), CASES.values(), ids=CASES)
def test_it_is_taken_as_it_is(
    spec: dict[str, Any], arguments: tuple[str, ...], kinds: set[str], cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    manifest = tmp_path / "service.json"
    manifest.write_text(json.dumps(llmservice("chat", **spec)))
    asked = ("--for", "envoy-ai-gateway", "--gateway", "gateways/public", *arguments, "-o", "json")
    words = ("render", "-f", str(manifest), "-n", namespace, *asked)
    rendered = cluster.run(sys.executable, "-m", "llmservice_cli", *words)
    assert {each["kind"] for each in json.loads(rendered)["items"]} == kinds
    cluster.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=rendered)
