"""The operator's next version renders pods otherwise, and no model restarts for it: until it is asked for, in turns."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial

import pytest

from localcluster.progress import Progress
from tests.e2e.conftest import make_namespace
from tests.support import next_version
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE
from tests.support.services import stand_in

NAMESPACE = "e2e-upgrade"
NAMES = ("one", "two", "three")
EDITED = "edited"
ASKED = {"metadata": {"annotations": {"llmservice.dev/update-requested": "now"}}}


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Services that the present version started: their pods' uids by name."""
    make_namespace(cluster, NAMESPACE)
    for name in (*NAMES, EDITED):
        cluster.apply(stand_in(name, {"start_seconds": 2}), NAMESPACE)
    for name in (*NAMES, EDITED):
        cluster.wait_condition(NAMESPACE, name, "Ready", "True", timeout=60)
    yield {name: next(iter(pods(cluster, name))) for name in NAMES}
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def upgraded(cluster: Cluster, served: dict[str, str]) -> Iterator[None]:
    """The next version leads; the present one again afterwards."""
    upgrade(cluster, next_version.build(cluster.paths, Progress()))
    yield
    upgrade(cluster, "registry.local/llmservice-operator:dev")


def upgrade(cluster: Cluster, image: str) -> None:
    chart = str(cluster.paths.root / "charts" / "llmservice-operator")
    values = ("--reuse-values", "--set-string", f"image.tag={image.rpartition(':')[2]}", "--wait", "--timeout=120s")
    cluster.helm("upgrade", OPERATOR, chart, "-n", OPERATOR_NAMESPACE, *values)


def pods(cluster: Cluster, name: str) -> dict[str, JSON]:
    found = cluster.list("pods", NAMESPACE, f"llmservice.dev/service={name}")
    return {pod["metadata"]["uid"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}


def rollout(cluster: Cluster, name: str) -> JSON:
    told: JSON = cluster.must_get("llmservices", NAMESPACE, name)["status"]["rollout"]
    return told


def is_ready(pod: JSON) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def is_new(pod: JSON) -> bool:
    return bool(pod["spec"].get("hostname") == next_version.HOSTNAME)


def test_an_upgrade_restarts_nothing_whatever_else_changes(
    cluster: Cluster, served: dict[str, str], upgraded: None
) -> None:
    for name in NAMES:
        eventually(f"an update pending of {name}", partial(is_pending, cluster, name), 60)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "e2e-upgrade-lost"}}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    cluster.kubectl("scale", "llms/one", "--replicas=2", "-n", NAMESPACE)
    cluster.patch("llmservices", NAMESPACE, "two", {"spec": {"drain": {"timeoutSeconds": 11}}})
    cluster.kubectl("delete", "node", "e2e-upgrade-lost")
    for name in NAMES:
        cluster.wait_condition(NAMESPACE, name, "Ready", "True", timeout=60)
        there = pods(cluster, name)
        assert served[name] in there
        assert not any(map(is_new, there.values())), "as recorded, the added replica too"
        assert there[served[name]]["status"]["containerStatuses"][0]["restartCount"] == 0
        assert rollout(cluster, name)["updatePending"] is True


def test_it_takes_effect_with_the_next_change_that_needs_a_restart(cluster: Cluster, upgraded: None) -> None:
    assert not any(map(is_new, pods(cluster, EDITED).values()))
    cluster.patch("llmservices", NAMESPACE, EDITED, {"spec": {"batching": {"maxNumSeqs": 7}}})
    cluster.wait_condition(NAMESPACE, EDITED, "Ready", "True", timeout=60)
    assert all(map(is_new, pods(cluster, EDITED).values()))


def test_it_takes_effect_on_request_one_service_at_a_time(cluster: Cluster, upgraded: None) -> None:
    for name in NAMES:
        cluster.patch("llmservices", NAMESPACE, name, ASKED)
    waited: set[str] = set()
    deadline = time.monotonic() + 120
    done: set[str] = set()
    while done != set(NAMES):
        assert time.monotonic() < deadline, f"only {done} are done"
        under_way: set[str] = set()
        for name in NAMES:
            there = pods(cluster, name).values()
            if rollout(cluster, name).get("updateWaiting"):
                waited.add(name)
            if any(map(is_new, there)):
                (done if all(is_new(p) and is_ready(p) for p in there) else under_way).add(name)
        assert len(under_way - done) <= 1, f"at the same time: {under_way}"
        time.sleep(0.1)
    assert len(waited) == 2
    for name in NAMES:
        cluster.wait_condition(NAMESPACE, name, "Ready", "True", timeout=60)
        eventually(f"nothing pending of {name}", partial(is_settled, cluster, name), 30)


def is_pending(cluster: Cluster, name: str) -> bool:
    return bool(rollout(cluster, name).get("updatePending"))


def is_settled(cluster: Cluster, name: str) -> bool:
    told = rollout(cluster, name)
    return told["stableRevision"] == told["revision"] and not {"updatePending", "updateWaiting"} & set(told)
