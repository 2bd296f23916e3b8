"""What somebody changed in a child object is put right within five seconds; what others may add stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.conftest import own_namespace
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.services import idle, stand_in

pytestmark = pytest.mark.parallel

NAMESPACE = "e2e-drift"
REPAIRED_WITHIN = 5.0


def server(deployment: JSON) -> JSON:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    found: JSON = next(container for container in containers if container["name"] == "server")
    return found


@dataclass(frozen=True)
class Drift:
    """One change by somebody else, and how to see it in the object."""

    plural: str
    patch: object
    shape: Callable[[JSON], Any]
    patch_kind: str = "strategic-merge"


def in_server(**change: Any) -> JSON:
    return {"spec": {"template": {"spec": {"containers": [{"name": "server", **change}]}}}}


DRIFTS = {
    "image": Drift("deployments", in_server(image="registry.local/other:1"), lambda seen: server(seen)["image"]),
    "args": Drift("deployments", in_server(args=["--surprise"]), lambda seen: server(seen).get("args")),
    "command": Drift("deployments", in_server(command=["sleep"]), lambda seen: server(seen).get("command")),
    "added-env": Drift(
        "deployments",
        in_server(env=[{"name": "SURPRISE", "value": "1"}]),
        lambda seen: [entry["name"] for entry in server(seen)["env"]],
    ),
    "replicas": Drift("deployments", {"spec": {"replicas": 2}}, lambda seen: seen["spec"]["replicas"]),
    "probe": Drift(
        "deployments",
        in_server(readinessProbe={"periodSeconds": 299}),
        lambda seen: server(seen)["readinessProbe"]["periodSeconds"],
    ),
    "service-selector": Drift(
        "services", {"spec": {"selector": {"llmservice.dev/service": "another"}}}, lambda seen: seen["spec"]["selector"]
    ),
    "service-selector-added": Drift(
        "services", {"spec": {"selector": {"surprise": "yes"}}}, lambda seen: seen["spec"]["selector"]
    ),
    "added-container": Drift(
        "deployments",
        {"spec": {"template": {"spec": {"containers": [{"name": "extra", "image": "registry.local/other:1"}]}}}},
        lambda seen: [container["name"] for container in seen["spec"]["template"]["spec"]["containers"]],
    ),
}


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[str]:
    with own_namespace(cluster, NAMESPACE):
        cluster.apply(stand_in("drifting", scaling={"replicas": 0}), NAMESPACE)
        cluster.wait_condition(NAMESPACE, "drifting", "Accepted", "True", timeout=20)
        eventually("the Deployment", lambda: cluster.get("deployments", NAMESPACE, "drifting"), 10)
        yield "drifting"


@pytest.mark.parametrize("drift", DRIFTS.values(), ids=DRIFTS.keys())
def test_a_changed_child_is_put_right(cluster: Cluster, service: str, drift: Drift) -> None:
    before = drift.shape(cluster.must_get(drift.plural, NAMESPACE, service))
    changed = cluster.patch(drift.plural, NAMESPACE, service, drift.patch, drift.patch_kind)
    assert drift.shape(changed) != before, "the patch changed nothing: this test could not fail"
    eventually(
        f"{drift.plural} as it was",
        lambda: drift.shape(cluster.must_get(drift.plural, NAMESPACE, service)) == before,
        REPAIRED_WITHIN,
    )


@pytest.mark.parametrize("plural", ["deployments", "services"])
def test_a_deleted_child_is_made_again(cluster: Cluster, service: str, plural: str) -> None:
    before = cluster.must_get(plural, NAMESPACE, service)["metadata"]["uid"]
    cluster.kubectl("delete", plural, service, "-n", NAMESPACE)

    def is_another() -> bool:
        now = cluster.get(plural, NAMESPACE, service)
        return now is not None and now["metadata"]["uid"] != before

    eventually(f"another of {plural}", is_another, REPAIRED_WITHIN)


def test_metadata_that_others_add_stays(cluster: Cluster, service: str) -> None:
    mark = {"metadata": {"labels": {"team": "payments"}, "annotations": {"seen-by": "a-tool"}}}
    cluster.patch("deployments", NAMESPACE, service, mark)
    cluster.kubectl("rollout", "restart", f"deployment/{service}", "-n", NAMESPACE)
    # A drift that is repaired after the additions shows that the operator has looked at the object since.
    cluster.patch("deployments", NAMESPACE, service, {"spec": {"replicas": 3}})

    def repaired() -> JSON | None:
        seen = cluster.must_get("deployments", NAMESPACE, service)
        return seen if seen["spec"]["replicas"] == 0 else None

    seen = eventually("replicas as the spec has them", repaired, REPAIRED_WITHIN)
    assert seen["metadata"]["labels"]["team"] == "payments"
    assert seen["metadata"]["annotations"]["seen-by"] == "a-tool"
    assert "kubectl.kubernetes.io/restartedAt" in seen["spec"]["template"]["metadata"]["annotations"]


def test_paused_stops_repairs_and_says_so(cluster: Cluster, service: str) -> None:
    cluster.patch("llmservices", NAMESPACE, service, {"spec": {"paused": True}})
    cluster.wait_condition(NAMESPACE, service, "Accepted", "True", reason="Paused", timeout=10)
    cluster.patch("services", NAMESPACE, service, {"spec": {"selector": {"surprise": "yes"}}})
    # Another service's repair proves that the operator was at work meanwhile.
    cluster.apply(idle("witness"), NAMESPACE)
    cluster.wait_condition(NAMESPACE, "witness", "Accepted", "True", timeout=20)
    assert cluster.must_get("services", NAMESPACE, service)["spec"]["selector"].get("surprise") == "yes"
    cluster.patch("llmservices", NAMESPACE, service, {"spec": {"paused": False}})
    eventually(
        "the selector as it was",
        lambda: "surprise" not in cluster.must_get("services", NAMESPACE, service)["spec"]["selector"],
        REPAIRED_WITHIN,
    )
