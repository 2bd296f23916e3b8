"""Replicas that follow the load, with KEDA and the stand-in for vLLM: who owns them, how soon, and what is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.e2e.conftest import own_namespace
from tests.support import rolling
from tests.support.cluster import JSON, SOMEBODY, Cluster, eventually, is_ready
from tests.support.keda import autoscaling_installed, has_scaled_object, without_keda, without_scaler
from tests.support.measured import Record
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import merge, stand_in
from tests.support.serving import Server
from tests.support.traffic import traffic
from tests.support.watching import Watcher, watching

pytestmark = pytest.mark.autoscaling
NAMESPACE = "e2e-autoscaling"
# An HPA looks each 15 s, so within this time it has looked once at least and was carried out.
LOOKED_WITHIN = 45.0
# The second of two replicas that go may do so a minute after the first.
ONE_A_MINUTE = 120.0
# KEDA falls back at its fourth failure, and looks at its conditions each 15 s.
NOTICED_WITHIN = 120.0
QUIET_SECONDS = 20.0
"""A look of an HPA, and what follows from it."""
QUOTAS_WITHIN = 240.0
"""Quotas are looked at each three minutes while one is too low."""
CONCURRENCY = 4


@pytest.fixture(scope="module")
def there(cluster: Cluster) -> Iterator[str]:
    """A namespace of a cluster with KEDA, with the services of all stories."""
    services = [
        autoscaled("steps", maxReplicas=3),
        autoscaled("scaled-by-hand", maxReplicas=3),
        autoscaled("stated", maxReplicas=3),
        autoscaled("given-back", minReplicas=2, maxReplicas=3),
    ]
    with autoscaling_installed(cluster), own_namespace(cluster, NAMESPACE):
        cluster.apply_all(services, NAMESPACE)
        for service in services:
            owned_by_the_autoscaler(cluster, service["metadata"]["name"])
        yield NAMESPACE
        # While KEDA has rights, and the operator too, to let go of them.
        cluster.kubectl("delete", "llms", "--all", "-n", NAMESPACE, "--wait=true", KUBECTL_TIMEOUT)
        eventually("no ScaledObject is left", lambda: not cluster.list("scaledobjects", NAMESPACE), 180)


def autoscaled(name: str, **autoscaling: Any) -> JSON:
    """Answers take one to two seconds; fewer replicas are enough when they were for five seconds."""
    given = {
        "target": {"concurrencyPerReplica": CONCURRENCY},
        "scaleDown": {"stabilizationSeconds": 5},
        **autoscaling,
    }
    return stand_in(name, {"tokens_per_second": 10}, scaling={"autoscaling": given})


def owned_by_the_autoscaler(cluster: Cluster, name: str) -> JSON:
    """The condition, once KEDA scales the service and its HPA gets what it asks for."""
    found = cluster.wait_condition(NAMESPACE, name, "Autoscaled", "True", reason="Autoscaling", timeout=NOTICED_WITHIN)
    eventually(f"an HPA of {name} that works", lambda: has_scaled_object(cluster, NAMESPACE, name), NOTICED_WITHIN)
    return found


def replicas(service: JSON) -> int:
    """What /scale says."""
    stated: int = service["spec"]["scaling"]["replicas"]
    return stated


def replicas_now(cluster: Cluster, name: str) -> int:
    return replicas(cluster.must_get("llmservices", NAMESPACE, name))


def ready_pods(cluster: Cluster, name: str) -> int:
    """Of those that are to stay."""
    return sum(map(is_ready, cluster.pods(NAMESPACE, name)))


def becomes(cluster: Cluster, name: str, count: int, timeout: float) -> float:
    """Seconds until so many pods, and no more, are there and ready."""
    began = time.monotonic()

    def look() -> bool:
        pods = cluster.pods(NAMESPACE, name)
        return len(pods) == count == sum(map(is_ready, pods)) == replicas_now(cluster, name)

    eventually(f"{count} replicas of {name}", look, timeout)
    return round(time.monotonic() - began, 1)


def steps_of(watcher: Watcher, name: str, first: int) -> list[int]:
    """The numbers of replicas that a service was asked for, one after the other, from the one before the watch on."""
    seen = [replicas(each.obj) for each in watcher.seen if each.name == name]
    return [first, *(number for before, number in pairwise([first, *seen]) if number != before)]


def turns(steps: list[int]) -> int:
    """How often the direction changed."""
    directions = [after > before for before, after in pairwise(steps)]
    return sum(after != before for before, after in pairwise(directions))


def stays(cluster: Cluster, name: str, count: int) -> None:
    """Nobody asks for another number of replicas while an HPA would look."""
    with watching(cluster, "llmservices", NAMESPACE) as watcher:
        assert replicas_now(cluster, name) == count
        other = watcher.unwanted(lambda obj: obj["metadata"]["name"] == name and replicas(obj) != count, QUIET_SECONDS)
    assert other is None, f"{replicas(other.obj)} replicas were asked for: {other.obj['metadata']['managedFields']}"


def autoscaler_of(cluster: Cluster, name: str) -> JSON | None:
    return cluster.get("horizontalpodautoscalers", NAMESPACE, f"keda-hpa-{name}")


def server(cluster: Cluster, name: str) -> Server:
    address = cluster.must_get("services", NAMESPACE, name)["spec"]["clusterIP"]
    return Server(name, f"http://{address}", cluster, NAMESPACE)


def test_replicas_follow_the_load_and_no_request_is_lost(cluster: Cluster, there: str, record: Record) -> None:
    """2 requests in flight are one replica, 6 are two, and 18 as many as there may be."""
    load = ("--duration", "1h", "--output-tokens", "10,20", "--concurrency")
    with watching(cluster, "llmservices", there) as watcher, traffic(cluster, there, "steps", *load, "2") as steady:
        with steady.during("up and down"):
            with traffic(cluster, there, "steps", *load, "4") as more:
                second = becomes(cluster, "steps", 2, LOOKED_WITHIN)
                with traffic(cluster, there, "steps", *load, "12") as flood:
                    third = becomes(cluster, "steps", 3, LOOKED_WITHIN)
            one = becomes(cluster, "steps", 1, ONE_A_MINUTE)
        steps = steps_of(watcher, "steps", 1)
        sent = sum(len(each.rows) for each in (steady, more, flood))
        record(
            secondsToTwo=second, secondsToThree=third, secondsToOne=one, steps=steps,
            turns=turns(steps), sent=sent, lost=steady.lost("up and down"),
        )  # fmt: skip
    # An HPA counts what it removes in a minute from what there was at its beginning: of three that have just come up,
    # two may go at once.
    assert steps in ([1, 2, 3, 2, 1], [1, 2, 3, 1])
    assert steady.lost("up and down") == 0, steady.of("up and down")
    assert (more.unaccounted(), flood.unaccounted()) == ([], [])
    reasons = {event["reason"] for event in rolling.events(cluster, there, "steps", "Scaled")}
    assert reasons == {"Scaled"}


@pytest.mark.full
def test_the_autoscaler_takes_back_what_somebody_scaled(cluster: Cluster, there: str, record: Record) -> None:
    """One step back to what the load needs, and then it is quiet: no fight."""
    assert "KEDA" in owned_by_the_autoscaler(cluster, "scaled-by-hand")["message"]
    with watching(cluster, "llmservices", there) as watcher:
        cluster.kubectl("scale", "llms/scaled-by-hand", "--replicas=2", "-n", there)
        back = becomes(cluster, "scaled-by-hand", 1, LOOKED_WITHIN)
        stays(cluster, "scaled-by-hand", 1)
        assert steps_of(watcher, "scaled-by-hand", 1) == [1, 2, 1]
    record(secondsBack=back)


def test_a_manifest_that_states_replicas_owns_them(cluster: Cluster, there: str) -> None:
    """As a GitOps tool applies it: the condition says so, nothing scales, and without them autoscaling goes on."""
    manifest = autoscaled("stated", maxReplicas=3)
    manifest["spec"]["scaling"]["replicas"] = 2

    def said() -> JSON | None:
        """The tool looks again and again: the HPA may have had the last word before its end."""
        apply_as_somebody(cluster, manifest)
        found = cluster.condition(there, "stated", "Autoscaled") or {}
        return found if found.get("reason") == "ReplicasStated" else None

    assert "scaling.replicas" in eventually("the condition says so", said, 60)["message"]
    eventually("no HPA", lambda: autoscaler_of(cluster, "stated") is None, 30)
    apply_as_somebody(cluster, manifest)
    becomes(cluster, "stated", 2, LOOKED_WITHIN)
    stays(cluster, "stated", 2)
    cluster.must_have(there, "stated", Ready="True")
    apply_as_somebody(cluster, autoscaled("stated", maxReplicas=3))
    owned_by_the_autoscaler(cluster, "stated")


def apply_as_somebody(cluster: Cluster, manifest: JSON) -> None:
    words = ("apply", "--server-side", "--force-conflicts", "--field-manager", SOMEBODY, "-n", NAMESPACE, "-f", "-")
    cluster.kubectl(*words, stdin=json.dumps(manifest))


def test_without_autoscaling_replicas_are_the_users_again(cluster: Cluster, there: str) -> None:
    """No pod is restarted, and what the user scales stays."""
    becomes(cluster, "given-back", 2, LOOKED_WITHIN)
    before = rolling.pods(cluster, there, "given-back")
    assert autoscaler_of(cluster, "given-back") is not None
    cluster.patch("llmservices", there, "given-back", {"spec": {"scaling": {"autoscaling": None}}})
    eventually("no ScaledObject", lambda: cluster.get("scaledobjects", there, "given-back") is None, 30)
    eventually("no HPA", lambda: autoscaler_of(cluster, "given-back") is None, 30)
    eventually("no condition", lambda: cluster.condition(there, "given-back", "Autoscaled") is None, 30)
    after = rolling.pods(cluster, there, "given-back")
    assert set(after) == set(before)
    assert sum(map(rolling.restarts, after.values())) == 0
    cluster.kubectl("scale", "llms/given-back", "--replicas=1", "-n", there)
    becomes(cluster, "given-back", 1, LOOKED_WITHIN)


@pytest.mark.full
def test_a_second_autoscaler_is_reported(cluster: Cluster, there: str) -> None:
    """An HPA of somebody else's is there first: KEDA refuses, the condition names it, and without it all is well."""
    manifest = autoscaled("taken", maxReplicas=3)
    cluster.apply(merge(manifest, {"spec": {"scaling": None}}), there)
    cluster.wait_condition(there, "taken", "Ready", "True", timeout=60)
    target = {"apiVersion": "llmservice.dev/v1alpha1", "kind": "LLMService", "name": "taken"}
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
    }
    hpa = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "theirs"},
        "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 2, "metrics": [metric]},
    }
    cluster.apply(hpa, there)
    cluster.apply(manifest, there)
    said = cluster.wait_condition(there, "taken", "Autoscaled", "False", reason="AutoscalerConflict", timeout=60)
    assert "theirs" in said["message"]
    cluster.must_have(there, "taken", Ready="True")
    cluster.kubectl("delete", "hpa", "theirs", "-n", there)
    owned_by_the_autoscaler(cluster, "taken")


@pytest.mark.full
def test_a_quota_that_ends_before_max_replicas_is_reported(cluster: Cluster, there: str) -> None:
    """Before any pod is refused; with fewer replicas, and with a larger quota, the condition is as it was."""

    def reported(reason: str) -> JSON:
        return cluster.wait_condition(there, "many", "Autoscaled", "True", reason=reason, timeout=QUOTAS_WITHIN)

    (quota,) = cluster.list("resourcequotas", there)
    name, pods = quota["metadata"]["name"], int(quota["spec"]["hard"]["pods"])
    cluster.apply(autoscaled("many", maxReplicas=pods + 1), there)
    message = reported("QuotaBelowMaximum")["message"]
    assert name in message
    assert "pods" in message
    cluster.wait_condition(there, "many", "Ready", "True", timeout=60)
    cluster.apply(autoscaled("many", maxReplicas=3), there)
    reported("Autoscaling")
    cluster.apply(autoscaled("many", maxReplicas=pods + 1), there)
    reported("QuotaBelowMaximum")
    cluster.patch("resourcequotas", there, name, {"spec": {"hard": {"pods": str(2 * pods)}}})
    reported("Autoscaling")


@pytest.mark.full
def test_without_the_scaler_nothing_is_scaled_down(cluster: Cluster, there: str, record: Record) -> None:
    """Two replicas, of which the load needs one: they stay until somebody knows."""
    owned_by_the_autoscaler(cluster, "scaled-by-hand")
    with without_scaler(cluster):
        cluster.kubectl("scale", "llms/scaled-by-hand", "--replicas=2", "-n", there)
        becomes(cluster, "scaled-by-hand", 2, 30)
        began = time.monotonic()
        unavailable = ("Autoscaled", "False")
        cluster.wait_condition(
            there, "scaled-by-hand", *unavailable, reason="ScalerUnavailable", timeout=NOTICED_WITHIN
        )
        noticed = round(time.monotonic() - began, 1)
        stays(cluster, "scaled-by-hand", 2)
        cluster.must_have(there, "scaled-by-hand", Ready="True")
    began = time.monotonic()
    owned_by_the_autoscaler(cluster, "scaled-by-hand")
    becomes(cluster, "scaled-by-hand", 1, NOTICED_WITHIN)
    record(secondsToNotice=noticed, secondsToRecover=round(time.monotonic() - began, 1))


@pytest.mark.full
def test_without_keda_serving_goes_on_and_users_can_scale(cluster: Cluster, there: str) -> None:
    owned_by_the_autoscaler(cluster, "scaled-by-hand")
    with without_keda(cluster):
        cluster.kubectl("scale", "llms/scaled-by-hand", "--replicas=2", "-n", there)
        becomes(cluster, "scaled-by-hand", 2, 30)
        assert server(cluster, "scaled-by-hand").complete("Hello", max_tokens=3).status == 200
        stays(cluster, "scaled-by-hand", 2)
    owned_by_the_autoscaler(cluster, "scaled-by-hand")
    becomes(cluster, "scaled-by-hand", 1, NOTICED_WITHIN)
