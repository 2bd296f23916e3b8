"""Every state that a service can be in, made in the stand-in for the cluster, and what each reader must take it for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_operator.observe.observed import Refusal
from llmservice_operator.observe.reports import Report
from llmservice_runtime.contract import Phase, State

from tests.unit.decide_world import H100, World, a_pod, an_llmservice, serving, spec

Json = dict[str, Any]

KV_CACHE = '{"version":1,"reason":"KVCacheTooSmall","message":"Too small.","remedy":"Lower it.","exitCode":1}'
ENDED: Json = {"reason": "Error", "exitCode": 1, "message": KV_CACHE, "finishedAt": "2026-01-02T03:01:00Z"}
OLD = "0000000000"


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
    world.settle()
    return world


def told(world: World) -> World:
    world.settle()
    return world


def with_pods(world: World, *pods: Json, **counts: int) -> World:
    """With these pods, and counters that are right unless the case says otherwise."""
    world.pods = {pod["metadata"]["name"]: pod for pod in pods}
    ready = sum(pod["status"]["conditions"][-1]["status"] == "True" for pod in pods)
    updated = sum(pod["metadata"]["labels"]["llmservice.dev/revision"] == world.revision() for pod in pods)
    world.roll_out(**{"replicas": len(pods), "updated": updated, "ready": ready, "available": ready} | counts)
    return told(world)


def edited(world: World, **sections: Any) -> World:
    """After an edit that makes another revision; the pods are of the one before."""
    world.edit(**(sections or {"batching": {"maxNumSeqs": 8}}))
    world.settle()
    return world


def new_service() -> World:
    """As the API server stores it, before the operator looks."""
    return World(an_llmservice() | {"status": {"observedGeneration": -1}})


def not_seen_yet() -> World:
    world = served()
    world.edit(batching={"maxNumSeqs": 8})
    return world


def deleting() -> World:
    world = served()
    world.obj["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:00Z"
    return world


def starting(state: Json | None = None, last: Json | None = None, **state_of: Any) -> World:
    world = service()
    pod = a_pod("x-0", world.revision(), state=state, last=last, address="10.0.0.9")
    if state_of:
        report = Report("uid-x-0", 0, State(phase=Phase.LOADING, **state_of))
        world.reports = {"x-0": report}
    return with_pods(world, pod)


def one(**pod: Any) -> World:
    """A service with one replica that served, whose pod is now like this."""
    world = served()
    return with_pods(world, a_pod("x-0", world.revision(), **pod))


def over() -> World:
    """Evicted; whoever wrote its conditions last has not taken Ready back."""
    world = served()
    pod = a_pod("x-0", world.revision(), ready=True)
    pod["status"]["phase"] = "Failed"
    return with_pods(world, pod)


def counters_say_more() -> World:
    """The pod is not ready any more; the Deployment's controller has not noticed, and never may."""
    world = served()
    return with_pods(world, a_pod("x-0", world.revision()), ready=1, available=1)


def counters_say_less() -> World:
    world = served()
    return with_pods(world, a_pod("x-0", world.revision(), ready=True), ready=0, available=0)


def counters_are_of_before() -> World:
    world = served()
    world.deployment["status"]["observedGeneration"] -= 1
    return told(world)


def half_rolled_out(*, new_is_ready: bool = False) -> World:
    world = edited(served())
    new = a_pod("x-1", world.revision(), ready=new_is_ready)
    return with_pods(world, a_pod("x-0", OLD, ready=True), new)


def counted_as_new() -> World:
    """The counters have all of the new revision; the only pod is of the old one."""
    world = edited(served())
    return with_pods(world, a_pod("x-0", OLD, ready=True), updated=1)


def old_drains() -> World:
    world = edited(served())
    old = a_pod("x-0", OLD, ready=True, deleting=True)
    return with_pods(world, old, a_pod("x-1", world.revision(), ready=True), replicas=1, ready=1, available=1)


def failed_rollout() -> World:
    world = edited(served())
    return with_pods(world, a_pod("x-0", OLD, ready=True), a_pod("x-1", world.revision(), state={"terminated": ENDED}))


def overdue(*, serves: bool) -> World:
    world = edited(served()) if serves else service()
    pods = [a_pod("x-1", world.revision())]
    if serves:
        pods.append(a_pod("x-0", OLD, ready=True))
    with_pods(world, *pods)
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
    world.deployment["status"]["conditions"] = [late]
    return told(world)


def unlisted(*names: str, replicas: int = 1) -> World:
    world = served(replicas)
    world.unlisted = set(names)
    return told(world)


def without_the_right_on_slices() -> World:
    world = served()
    world.unlisted, world.is_blind = {"x-0"}, True
    return told(world)


def service_is_gone() -> World:
    """Deleted, and a webhook refuses to have it made anew."""
    world = served()
    del world.children["Service", "x"]
    world.refused = {("Service", "x"): Refusal(403, "a policy says no")}
    decision = world.decide()
    assert decision.status is not None
    world.obj["status"] = dict(decision.status)
    return world


def service_is_gone_for_now() -> World:
    """Deleted, and the API server has trouble with the write."""
    world = served()
    del world.children["Service", "x"]
    decision = world.decide()
    assert decision.status is not None
    world.obj["status"] = dict(decision.status)
    return world


def invalid() -> World:
    """A rule that only the operator knows; an unreadable spec is told of by the same function."""
    world = served()
    world.edit(runtime={"extraArgs": ["--no-such-flag"]})
    return told(world)


def unreadable() -> World:
    world = served()
    world.edit(scaling={"replicas": "many"})
    return told(world)


def held(**sections: Any) -> World:
    world = serving(H100)
    world.edit(**(sections or {"precision": {"weights": "float32"}, "batching": {"maxModelLen": 2**21}}))
    return told(world)


def looked_at() -> World:
    world = serving(H100)
    world.sibling_model = {}
    world.edit(model={"uri": "hf://Qwen/Qwen3-8B"})
    return told(world)


def paused(world: World, **sections: Any) -> World:
    world.edit(paused=True, **sections)
    return told(world)


def paused_and_dead() -> World:
    world = paused(served())
    return with_pods(world, a_pod("x-0", world.revision()))


def scaled(world: World, replicas: int) -> World:
    world.edit(scaling={"replicas": replicas})
    return told(world)


def scaled_to_zero() -> World:
    return with_pods(scaled(served(), 0))


def scaling_to_zero(*, deleting: bool) -> World:
    world = scaled(served(), 0)
    pod = a_pod("x-0", world.revision(), ready=True, deleting=deleting)
    count = 0 if deleting else 1
    return with_pods(world, pod, replicas=count, updated=count, ready=count, available=count)


def quota(*, serves: bool = False) -> World:
    world = edited(served()) if serves else service()
    if serves:
        with_pods(world, a_pod("x-0", OLD, ready=True))
    message = 'pods "x-1" is forbidden: exceeded quota: team, requested: cpu=2, used: cpu=1, limited: cpu=2'
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    world.deployment["status"]["conditions"] = [refused]
    return told(world)


def deployment_of_another() -> World:
    """Somebody else's Deployment came in its place; the pods of the old one are still there."""
    world = served()
    (owner,) = world.deployment["metadata"]["ownerReferences"]
    world.deployment["metadata"] |= {"ownerReferences": [owner | {"uid": "another", "name": "y"}], "uid": "another"}
    return told(world)


def deployment_is_gone() -> World:
    """Deleted without its pods; it was made anew a moment ago and has counted nothing."""
    world = served()
    del world.children["Deployment", "x"]
    return told(world)


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
    "starting": _moving(starting, "Starting"),
    "starting slowly": _moving(lambda: starting(slow=True, usual_start_seconds=83.0), "StartingSlowly"),
    "failed at the start": _failed(lambda: starting({"terminated": ENDED}), "KVCacheTooSmall"),
    "crash loop": _failed(
        lambda: starting({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}}, ENDED),
        "KVCacheTooSmall",
    ),
    "a quota": _failed(quota, "QuotaExceeded"),
    "a quota while the old pod serves": _moving(lambda: quota(serves=True), "QuotaExceeded", serves=True),
    "served": _good(served),
    "served by two": _good(lambda: served(2)),
    "no right on slices": _good(without_the_right_on_slices),
    "the only pod goes": _moving(lambda: one(ready=True, deleting=True), "Progressing"),
    "the only pod is not ready": _moving(one, "Starting"),
    "the only pod is over": _moving(over, "Progressing"),
    "the counters say more": _moving(counters_say_more, "Starting"),
    "the counters say less": _moving(counters_say_less, "Progressing", serves=True),
    "the counters are of before": _moving(counters_are_of_before, "Progressing", serves=True),
    "no endpoints": _moving(lambda: unlisted("x-0"), "NoEndpoints"),
    "one of two without endpoint": _moving(lambda: unlisted("x-1", replicas=2), "NoEndpoints", serves=True),
    "the Service is gone": _failed(service_is_gone, "AdmissionRefused"),
    "the Service cannot be made yet": _moving(service_is_gone_for_now, "Progressing"),
    "the Deployment is gone": _moving(deployment_is_gone, "Progressing", serves=True),
    "the Deployment is another's": _failed(deployment_of_another, "NameConflict", serves=True),
    "an edit is applied": _moving(lambda: edited(served()), "Progressing", serves=True),
    "the old pod serves": _moving(half_rolled_out, "Starting", serves=True),
    "the old pod is left": _moving(lambda: half_rolled_out(new_is_ready=True), "Progressing", serves=True),
    "the old pod counts as new": _moving(counted_as_new, "Progressing", serves=True),
    "the old pod drains": _good(old_drains),
    "a failed rollout": _failed(failed_rollout, "KVCacheTooSmall", serves=True),
    "overdue": _failed(lambda: overdue(serves=False), "ProgressDeadlineExceeded"),
    "overdue while the old pod serves": _failed(lambda: overdue(serves=True), "ProgressDeadlineExceeded", serves=True),
    "an invalid edit": _failed(invalid, "UnknownFlag", serves=True),
    "an unreadable edit": _failed(unreadable, "InvalidSpec", serves=True),
    "an edit that does not fit": _failed(held, "DoesNotFit", serves=True),
    "an edit that is looked at": _moving(looked_at, "InspectingModel", serves=True),
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
    "paused and dead": Case(paused_and_dead, NOTHING, "Paused", "InProgress", "Suspended"),
}

UNTOLD: Mapping[str, tuple[Callable[[], World], str, str]] = {
    "new": (new_service, "InProgress", "Progressing"),
    "an edit that nobody saw": (not_seen_yet, "InProgress", "Progressing"),
    "being deleted": (deleting, "Terminating", "Progressing"),
}
"""Where the conditions are not of this generation: how each comes about, kstatus, and Argo CD's health."""


def objects() -> dict[str, Json]:
    """Every state as the API server would show it."""
    made = {name: case.make() for name, case in CASES.items()} | {name: make() for name, (make, *_) in UNTOLD.items()}
    return {name: copy.deepcopy(world.obj) for name, world in made.items()}
