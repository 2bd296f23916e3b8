"""`llmservice diff` on a real cluster: what it says before an apply is what the operator does after it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.support.cluster import JSON, Cluster
from tests.support.services import stand_in

pytestmark = pytest.mark.parallel

NAME = "chat"
SAME, DIFFERENT, BAD = 0, 1, 2
BEFORE: JSON = stand_in(NAME, scaling={"replicas": 1}, batching={"maxNumSeqs": 8})
FASTER: JSON = stand_in(NAME, scaling={"replicas": 1}, batching={"maxNumSeqs": 16})
LARGER: JSON = stand_in(NAME, scaling={"replicas": 2}, batching={"maxNumSeqs": 8})


def run(cluster: Cluster, namespace: str, manifest: JSON, expect: int | None, output: str = "json") -> str:
    command = (sys.executable, "-m", "llmservice_cli", "diff", "-f", "-", "-n", namespace, "-o", output)
    return cluster.run(*command, stdin=json.dumps(manifest), expect=expect)


def diff(cluster: Cluster, namespace: str, manifest: JSON, expect: int) -> Any:
    (service,) = json.loads(run(cluster, namespace, manifest, expect))["services"]
    return service


def changed(service: JSON) -> dict[str, str]:
    return {each["kind"]: each["action"] for each in service["objects"] if each["action"] != "unchanged"}


def rolled_out(cluster: Cluster, namespace: str, manifest: JSON) -> None:
    cluster.apply(manifest, namespace)
    cluster.wait_condition(namespace, NAME, "Ready", "True")


def test_an_edit_is_shown_before_it_is_applied_and_gone_afterwards(cluster: Cluster, namespace: str) -> None:
    new = diff(cluster, namespace, BEFORE, DIFFERENT)
    assert (set(changed(new).values()), new["restart"]["pods"]) == ({"create"}, 0)
    rolled_out(cluster, namespace, BEFORE)
    assert changed(diff(cluster, namespace, BEFORE, SAME)) == {}

    larger = diff(cluster, namespace, LARGER, DIFFERENT)
    assert (changed(larger)["Deployment"], larger["restart"]["pods"]) == ("change", 0)

    shown = diff(cluster, namespace, FASTER, DIFFERENT)
    assert changed(shown) == {"ControllerRevision": "create", "Deployment": "change"}
    assert shown["restart"]["pods"] == 1
    assert "--max-num-seqs: 8 -> 16" in shown["restart"]["reason"]
    assert changed(diff(cluster, namespace, BEFORE, SAME)) == {}, "the diff itself changed something"

    rolled_out(cluster, namespace, FASTER)
    assert changed(diff(cluster, namespace, FASTER, SAME)) == {}
    applied = cluster.must_get("deployments", namespace, NAME)
    (asked,) = (each["manifest"] for each in shown["objects"] if each["kind"] == "Deployment")
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in (applied, asked)]
    assert labels[0] == labels[1]


def test_what_somebody_changed_in_a_child_is_a_difference(cluster: Cluster, namespace: str) -> None:
    """While the service is paused nothing is put back; the diff of an edit that ends the pause shows what will be."""
    paused = stand_in(NAME, scaling={"replicas": 1}, batching={"maxNumSeqs": 8}, paused=True)
    rolled_out(cluster, namespace, BEFORE)
    cluster.apply(paused, namespace)
    cluster.wait_condition(namespace, NAME, "Accepted", "True", reason="Paused")
    cluster.patch("services", namespace, NAME, {"spec": {"ports": [{"name": "http", "port": 81}]}})
    assert "no restart" in run(cluster, namespace, paused, SAME, "table")
    out = run(cluster, namespace, BEFORE, DIFFERENT, "diff")
    assert "--- live/Service/chat" in out
    assert "--- live/Deployment/chat" not in out


def test_a_spec_that_the_operator_refuses_changes_nothing(cluster: Cluster, namespace: str) -> None:
    rolled_out(cluster, namespace, BEFORE)
    refused = stand_in(NAME, rollout={"pinnedRevision": "0123456789"})
    service = diff(cluster, namespace, refused, BAD)
    assert (service["accepted"], changed(service), service["restart"]["pods"]) == (False, {}, 0)
