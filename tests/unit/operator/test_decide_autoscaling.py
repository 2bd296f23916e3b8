"""Autoscaling: the ScaledObject, the condition Autoscaled, and the pods that are marked before a Deployment shrinks."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from llmservice_api.constants import DELETION_COST_ANNOTATION
from llmservice_api.service import LAST_APPLIED_ANNOTATION, LLMService
from llmservice_operator.behaviours.autoscaling import deletion_costs, pods_to_count
from llmservice_operator.observe.observed import Observed, Refusal

from tests.unit.decide_world import H100, SETTINGS, Json, World, a_pod, an_llmservice, serving, spec

SCALING = replace(SETTINGS, scaler_address="scaler.llms.svc:9443", scaler_authentication="scaler")
OBJECT = ("ScaledObject", "x")
READY = {"type": "Ready", "status": "True", "reason": "ScaledObjectReady", "message": "ok"}
FALLBACK = {"type": "Fallback", "status": "True", "reason": "FallbackExists", "message": "a trigger is falling back"}
PAUSED = {"type": "Paused", "status": "True", "reason": "ScaledObjectPaused"}
NO_METRICS = {
    "type": "Ready",
    "status": "False",
    "reason": "ScaledObjectCheckFailed",
    "message": "no metric specs returned from scalers for ScaledObject team-a/x",
}


def hpa(reason: str) -> Json:
    return {"type": "HPAActive", "status": "False", "reason": reason, "message": "HPA is not actively scaling: x"}


def autoscaled(*conditions: Json, replicas: int = 2, **autoscaling: Any) -> World:
    """Rolled out with autoscaling; KEDA wrote these conditions of the ScaledObject."""
    scaling = {"replicas": replicas, "autoscaling": {"maxReplicas": 4} | autoscaling}
    world = World(an_llmservice(spec(scaling=scaling)), settings=SCALING)
    world.gpus = serving(H100).gpus
    world.serve()
    keda_says(world, *conditions)
    return world


def keda_says(world: World, *conditions: Json) -> None:
    if OBJECT in world.children:
        world.children[OBJECT]["status"] = {"conditions": list(conditions)}
    world.settle()


def object_of(world: World) -> Json:
    found: Json = world.children[OBJECT]["spec"]
    return found


def test_the_scaled_object_scales_the_llmservice_by_the_scaler_and_never_down_without_it() -> None:
    world = autoscaled(minReplicas=2, maxReplicas=7, scaleDown={"stabilizationSeconds": 90})
    assert object_of(world) == {
        "scaleTargetRef": {"apiVersion": "llmservice.dev/v1alpha1", "kind": "LLMService", "name": "x"},
        "minReplicaCount": 2,
        "maxReplicaCount": 7,
        "pollingInterval": 15,
        "fallback": {"failureThreshold": 3, "replicas": 2, "behavior": "currentReplicasIfHigher"},
        "advanced": {
            "horizontalPodAutoscalerConfig": {
                "behavior": {
                    "scaleUp": {
                        "stabilizationWindowSeconds": 0,
                        "selectPolicy": "Max",
                        "policies": [{"type": "Pods", "value": 7, "periodSeconds": 15}],
                    },
                    "scaleDown": {
                        "stabilizationWindowSeconds": 90,
                        "selectPolicy": "Max",
                        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
                    },
                }
            },
            "scalingModifiers": {},
        },
        "triggers": [
            {
                "type": "external-push",
                "metricType": "AverageValue",
                "metadata": {"scalerAddress": "scaler.llms.svc:9443"},
                "authenticationRef": {"name": "scaler", "kind": "ClusterTriggerAuthentication"},
            }
        ],
    }


BOUNDS: dict[str, tuple[Json, tuple[int, int]]] = {
    "no schedule": ({}, (1, 4)),
    "lower at night": ({"minReplicas": 3, "schedule": [{"minReplicas": 1}]}, (1, 4)),
    "higher by day": ({"schedule": [{"minReplicas": 2, "maxReplicas": 9}, {"maxReplicas": 6}]}, (1, 9)),
    "never as low": ({"minReplicas": 2, "schedule": [{"minReplicas": 3}]}, (2, 4)),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_the_bounds_are_the_widest_of_any_time(case: str) -> None:
    given, wanted = BOUNDS[case]
    times = {"start": "0 8 * * *", "end": "0 20 * * *"}
    schedule = [times | entry for entry in given.get("schedule", ())]
    found = object_of(autoscaled(**{**given, "schedule": schedule} if schedule else given))
    assert (found["minReplicaCount"], found["maxReplicaCount"]) == wanted
    assert found["fallback"]["replicas"] == wanted[0]


def test_a_minimum_of_zero_goes_there_after_a_short_cooldown_and_never_by_the_fallback() -> None:
    for fields in ({"minReplicas": 0}, {"schedule": [ALWAYS | {"minReplicas": 0}]}):
        found = object_of(autoscaled(**fields))
        assert (found["minReplicaCount"], found["cooldownPeriod"]) == (0, 15)
        assert found["fallback"] == {"failureThreshold": 3, "replicas": 1, "behavior": "currentReplicasIfHigher"}
    assert "cooldownPeriod" not in object_of(autoscaled()), "KEDA would warn of it"


ALWAYS = {"start": "0 8 * * *", "end": "0 20 * * *"}


def stated_by_apply(operation: str = "Apply", **more: Any) -> Json:
    owner = {"manager": "argocd", "operation": operation, "fieldsV1": {"f:spec": {"f:scaling": {"f:replicas": {}}}}}
    return {"managedFields": [owner | more]}


def last_applied(scaling: Json) -> Json:
    return {"annotations": {LAST_APPLIED_ANNOTATION: json.dumps({"spec": {"scaling": scaling}})}}


STATED: dict[str, tuple[Json, str]] = {
    "a server-side apply": (stated_by_apply(), "argocd"),
    "kubectl apply": (last_applied({"replicas": 2}), "kubectl apply"),
    "kubectl apply of null": (last_applied({"replicas": None}), "kubectl apply"),
    "an update, by which a default is owned as well": (stated_by_apply("Update"), ""),
    "a write of /scale": (stated_by_apply("Update", subresource="scale"), ""),
    "an apply of /scale": (stated_by_apply(subresource="scale"), ""),
    "an apply of other fields": ({"managedFields": [{"operation": "Apply", "fieldsV1": {"f:spec": {}}}]}, ""),
    "kubectl apply without replicas": (last_applied({"autoscaling": {}}), ""),
    "an annotation that is no JSON": ({"annotations": {LAST_APPLIED_ANNOTATION: "{"}}, ""),
    "an annotation that is no object": ({"annotations": {LAST_APPLIED_ANNOTATION: '{"spec": [1]}'}}, ""),
    "an annotation that is deep": ({"annotations": {LAST_APPLIED_ANNOTATION: "[" * 99_999}}, ""),
    "no record at all": ({}, ""),
}


@pytest.mark.parametrize("case", STATED)
def test_no_scaled_object_while_a_manifest_states_replicas(case: str) -> None:
    metadata, who = STATED[case]
    world = autoscaled(READY)
    world.obj["metadata"] |= metadata
    world.settle()
    assert (OBJECT in world.children) == (who == "")
    keda_says(world, READY)
    assert world.condition("Autoscaled") == (("False", "ReplicasStated") if who else ("True", "Autoscaling"))
    if who:
        assert f"stated by: {who}. " in world.message("Autoscaled")
    assert world.condition("Ready") == ("True", "RolledOut")
    assert world.deployment["spec"]["replicas"] == 2


FINDINGS: dict[str, tuple[list[Json], tuple[str, str]]] = {
    "KEDA scales": ([READY], ("True", "Autoscaling")),
    "KEDA scales, and the load is low": ([READY, FALLBACK | {"status": "False"}], ("True", "Autoscaling")),
    "KEDA says nothing": ([], ("Unknown", "KedaMissing")),
    "KEDA is at it": ([READY | {"status": "Unknown"}], ("Unknown", "KedaMissing")),
    "the scaler was away at first": ([NO_METRICS], ("False", "ScalerUnavailable")),
    "the fallback holds": ([READY, FALLBACK], ("False", "ScalerUnavailable")),
    "the HPA has no metric": ([READY, hpa("FailedGetExternalMetric")], ("False", "ScalerUnavailable")),
    "another HPA of the same pods": ([READY, hpa("AmbiguousSelector")], ("False", "AutoscalerConflict")),
    "paused by an annotation": ([READY, PAUSED], ("False", "AutoscalerConflict")),
}


@pytest.mark.parametrize("case", FINDINGS)
def test_what_keda_says_of_the_scaled_object_is_reported_and_changes_nothing_else(case: str) -> None:
    conditions, wanted = FINDINGS[case]
    world = autoscaled(*conditions)
    assert world.condition("Autoscaled") == wanted
    assert world.condition("Ready") == ("True", "RolledOut")
    assert world.status["observedGeneration"] == 1
    assert "Stalled" not in world.conditions()


HOSTILE: dict[str, Any] = {
    "no object": "x",
    "no list": {"conditions": {"type": "Ready"}},
    "no conditions": {"conditions": [None, 1, [], {"type": 5}, {"type": ["Ready"]}]},
    "numbers for texts": {"conditions": [{"type": "Ready", "status": 1, "reason": {}, "message": []}]},
    "long texts": {"conditions": [{"type": "Ready", "status": "False", "reason": "r" * 9999, "message": "m" * 99_999}]},
    "control characters": {"conditions": [{"type": "Ready", "status": "False", "message": "\x1b[2J\ud800"}]},
    "many": {"conditions": [{"type": "Paused", "status": "True"}] * 99_999},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_status_that_somebody_else_wrote_is_bounded(case: str) -> None:
    world = autoscaled()
    world.children[OBJECT]["status"] = HOSTILE[case]
    world.settle()
    assert world.condition("Autoscaled")[0] in ("False", "Unknown")
    message = world.message("Autoscaled")
    assert len(message) < 1500
    assert message.isprintable()


REFUSALS = {
    "another HPA": (403, "the workload 'x' of type 'y' is already managed by the hpa 'z'", "AutoscalerConflict"),
    "a name that is taken": (409, "conflict with somebody", "AutoscalerConflict"),
    "no right": (403, 'cannot patch resource "scaledobjects"', "KedaMissing"),
    "a webhook that is away": (500, "failed calling webhook", "KedaMissing"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_scaled_object_is_reported_and_holds_nothing_up(case: str) -> None:
    code, message, reason = REFUSALS[case]
    world = autoscaled()
    del world.children[OBJECT]
    world.refused = {OBJECT: Refusal(code, message)}
    world.edit(drain={"timeoutSeconds": 9})
    world.serve()
    assert OBJECT not in world.children
    assert world.condition("Autoscaled") == ("False", reason)
    assert message in world.message("Autoscaled")
    assert world.condition("Ready") == ("True", "RolledOut")
    world.refused = {}
    world.settle()
    assert OBJECT in world.children, "it is tried again once the refusal is forgotten"


def test_somebody_elses_scaled_object_of_the_name_is_left_alone() -> None:
    world = autoscaled(READY)
    theirs = world.children[OBJECT]
    theirs["metadata"]["ownerReferences"] = [{"kind": "App", "name": "a", "uid": "b", "controller": True}]
    theirs["spec"]["maxReplicaCount"] = 99
    world.settle()
    assert world.children[OBJECT] is theirs
    assert world.condition("Autoscaled") == ("False", "AutoscalerConflict")
    assert world.condition("Ready") == ("True", "RolledOut")


def test_one_that_is_being_deleted_is_waited_for() -> None:
    world = autoscaled(READY)
    world.children[OBJECT]["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    world.edit(scaling={"replicas": 2, "autoscaling": {"maxReplicas": 9}})
    world.settle()
    assert world.condition("Autoscaled") == ("Unknown", "KedaMissing")
    assert world.condition("Ready") == ("True", "RolledOut")


def test_without_the_settings_nothing_is_made_and_the_condition_says_what_to_install() -> None:
    for settings in (replace(SCALING, scaler_address=None), replace(SCALING, scaler_authentication=None)):
        world = autoscaled(READY)
        world.settings = settings
        world.settle()
        assert OBJECT not in world.children
        assert world.condition("Autoscaled") == ("False", "AutoscalingDisabled")
        assert "autoscaling.enabled=true" in world.message("Autoscaled")
        assert world.condition("Ready") == ("True", "RolledOut")


def test_without_keda_the_service_serves_and_the_condition_says_what_to_install() -> None:
    world = World(an_llmservice(spec(scaling={"replicas": 2, "autoscaling": {"maxReplicas": 4}})), settings=SCALING)
    world.hidden = frozenset({"ScaledObject"})
    world.serve()
    assert OBJECT not in world.children
    assert world.condition("Autoscaled") == ("False", "KedaMissing")
    assert world.condition("Ready") == ("True", "RolledOut")


def test_zero_replicas_stay_zero() -> None:
    """KEDA would raise them to minReplicaCount."""
    world = autoscaled(READY)
    world.edit(scaling={"replicas": 0, "autoscaling": {"maxReplicas": 4}})
    world.serve()
    assert OBJECT not in world.children
    assert world.condition("Autoscaled") == ("False", "ScaledToZero")
    world.edit(scaling={"replicas": 1, "autoscaling": {"maxReplicas": 4}})
    world.serve()
    assert OBJECT in world.children


def test_without_autoscaling_replicas_stay_and_nothing_restarts() -> None:
    world = autoscaled(READY, replicas=3)
    template = world.template
    world.edit(scaling={"replicas": 3})
    world.settle()
    assert OBJECT not in world.children
    assert (world.deployment["spec"]["replicas"], world.template) == (3, template)
    assert "Autoscaled" not in world.conditions()
    assert "scaling" not in world.status["effective"]


def test_what_keda_adds_is_no_drift() -> None:
    """Its finalizer and label, by a replacement of the whole object that changes nothing of the spec."""
    world = autoscaled(READY)
    metadata = world.children[OBJECT]["metadata"]
    metadata["finalizers"] = ["finalizer.keda.sh"]
    metadata["labels"]["scaledobject.keda.sh/name"] = "x"
    added: Json = {"f:metadata": {"f:finalizers": {}, "f:labels": {"f:scaledobject.keda.sh/name": {}}}}
    spec_of_ours: Json = {"f:spec": {name: {} for name in ("f:advanced", "f:triggers")}}
    metadata["managedFields"] = [
        {"manager": "llmservice-operator", "operation": "Apply", "fieldsV1": spec_of_ours},
        {"manager": "keda", "operation": "Update", "fieldsV1": added},
    ]
    assert world.decide().is_steady


def test_the_budget_follows_the_replicas_that_the_autoscaler_writes() -> None:
    world = autoscaled(READY, replicas=1)
    assert ("PodDisruptionBudget", "x") not in world.children
    world.edit(scaling={"replicas": 2, "autoscaling": {"maxReplicas": 4}})
    world.serve()
    assert ("PodDisruptionBudget", "x") in world.children


Costs = Mapping[int, str]
NO_COSTS: Costs = MappingProxyType({})


@functools.cache
def served(pods: int) -> World:
    """Rolled out; the tests change copies of it."""
    world = World(an_llmservice(spec(scaling={"replicas": pods})))
    world.serve()
    return world


def a_world(
    *, wanted: int, pods: int = 4, unready: int = 0, going: int = 0, costs: Mapping[int, str] = NO_COSTS
) -> World:
    """So many replicas serve, and so many are wanted now; of the pods the last are not ready, or on their way out."""
    world = copy.deepcopy(served(pods))
    states = ["ready"] * (pods - unready) + ["unready"] * unready + ["going"] * going
    for number, state in enumerate(states):
        pod = a_pod(f"x-{number}", world.revision(), ready=state != "unready", address=f"10.0.0.{number}")
        if state == "going":
            pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
        if number in costs:
            pod["metadata"]["annotations"] = {DELETION_COST_ANNOTATION: costs[number]}
        world.pods[f"x-{number}"] = pod
    world.obj["spec"]["scaling"]["replicas"] = wanted
    world.obj["metadata"]["generation"] += 1
    return world


BUSY = {"x-0": 7, "x-1": 0, "x-2": 3, "x-3": 1}

CASES: dict[str, tuple[dict[str, Any], Mapping[str, int], dict[str, int]]] = {
    "one is to go": ({"wanted": 3}, BUSY, {"x-1": -1}),
    "two are": ({"wanted": 2}, BUSY, {"x-1": -1, "x-3": -1}),
    "equally busy, by name": ({"wanted": 3}, dict.fromkeys(BUSY, 5), {"x-0": -1}),
    "more is wanted": ({"wanted": 5}, BUSY, {}),
    "as many are wanted": ({"wanted": 4}, BUSY, {}),
    "none is wanted": ({"wanted": 0}, BUSY, {}),
    "one that starts goes first": ({"wanted": 3, "unready": 1}, BUSY, {}),
    "one that starts, and another": ({"wanted": 2, "unready": 1}, BUSY, {"x-1": -1}),
    "one that is on its way does not count": ({"wanted": 3, "going": 1}, BUSY | {"x-4": 0}, {"x-1": -1}),
    "one that cannot be read stays": ({"wanted": 3}, {"x-0": 7, "x-2": 3}, {"x-2": -1}),
    "none can be read": ({"wanted": 3}, {}, {}),
    "it is marked already": ({"wanted": 3, "costs": {1: "-1"}}, BUSY, {}),
    "another was marked before": ({"wanted": 3, "costs": {0: "-1"}}, BUSY, {"x-0": 0, "x-1": -1}),
    "a user's costs are not ours": ({"wanted": 3, "costs": {0: "-9", 2: "50"}}, BUSY, {"x-1": -1}),
    "a cost that is no number": ({"wanted": 3, "costs": {1: "low"}}, BUSY, {"x-1": -1}),
}


@pytest.mark.parametrize("case", CASES)
def test_which_pods_are_marked(case: str) -> None:
    state, in_flight, wanted = CASES[case]
    world = a_world(**state)
    found = deletion_costs(world.service(), world.observed(), in_flight)
    assert {each.pod: each.cost for each in found} == wanted
    assert all(each.uid == f"uid-{each.pod}" for each in found)


def test_the_requests_are_counted_only_before_a_scale_down() -> None:
    world = a_world(wanted=3, unready=1)
    assert pods_to_count(world.service(), world.observed()) == (), "the one that starts goes"
    world = a_world(wanted=2, unready=1)
    assert pods_to_count(world.service(), world.observed()) == tuple((f"x-{n}", f"10.0.0.{n}") for n in range(3))
    assert world.inputs().in_flight is not None
    assert a_world(wanted=4).inputs().in_flight is None


def test_the_marks_come_with_the_smaller_deployment_and_no_other_time() -> None:
    world = a_world(wanted=3)
    decision = world.decide(in_flight=BUSY)
    assert [each.pod for each in decision.deletion_costs] == ["x-1"]
    assert [apply.manifest["spec"]["replicas"] for apply in decision.apply if apply.kind == "Deployment"] == [3]
    world.obj["spec"]["paused"] = True
    assert world.decide(in_flight=BUSY).deletion_costs == ()


def test_a_held_edit_is_scaled_down_as_well() -> None:
    world = a_world(wanted=3)
    world.obj["spec"] |= {"batching": {"maxModelLen": 2**21}, "fitPolicy": "Enforce"}
    world.obj["spec"]["precision"] = {"weights": "float32"}
    assert [each.pod for each in world.decide(in_flight=BUSY).deletion_costs] == ["x-1"]


@functools.cache
def observed_of_one() -> Observed:
    return served(1).observed()


def scaling(wanted: int, pods: int, ready: int) -> tuple[LLMService, Observed]:
    """From so many pods, of which the first are ready, to another number."""
    world, observed = served(1), observed_of_one()
    (pod,) = observed.pods
    assert observed.workload is not None
    facts = tuple(replace(pod, name=f"x-{n}", uid=f"uid-x-{n}", ready=n < ready) for n in range(pods))
    wants = LLMService.from_object(world.obj | {"spec": spec(scaling={"replicas": wanted})})
    return wants, replace(observed, pods=facts, workloads=(replace(observed.workload, spec_replicas=pods),))


@given(
    pods=some.integers(1, 12),
    wanted=some.integers(0, 12),
    unready=some.integers(0, 12),
    requests=some.dictionaries(some.integers(0, 11), some.integers(0, 50)),
)
def test_no_pod_that_is_less_busy_than_a_marked_one_stays(
    pods: int, wanted: int, unready: int, requests: dict[int, int]
) -> None:
    service, observed = scaling(wanted, pods, pods - min(unready, pods))
    in_flight = {f"x-{n}": count for n, count in requests.items()}
    marked = {each.pod for each in deletion_costs(service, observed, in_flight)}
    ready = {pod.name for pod in observed.pods if pod.ready}
    assert marked <= ready & in_flight.keys()
    assert len(marked) <= max(0, pods - wanted)
    rest = ready & in_flight.keys() - marked
    assert not marked or max(in_flight[name] for name in marked) <= min((in_flight[n] for n in rest), default=50)
