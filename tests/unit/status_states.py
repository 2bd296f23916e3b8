"""Every state of a service, made in the stand-in for the cluster, and what kstatus and Argo CD must derive of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from llmservice_operator.observe.observed import Refusal, Report
from llmservice_runtime.contract import Phase, State

from tests.unit.decide_world import H100, World, a_pod, an_llmservice, serving, spec

Json = dict[str, Any]

KV_CACHE = (
    '{"version":1,"reason":"KVCacheTooSmall","message":"Too small.","remedy":"Lower it.","exitCode":1,'
    '"evidence":["line 1","line 2"]}'
)
ENDED: Json = {"reason": "Error", "exitCode": 1, "message": KV_CACHE, "finishedAt": "2026-01-02T03:01:00Z"}
KILLED: Json = {"reason": "Error", "exitCode": 3, "message": "a\nboom\n", "finishedAt": "2026-01-02T03:01:00Z"}
BACK_OFF: Json = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}}
NO_GPU = "0/3 nodes are available: 2 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {a: b, c}."
OLD = "0000000000"
EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Case:
    """A state: how it comes about, which of the four conditions are True, and the reason of Ready."""

    make: Callable[[], World]
    true: frozenset[str]
    reason: str
    kstatus: str
    argo: str


def service(replicas: int = 1, **sections: Any) -> World:
    """Applied, seen by the Deployment controller, and without a pod."""
    world = World(an_llmservice(spec(scaling={"replicas": replicas}, **sections)))
    world.settle()
    world.roll_out(replicas=0, updated=0, ready=0, available=0)
    world.settle()
    return world


def served(replicas: int = 1, **sections: Any) -> World:
    world = service(replicas, **sections)
    world.roll_out()
    return settled(world)


def settled(world: World) -> World:
    world.settle()
    return world


def with_pods(world: World, *pods: Json, **counts: int) -> World:
    """With these pods, and counters that are right unless the case says otherwise."""
    world.pods = {pod["metadata"]["name"]: pod for pod in pods}
    ready = sum(pod["status"]["conditions"][-1]["status"] == "True" for pod in pods)
    updated = sum(pod["metadata"]["labels"]["llmservice.dev/revision"] == world.revision() for pod in pods)
    world.roll_out(**{"replicas": len(pods), "updated": updated, "ready": ready, "available": ready} | counts)
    return settled(world)


def edited(world: World, **sections: Any) -> World:
    """After an edit that makes another revision; the pods are of the one before."""
    world.edit(**(sections or {"batching": {"maxNumSeqs": 8}}))
    return settled(world)


def new_service() -> World:
    """As the API server stores it first."""
    return World(an_llmservice() | {"status": {"observedGeneration": -1}})


def not_observed() -> World:
    world = served()
    world.edit(batching={"maxNumSeqs": 8})
    return world


def deleting() -> World:
    world = served()
    world.obj["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:00Z"
    return world


def one(make: Callable[[], World] = served, counts: Mapping[str, int] = EMPTY, **pod: Any) -> World:
    """A service with one replica, whose pod is now like this."""
    world = make()
    return with_pods(world, a_pod("x-0", world.revision(), **pod), **counts)


def starting(**pod: Any) -> World:
    return one(service, **pod)


def starting_slowly() -> World:
    world = service()
    world.reports = {"x-0": Report("uid-x-0", 0, State(phase=Phase.LOADING, slow=True, usual_start_seconds=83.0))}
    return with_pods(world, a_pod("x-0", world.revision(), address="10.0.0.9"))


def over() -> World:
    """Evicted; whoever wrote its conditions last has not taken Ready back."""
    world = served()
    pod = a_pod("x-0", world.revision(), ready=True)
    pod["status"]["phase"] = "Failed"
    return with_pods(world, pod)


def counters_are_of_before() -> World:
    world = served()
    world.deployment["status"]["observedGeneration"] -= 1
    return settled(world)


def rollout(old: Mapping[str, Any] = EMPTY, new: Json | None = None, **counts: int) -> World:
    """An edit is rolled out: the pod of the old revision, ready, and that of the new one."""
    world = edited(served())
    pods = [a_pod("x-0", OLD, **{"ready": True} | dict(old))]
    pods += [a_pod("x-1", world.revision(), **new)] if new is not None else []
    return with_pods(world, *pods, **counts)


def conditioned(world: World, type_: str, status: str, reason: str, message: str) -> World:
    """With this condition of its Deployment."""
    condition = {"type": type_, "status": status, "reason": reason, "message": message}
    world.deployment["status"]["conditions"] = [condition]
    return settled(world)


def overdue(*, serves: bool) -> World:
    world = rollout(new={}) if serves else starting()
    return conditioned(world, "Progressing", "False", "ProgressDeadlineExceeded", "timed out")


def unlisted(*names: str, replicas: int = 1, is_blind: bool = False) -> World:
    """These pods are in no EndpointSlice; `is_blind`: without the right to list those."""
    world = served(replicas)
    world.unlisted, world.is_blind = set(names), is_blind
    return settled(world)


def service_is_gone(refusal: Refusal | None = None) -> World:
    """Deleted, and not created again: a webhook refuses it, or (None) the API server fails for the moment."""
    world = served()
    del world.children["Service", "x"]
    world.refused = {("Service", "x"): refusal} if refusal is not None else {}
    decision = world.decide()
    assert decision.status is not None
    world.obj["status"] = dict(decision.status)
    return world


def inspected() -> World:
    world = serving(H100)
    world.sibling_model = {}
    return edited(world, model={"uri": "hf://Qwen/Qwen3-8B"})


def paused(world: World, **sections: Any) -> World:
    return edited(world, paused=True, **sections)


def scaled(world: World, replicas: int) -> World:
    return edited(world, scaling={"replicas": replicas})


def scaled_to_zero() -> World:
    return with_pods(scaled(served(), 0))


def scaling_to_zero(*, deleting: bool) -> World:
    world = scaled(served(), 0)
    pod = a_pod("x-0", world.revision(), ready=True, deleting=deleting)
    count = 0 if deleting else 1
    return with_pods(world, pod, replicas=count, updated=count, ready=count, available=count)


def quota(*, serves: bool = False) -> World:
    message = 'pods "x-1" is forbidden: exceeded quota: team, requested: cpu=2, used: cpu=1, limited: cpu=2'
    return conditioned(rollout() if serves else service(), "ReplicaFailure", "True", "FailedCreate", message)


def deployment_of_another() -> World:
    """Replaced by somebody else's; the pods of the old one are still there."""
    world = served()
    (owner,) = world.deployment["metadata"]["ownerReferences"]
    world.deployment["metadata"] |= {"ownerReferences": [owner | {"uid": "another", "name": "y"}], "uid": "another"}
    return settled(world)


def deployment_is_gone() -> World:
    """Deleted without its pods; the new one has counted nothing yet."""
    world = served()
    del world.children["Deployment", "x"]
    return settled(world)


NO_SUCH_FLAG = {"extraArgs": ["--no-such-flag"]}
TOO_LARGE = {"precision": {"weights": "float32"}, "batching": {"maxModelLen": 2**21}}
NOTHING: frozenset[str] = frozenset()
RECONCILING = frozenset({"Reconciling"})
STALLED = frozenset({"Stalled"})
AVAILABLE = frozenset({"Available"})
READY = AVAILABLE | {"Ready"}
ROLLING = AVAILABLE | RECONCILING
FAILED = AVAILABLE | STALLED
AS_ASKED = frozenset({"Ready"})


def _moving(make: Callable[[], World], reason: str, *, serves: bool = False) -> Case:
    return Case(make, ROLLING if serves else RECONCILING, reason, "InProgress", "Progressing")


def _failed(make: Callable[[], World], reason: str, *, serves: bool = False) -> Case:
    return Case(make, FAILED if serves else STALLED, reason, "Failed", "Degraded")


def _good(make: Callable[[], World]) -> Case:
    return Case(make, READY, "RolledOut", "Current", "Healthy")


CASES: Mapping[str, Case] = {
    "no pod yet": _moving(service, "Progressing"),
    "not yet scheduled": _moving(lambda: starting(scheduled=False), "Progressing"),
    "unschedulable": _moving(lambda: starting(unschedulable=NO_GPU), "InsufficientGPUs"),
    "pulling": _moving(lambda: starting(state={"waiting": {"reason": "ContainerCreating"}}), "Progressing"),
    "starting": _moving(starting, "Starting"),
    "starting slowly": _moving(starting_slowly, "StartingSlowly"),
    "failed at the start": _failed(lambda: starting(state={"terminated": ENDED}), "KVCacheTooSmall"),
    "crash loop": _failed(lambda: starting(state=BACK_OFF, last=ENDED), "KVCacheTooSmall"),
    "started again": _failed(lambda: starting(last=ENDED, restarts=1), "KVCacheTooSmall"),
    "the supervisor was killed": _moving(lambda: starting(state={"terminated": KILLED}), "Unknown"),
    "it was killed again and again": _failed(lambda: starting(last=KILLED, restarts=3), "CrashLoop"),
    "a quota": _failed(quota, "QuotaExceeded"),
    "a quota while the old pod serves": _moving(lambda: quota(serves=True), "QuotaExceeded", serves=True),
    "served": _good(served),
    "served by two": _good(lambda: served(2)),
    "no right on slices": _good(lambda: unlisted("x-0", is_blind=True)),
    "the only pod goes": _moving(lambda: one(ready=True, deleting=True), "Progressing"),
    "the only pod is not ready": _moving(one, "Starting"),
    "the only pod is over": _moving(over, "Progressing"),
    "the counters say more": _moving(lambda: one(counts={"ready": 1, "available": 1}), "Starting"),
    "the counters say less": _moving(
        lambda: one(counts={"ready": 0, "available": 0}, ready=True), "Progressing", serves=True
    ),
    "the counters are of before": _moving(counters_are_of_before, "Progressing", serves=True),
    "no endpoints": _moving(lambda: unlisted("x-0"), "NoEndpoints"),
    "one of two without endpoint": _moving(lambda: unlisted("x-1", replicas=2), "NoEndpoints", serves=True),
    "the Service is gone": _failed(lambda: service_is_gone(Refusal(403, "a policy says no")), "AdmissionRefused"),
    "the Service cannot be made yet": _moving(service_is_gone, "Progressing"),
    "the Deployment is gone": _moving(deployment_is_gone, "Progressing", serves=True),
    "the Deployment is another's": _failed(deployment_of_another, "NameConflict", serves=True),
    "an edit is applied": _moving(lambda: edited(served()), "Progressing", serves=True),
    "the old pod serves": _moving(lambda: rollout(new={}), "Starting", serves=True),
    "the old pod is left": _moving(lambda: rollout(new={"ready": True}), "Progressing", serves=True),
    "the old pod counts as new": _moving(lambda: rollout(updated=1), "Progressing", serves=True),
    "the old pod drains": _good(lambda: rollout({"deleting": True}, {"ready": True}, replicas=1, ready=1, available=1)),
    "a failed rollout": _failed(lambda: rollout(new={"state": {"terminated": ENDED}}), "KVCacheTooSmall", serves=True),
    "overdue": _failed(lambda: overdue(serves=False), "ProgressDeadlineExceeded"),
    "overdue while the old pod serves": _failed(lambda: overdue(serves=True), "ProgressDeadlineExceeded", serves=True),
    "an invalid edit": _failed(lambda: edited(served(), runtime=NO_SUCH_FLAG), "UnknownFlag", serves=True),
    "an unreadable edit": _failed(lambda: edited(served(), scaling={"replicas": "many"}), "InvalidSpec", serves=True),
    "an edit that does not fit": _failed(lambda: edited(serving(H100), **TOO_LARGE), "DoesNotFit", serves=True),
    "an edit whose model is inspected": _moving(inspected, "InspectingModel", serves=True),
    "scaled out": _moving(lambda: scaled(served(), 2), "Progressing", serves=True),
    "scaled to zero": Case(scaled_to_zero, AS_ASKED, "ScaledToZero", "Current", "Healthy"),
    "scaled to zero, draining": Case(
        lambda: scaling_to_zero(deleting=True), AS_ASKED, "ScaledToZero", "Current", "Healthy"
    ),
    "being scaled to zero": _moving(lambda: scaling_to_zero(deleting=False), "Progressing", serves=True),
    "scaled up from zero": _moving(lambda: scaled(scaled_to_zero(), 1), "Progressing"),
    "paused": Case(lambda: paused(served()), READY, "RolledOut", "Current", "Suspended"),
    "paused before an edit": Case(
        lambda: paused(served(), batching={"maxNumSeqs": 8}), AVAILABLE, "Paused", "InProgress", "Suspended"
    ),
    "paused and dead": Case(lambda: one(lambda: paused(served())), NOTHING, "Paused", "InProgress", "Suspended"),
}

UNREPORTED: Mapping[str, tuple[Callable[[], World], str, str]] = {
    "new": (new_service, "InProgress", "Progressing"),
    "an edit that was not observed": (not_observed, "InProgress", "Progressing"),
    "being deleted": (deleting, "Terminating", "Progressing"),
}
"""Where the conditions are not of this generation: how each comes about, kstatus, and Argo CD's health."""


@functools.cache
def state(name: str) -> World:
    """One of CASES, made once: for tests that only read it."""
    return CASES[name].make()


def objects() -> dict[str, Json]:
    """Every state as the API server would return it."""
    return {name: state(name).obj for name in CASES} | {name: make().obj for name, (make, *_) in UNREPORTED.items()}
