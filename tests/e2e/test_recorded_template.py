"""A pod template that an operator of 24 November 2026 recorded starts with this operator's image.

Rollbacks, scaling and lost nodes make such pods under every later version: their init container copies the supervisor
of today, and the rest of the template is as it was.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import own_namespace
from tests.support.cluster import Cluster, eventually

pytestmark = pytest.mark.parallel

NAMESPACE, NAME = "e2e-recorded-template", "recorded"
TEMPLATE = json.loads(Path(__file__).with_name("recorded_template.json").read_text(encoding="utf-8"))
"""As `llmservice render` of commit d01c2e4e printed it for the stand-in of `tests/support`; the images are the
cluster's."""


def test_it_serves(cluster: Cluster) -> None:
    labels = {"llmservice.dev/service": NAME}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME},
        "spec": {"selector": {"matchLabels": labels}, "template": TEMPLATE},
    }
    with own_namespace(cluster, NAMESPACE):
        cluster.apply(deployment, NAMESPACE)
        # Ready says that the supervisor was copied, started vLLM with the middleware and had an answer from it.
        eventually(
            "a ready replica",
            lambda: cluster.must_get("deployments", NAMESPACE, NAME)["status"].get("readyReplicas") == 1,
            120,
        )
        (pod,) = cluster.pods(NAMESPACE, NAME)
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
