"""How one pod template replaces another: pure, from the spec, what runs, and what is free on the nodes.

Auto is resolved when a template is about to be applied, and kept for that rollout in an annotation of the workload. A
steady service reads no nodes, and changes of free resources do not affect it. An old replica ends early only where its
resources are enough for the new one: a pod that no node can run must not end one that serves.

A new template may break every service that gets it. So requested updates (llmservice.dev/update-requested) run a few at
a time, and a failed one holds back the others until its spec or its annotation changes. `service/context.py` counts
those that run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService
from llmservice_planner.room import (
    SHARED,
    Amounts,
    NodeRoom,
    Room,
    fitting,
    fitting_on_separate_devices,
    minus,
    nodes_for,
    places_by_domain,
    requests_of,
)
from llmservice_runtime.contract import Failure, FailureReason

from llmservice_operator.decision import Event, Inputs, Requirements, RolloutStep, RoomQuery, Update, UpdatePermission
from llmservice_operator.facts import scheduling
from llmservice_operator.facts.children import RevisionFacts
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.children import claim_holders
from llmservice_operator.manifests.meta import Manifest, nodes_of
from llmservice_operator.manifests.server import accelerator_resource, domain_label
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.failures.failure import reason_of
from llmservice_operator.observe.progress import gates, gates_of
from llmservice_operator.observe.verdict import Obstacle
from llmservice_operator.revisions import DesiredRevision, is_by_request
from llmservice_operator.workload.port import DEFAULT_STRATEGY, Replica, Strategy, WorkloadFacts

Json = Mapping[str, Any]

RECHECK_SOON = 5.0
"""Seconds until an API server that could not list nodes is asked again."""
RECHECK_SECONDS = 60.0
"""Seconds between two reads of nodes while a pod waits for resources: no event says that others freed some."""


@dataclass(frozen=True, slots=True)
class Change:
    """A template that is to replace another one, or is replacing it."""

    service: LLMService
    label: str
    """Of the new revision."""
    live: WorkloadFacts
    template: Manifest
    """Of the new revision."""
    inputs: Inputs

    @property
    def previous(self) -> Json:
        """The stored status.rollout, if it is about this revision."""
        rollout: Json = self.service.status.get("rollout") or {}
        return rollout if rollout.get("revision") == self.label else {}

    @property
    def new(self) -> tuple[PodFacts, ...]:
        return tuple(pod for each in self.new_replicas for pod in each.pods)

    @property
    def old(self) -> tuple[PodFacts, ...]:
        return tuple(pod for each in self.old_replicas for pod in each.pods)

    @property
    def new_replicas(self) -> list[Replica]:
        return [each for each in self._there if each.revision == self.label]

    @property
    def old_replicas(self) -> list[Replica]:
        return [each for each in self._there if each.revision != self.label]

    @property
    def _there(self) -> list[Replica]:
        return [each for each in self.inputs.observed.replicas if not (each.is_terminating or each.has_ended)]

    @property
    def pods_on_leaving_nodes(self) -> int:
        """Pods on nodes that are going away: their resources count as free."""
        return sum(pod.deleting and bool(pod.node) for pod in self.inputs.observed.pods)

    @property
    def left(self) -> WorkloadFacts | None:
        """The workload of another kind that replicas move from, where their number of nodes changes from or to one: all
        new replicas are made beside the old ones, or all old ones end first."""
        is_set, there = nodes_of(self.template) > 1, self.inputs.observed.workloads
        return next((each for each in there if (each.nodes > 1) is not is_set and each.spec_replicas), None)

    @property
    def made_beside(self) -> int:
        """Replicas that a surge makes at once."""
        return self.service.spec.scaling.replicas if self.left is not None else 1

    def has_room(self, nodes: Iterable[NodeRoom], *, leaving: int = 0) -> bool:
        """Whether these nodes have room for what a surge makes, `leaving` pods aside; the pods of a replica are on a
        node each."""
        size, label = nodes_of(self.template), domain_label(self.pod_spec)
        if size == 1:
            return sum(map(self._fitting, nodes)) + leaving >= self.made_beside
        places = places_by_domain(nodes, label, self._fitting, self.made_beside).values()
        if label is None:
            return sum(places) + leaving >= size * self.made_beside
        return sum(each // size for each in places) >= self.made_beside

    def _fitting(self, node: NodeRoom) -> int:
        return fitting_on_separate_devices(node, self.requests, self.resource)

    @property
    def is_last(self) -> bool:
        """Whether there is a single replica, whose replacement interrupts service."""
        return self.service.spec.scaling.replicas == 1

    @property
    def pod_spec(self) -> Json:
        spec: Json = self.template["spec"]
        return spec

    @property
    def resource(self) -> str | None:
        """Of the accelerators."""
        return accelerator_resource(self.service)

    @property
    def requests(self) -> Amounts:
        return requests_of(self.pod_spec)

    @property
    def old_requests(self) -> Amounts:
        return requests_of((self.left or self.live).template().get("spec") or {})


def rollout_step(change: Change, *, may_choose: bool) -> RolloutStep | Requirements:
    """The next step. `may_choose`: False where nothing is applied, or the workload is to be rolled back."""
    strategy = current_strategy(change.service, change.live)
    if change.live.revision == change.label:
        return _continued(change, strategy)
    if not _is_to_choose(change, may_choose=may_choose):
        if strategy == "Replace" and change.left is not None:
            return _reported_before(change) or _ended_first(change, "spec.rollout.strategy is Replace")
        return RolloutStep(strategy)
    return _without_room(change) or _by_room(change)


def _is_to_choose(change: Change, *, may_choose: bool) -> bool:
    spec = change.service.spec
    return may_choose and spec.rollout.strategy == "Auto" and spec.scaling.replicas > 0


def current_strategy(service: LLMService, live: WorkloadFacts) -> Strategy:
    """The strategy while nothing is to change."""
    asked = service.spec.rollout.strategy
    return _strategy(live.strategy) if asked == "Auto" else asked


def initial_step(service: LLMService) -> RolloutStep:
    """The step without a workload: nothing is replaced."""
    asked = service.spec.rollout.strategy
    return RolloutStep(DEFAULT_STRATEGY if asked == "Auto" else asked)


def _strategy(live: str | None) -> Strategy:
    """The recorded strategy of the rollout; Surge where the workload has none."""
    return "Replace" if live == "Replace" else "Recreate" if live == "Recreate" else DEFAULT_STRATEGY


def _without_room(change: Change) -> RolloutStep | None:
    """The first step where it does not depend on free resources."""
    if reported := _reported_before(change):
        return reported
    if change.live.available == 0:
        # All at once: one by one, each would wait for the start of the one before.
        return RolloutStep("Recreate", "No replica answers, so there is none to keep while its successor starts.")
    if sum(each.is_placed for each in change.old_replicas) > change.service.spec.scaling.replicas:
        return RolloutStep("Surge", "The pod of the rollout that was under way gives up its place.")
    if sum(each.ready for each in change.new_replicas) >= change.service.spec.scaling.replicas:
        return RolloutStep("Surge", "All replicas of this revision are still there; the others go.")
    return None


def _by_room(change: Change) -> RolloutStep | Requirements:
    room = change.inputs.free_room(RoomQuery(change.resource))
    if isinstance(room, Requirements):
        return room
    if room.may_be_known_soon:
        waits = Obstacle(
            Reason.PROGRESSING, f"The change waits to see where there is room: {room.unknown}.", is_final=False
        )
        return RolloutStep(_strategy(change.live.strategy), is_held=True, obstacle=waits, recheck_after=RECHECK_SOON)
    if room.unknown is not None and (named := _shared_gpu_source(change)) is not None:
        return _replaced(change, f"A GPU's memory is no room for a second pod, and pods share GPUs, by {named}")
    if room.unknown is not None:
        return RolloutStep("Surge", _unknown(room.unknown, change.inputs.settings))
    nodes = list(nodes_for(room, change.pod_spec))
    has_room = change.has_room(nodes, leaving=change.pods_on_leaving_nodes)
    if has_room or _would_help(change, nodes):
        mounted_by = claim_holders(change.service)
        if mounted_by == "one pod" or (mounted_by == "one node" and len(nodes) > 1):
            return _replaced(change, f"The cache claim can be mounted by {mounted_by} at a time")
        if has_room:
            return RolloutStep("Surge", _with_room(change))
        return _replaced(change, f"No node has room for one more pod: {_shortage(change, nodes)}")
    if not nodes:
        return RolloutStep("Surge", "No node takes such a pod, so what serves is not given up for it.")
    return RolloutStep(
        "Surge",
        f"No node has room for such a pod, even without an old one: {_shortage(change, nodes)}. What serves is not "
        "given up for it; spec.rollout.strategy Recreate stops all replicas first.",
    )


def _with_room(change: Change) -> str:
    if change.left is not None:
        return "There is room for all replicas on another number of nodes: they are ready before the old ones go."
    return "There is room for one more pod: a new one is ready before an old one goes."


def _replaced(change: Change, why: str) -> RolloutStep:
    """Replace one by one. For a single replica the status announces the interruption."""
    if change.left is not None:
        return _ended_first(change, why)
    if not change.is_last:
        return RolloutStep("Replace", f"{why}. One replica at a time is replaced.")
    gap = f"There is one replica: from its end until its successor is ready {_meanwhile(change)}."
    way_out = "spec.rollout.strategy Surge waits for room instead, and two replicas leave no gap."
    return RolloutStep("Replace", f"{why}. {gap} {way_out}", notice=Reason.GAP_EXPECTED, is_reported_first=True)


def _ended_first(change: Change, why: str) -> RolloutStep:
    """Replicas of one pod and of several are different objects, which cannot take turns."""
    gap = f"All replicas end before those on another number of nodes start: until these are ready {_meanwhile(change)}."
    way_out = "spec.rollout.strategy Surge waits for room instead."
    return RolloutStep("Recreate", f"{why}. {gap} {way_out}", notice=Reason.GAP_EXPECTED, is_reported_first=True)


def _meanwhile(change: Change) -> str:
    is_held = change.service.spec.scaling.holds and change.inputs.settings.activator_service is not None
    return "requests are held, if the activators can hold them" if is_held else "nothing answers"


def _shortage(change: Change, nodes: list[NodeRoom]) -> str:
    """What a new pod needs, and how much of it is free on suitable nodes."""
    resource = change.resource
    if any(fitting(node, change.requests) for node in nodes):
        return f"what is free of {resource} are shares of GPUs (time slicing), and other pods may hold their memory"
    # A record of an earlier release may request another resource than the spec.
    count = change.requests.get(resource, Decimal(0)) if resource is not None else Decimal(0)
    if resource is not None and any(node.free(resource) < count for node in nodes):
        free = sum(int(node.free(resource)) for node in nodes)
        return f"it needs {count} x {resource}, and of those on nodes that it may go to {free} are free"
    short = sorted(r for r, each in change.requests.items() if all(node.free(r) < each for node in nodes))
    return f"short of {', '.join(short)}" if short else "no node has enough of everything at once"


def _would_help(change: Change, nodes: list[NodeRoom]) -> bool:
    """Whether the resources of one old replica, with those that are free beside it, are enough."""
    if nodes_of(change.template) > 1 or change.left is not None:
        replicas = [change.old] if change.left is not None else [each.pods for each in change.old_replicas]
        return any(_has_room_without(change, nodes, pods) for pods in replicas)
    old = Counter(pod.node for pod in change.old if pod.node)
    return any(
        fitting(replace(node, used=minus(node.used, change.old_requests)), change.requests) > 0
        for node in nodes
        if old[node.name]
    )


def _has_room_without(change: Change, nodes: list[NodeRoom], old: Sequence[PodFacts]) -> bool:
    """Whether there is room for one new replica without these old pods."""
    ended = Counter(pod.node for pod in old if pod.node)

    def freed(node: NodeRoom) -> NodeRoom:
        amounts = {name: each * ended[node.name] for name, each in change.old_requests.items()}
        return replace(node, used=minus(node.used, amounts))

    size = nodes_of(change.template)
    if size == 1:
        return any(fitting(freed(node), change.requests) for node in nodes)
    places = places_by_domain(nodes, domain_label(change.pod_spec), lambda node: fitting(freed(node), change.requests))
    return any(each >= size for each in places.values())


def _continued(change: Change, strategy: Strategy) -> RolloutStep | Requirements:
    """The template is applied: keep the strategy, unless a new pod waits too long for resources."""
    reason = str(change.previous.get("reason") or "") if change.previous.get("strategy") == strategy else ""
    ongoing_rollout = change.inputs.observed.ongoing_rollout
    if not change.previous and ongoing_rollout is not None and ongoing_rollout[0] == change.label:
        reason = ongoing_rollout[1]
    step = RolloutStep(strategy, reason)
    if not _may_lack_room(change) or (since := _waiting_since(change)) is None:
        return step
    is_auto = change.service.spec.rollout.strategy == "Auto"
    if is_auto and (reported := _reported_before(change)):
        return reported
    step = replace(step, obstacle=_waits(change))
    if not is_auto:
        return step
    waited = max(0.0, (change.inputs.now - since).total_seconds())
    if waited < change.inputs.settings.surge_deadline_seconds:
        return replace(step, recheck_after=change.inputs.settings.surge_deadline_seconds - waited)
    return _replace_after_wait(change, step, waited)


def _may_lack_room(change: Change) -> bool:
    """Whether a new pod is created beside an old one that serves."""
    is_surge = current_strategy(change.service, change.live) == "Surge"
    return is_surge and not change.service.spec.paused and any(pod.ready for pod in change.old)


def _reported_before(change: Change) -> RolloutStep | None:
    """The step that ends an old replica first, where the status has it already."""
    strategy, reason = change.previous.get("strategy"), str(change.previous.get("reason") or "")
    if reason and strategy == "Recreate" and change.left is not None:
        return RolloutStep("Recreate", reason)
    return RolloutStep("Replace", reason) if reason and strategy == "Replace" else None


def _replace_after_wait(change: Change, step: RolloutStep, waited: float) -> RolloutStep | Requirements:
    """A pod waited too long: end an old pod first, where that is known to help."""
    room = change.inputs.free_room(RoomQuery(change.resource, RECHECK_SECONDS))
    if isinstance(room, Requirements):
        return room
    if room.may_be_known_soon:
        return replace(step, recheck_after=RECHECK_SOON)
    limit = change.inputs.settings.surge_deadline_seconds
    is_gated = any(scheduling.are_gates(pod.unschedulable) for pod in _pods_without_node(change))
    found = "was held by Kueue's scheduling gate" if is_gated else "found no room"
    why = f"A new pod {found} for {limit} s"
    if held := _pods_without_gpu_memory(change):
        why = "A new pod finds no memory on a GPU that pods share (time slicing)"
        is_of_use = _would_free_memory(change, room, held)
    elif room.unknown is not None:
        is_of_use = _is_room_enough(change)
    else:
        nodes = list(nodes_for(room, change.pod_spec))
        is_of_use = _would_help(change, nodes)
        is_free_now = change.has_room(nodes)
        if is_free_now and waited < 2 * limit:  # the scheduler may be about to place it
            return replace(step, recheck_after=limit / 10)
    if not is_of_use:
        return replace(step, recheck_after=RECHECK_SECONDS)
    if change.left is not None:
        why = _ended_first(change, why).reason
        return RolloutStep("Recreate", why, notice=Reason.SURGE_FELL_BACK, is_reported_first=True)
    gap = " It is the only one: until its successor is ready nothing answers." if change.is_last else ""
    why += f", so an old one goes first.{gap}"
    return RolloutStep("Replace", why, notice=Reason.SURGE_FELL_BACK, is_reported_first=True)


def _pods_without_gpu_memory(change: Change) -> tuple[PodFacts, ...]:
    """New pods whose GPU memory was in use by others, and that have not restarted."""
    ended = ((pod, pod.terminated) for pod in change.new if pod.terminated is not None and not pod.running)
    ends = ((pod, Failure.from_json(end.message)) for pod, end in ended)
    return tuple(pod for pod, end in ends if end is not None and end.reason is FailureReason.GPU_MEMORY_BUSY)


def _would_free_memory(change: Change, room: Room, held: tuple[PodFacts, ...]) -> bool:
    """Whether an old pod may use that memory: on a node with shared GPUs, or where nodes cannot be read."""
    if room.unknown is not None:
        return _shared_gpu_source(change) is not None
    resource, old = change.resource, {pod.node for pod in change.old}
    sharing = {node.name: node.sharing(resource) for node in room.nodes if resource is not None}
    found = (sharing.get(pod.node) for pod in held if pod.node in old)
    return any(each is not None and not each.has_own_memory for each in found)


def _shared_gpu_source(change: Change) -> str | None:
    """What shows that pods share GPUs, where nodes cannot be read."""
    products = change.service.spec.accelerator.products or ()
    if (change.resource or "").endswith(SHARED):
        return f"the name of the resource ({change.resource})"
    return "the name of the product" if products and all(each.endswith("-SHARED") for each in products) else None


def _waiting_since(change: Change) -> datetime | None:
    """Since when a new pod lacks resources: no node, no memory, no quota in its queue, or refused by a quota."""
    found = gates(change.new, gates_of(change.previous), change.inputs.now)
    lacking = [found.get(pod.uid) or pod.created_at for pod in _pods_without_node(change)]
    lacking += [pod.created_at for pod in _pods_without_gpu_memory(change)]
    if lacking:
        return _time(min(lacking))
    refusal = change.live.replica_failure
    if refusal is None or reason_of(refusal) is not Reason.QUOTA_EXCEEDED:
        return None
    failure: Json = change.service.status.get("failure") or {}
    is_reported = bool(change.previous) and failure.get("reason") == Reason.QUOTA_EXCEEDED
    return _time(str(failure.get("since"))) if is_reported else change.inputs.now  # a new report has this time


def _pods_without_node(change: Change) -> list[PodFacts]:
    """New pods without a node for which the resources of an old one may be enough.

    Of scheduling gates only Kueue's counts, where the old pods hold quota of the same queue.
    """
    queues = {pod.queue for pod in change.old if pod.ready}
    return [
        pod
        for pod in change.new
        if not pod.scheduled
        and (
            scheduling.may_be_held(pod.unschedulable)
            or (scheduling.are_of_kueue(pod.unschedulable) and pod.queue and queues == {pod.queue})
        )
    ]


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _waits(change: Change) -> Obstacle | None:
    """The obstacle where accelerators are missing; other shortages are in the failure."""
    resource = accelerator_resource(change.service)
    causes = {cause for pod in change.new for cause in pod.unschedulable}
    if resource is None or not any(resource in cause for cause in causes):
        return None
    count = change.requests.get(resource, 0)
    message = f"A pod of revision {change.label} waits for {count} x {resource}; the old replicas go on serving."
    return Obstacle(Reason.WAITING_FOR_GPU, message, is_final=False)


def _is_room_enough(change: Change) -> bool:
    """Where nodes cannot be read: an old pod's resources are enough for a new pod that requests no more."""
    old_requests = change.old_requests
    return all(old_requests.get(resource, 0) >= each for resource, each in change.requests.items())


def _unknown(why: str, settings: Settings) -> str:
    return (
        f"Whether there is room for one more pod is not known, since {why}. A new pod "
        f"is made first; if it finds no room for {settings.surge_deadline_seconds} s, an old one is replaced instead."
    )


def rollout_events(before: Json, after: Json, how: RolloutStep) -> Iterator[Event]:
    """Events for what status.rollout reports for the first time and a user may act on."""
    if how.notice is not None and after.get("reason") == how.reason != before.get("reason"):
        yield Event("Warning", how.notice, how.reason)
    waiting = after.get("updateWaiting")
    if waiting and waiting != before.get("updateWaiting"):
        yield Event("Normal", Reason.UPDATE_WAITING, waiting)


_NAMED = 8
UPDATE_RECHECK_SECONDS = 60.0
"""Seconds after which a waiting service is reconciled again without an event."""


def why_waiting(permission: UpdatePermission) -> str:
    """Why the update waits. Running updates are not named: the status would change with each of them."""
    if permission.failed or permission.failed_in_other_namespaces:
        return (
            f"The update of {_failed(permission)} failed, and the same may happen here. Edit or roll back what failed, "
            "or take its annotation llmservice.dev/update-requested away, and the next one begins."
        )
    return f"Other services are being updated, {permission.limit} at a time; this one's turn comes."


def _failed(permission: UpdatePermission) -> str:
    """Failed updates of the namespace by name, and the number of others."""
    failed, more = permission.failed, len(permission.failed) - _NAMED
    named = [", ".join(failed[:_NAMED]) + (f" and {more} more" if more > 0 else "")] if failed else []
    if count := permission.failed_in_other_namespaces:
        named.append("one service of another namespace" if count == 1 else f"{count} services of other namespaces")
    return " and of ".join(named)


def update_of(
    desired: DesiredRevision, revisions: Sequence[RevisionFacts], rollout: Json, *, waits: bool, replicas: int
) -> Update | None:
    """The state of the update for the status that is about to be written; None: none was requested, or it is done.

    A service without replicas is never rolled out and breaks nothing: it holds back no other.
    """
    if waits:
        return Update.WAITS
    if replicas == 0:
        return None
    failed = next((record for record in revisions if record.label == rollout.get("failedRevision")), None)
    if failed is not None and failed.key == desired.key and is_by_request(failed):
        return Update.FAILED
    is_done = rollout.get("stableRevision") == desired.label
    is_asked_for = desired.label != desired.key and desired.chosen.update_requested is not None
    return None if is_done or not is_asked_for else Update.RUNNING
