"""The pods of a replica over several nodes get nodes together, or none of them does: two replicas of which each has a
part would hold GPUs that neither can use.

Each pod is made with a scheduling gate, which goes once the nodes have room for all pods of the replica, of one service
at a time. A pod that replaces a lost one does not wait: the others have their nodes. With a topology key the nodes are
of one domain, whose label the pods get with it: the scheduler would choose one for the first pod alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from llmservice_api.constants import GROUP_GATE
from llmservice_api.service import LLMService, cached_by_spec
from llmservice_api.spec import LLMServiceSpec
from llmservice_planner.cluster import ClusterGPUs, fewest_nodes
from llmservice_planner.room import (
    NodeRoom,
    by_domain,
    fitting_on_separate_devices,
    nodes_for,
    places_by_domain,
    requests_of,
)

from llmservice_operator.decision import (
    GPUsQuery,
    GroupTurn,
    Inputs,
    PickOf,
    Release,
    Requirements,
    RoomQuery,
    value_of,
)
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.revision import revision_key
from llmservice_operator.manifests.server import accelerator_resource, domain_label, tolerations
from llmservice_operator.observe.observed import POD, Observed
from llmservice_operator.revisions import own_revisions
from llmservice_operator.workload.port import Replica, WorkloadFacts

MOST_NODES = 4
"""That a message names."""
RECHECK_SECONDS = 10.0
"""Seconds until room is looked for again: lists of nodes are shared for as long."""


@dataclass(frozen=True, slots=True)
class GroupStep:
    """Which pods may look for nodes now."""

    observed: Observed
    """As it was given, with what a held replica lacks at its pods, in the scheduler's words."""
    release: tuple[Release, ...] = ()
    is_placing: bool = False
    """Pods look for nodes, or will now."""
    recheck_after: float | None = None


def with_nodes(inputs: Inputs, picks: Callable[[Inputs], PickOf | Requirements]) -> Inputs | Requirements:
    """The inputs with a number for `nodes: auto`: the one with which this spec was recorded, of several the one that
    runs or else the latest, since nodes come and go, also those of a revision that failed. Else by the nodes of now;
    while a pinned revision runs nothing is read for it, since what is read is for the revision that runs."""
    service = inputs.stored
    if service is None or service.spec.parallelism.nodes != "auto":
        return inputs
    running = {live.revision for live in inputs.observed.workloads}
    records = sorted(own_revisions(service, inputs.observed), key=lambda each: (each.label in running, each.revision))
    by_key = {revision_key(spec := _over(service.spec, n)): spec for n in service.spec.parallelism.possible_nodes}
    if known := [by_key[each.key] for each in records if each.key in by_key]:
        return replace(inputs, stored=replace(service, spec=known[-1]))
    if accelerator_resource(service) is None or service.spec.rollout.pinned_revision is not None:
        return replace(inputs, stored=over_nodes(service, ClusterGPUs(), lambda spread, cluster: None))
    if inputs.gpus is None:
        return Requirements(gpus=GPUsQuery.of(service))
    picked = picks(inputs)
    if isinstance(picked, Requirements):
        return picked
    return replace(inputs, stored=over_nodes(service, value_of(inputs.gpus, ClusterGPUs()), picked))


def over_nodes(service: LLMService, cluster: ClusterGPUs, picked: PickOf) -> LLMService:
    """The service with a number for `nodes: auto`: the fewest nodes of one product with the GPUs of a replica on which
    the model fits by its plan, else the fewest with the GPUs; of usual nodes where devices are claimed, and one on
    CPUs."""
    parallelism, spec = service.spec.parallelism, service.spec
    if parallelism.nodes != "auto":
        return service
    if spec.accelerator.type == "cpu":
        return replace(service, spec=_over(spec, 1))
    for number in parallelism.possible_nodes:
        spread = replace(service, spec=_over(spec, number))
        if (choice := picked(spread, cluster)) is not None and choice.is_on_enough_nodes:
            return spread
    number = fewest_nodes(parallelism, cluster, tolerations(service), spec.accelerator.products or ())
    return replace(service, spec=_over(spec, number))


@cached_by_spec
def _over(spec: LLMServiceSpec, nodes: int) -> LLMServiceSpec:
    """With as many nodes; on one, without what is of several."""
    of_several = dict.fromkeys(("topology_key", "step_timeout_seconds", "network", "data_parallel_mode"))
    changed = {"nodes": nodes, **(of_several if nodes == 1 else {})}
    return spec.model_copy(update={"parallelism": spec.parallelism.model_copy(update=changed)})


def group_step(inputs: Inputs) -> GroupStep | Requirements:
    """The next step; it needs no spec, since pods that serve are replaced also while the spec is not accepted."""
    step = _step(inputs)
    return step if isinstance(step, Requirements) or not inputs.observed.refused else _without_refused(step)


def _without_refused(step: GroupStep) -> GroupStep:
    """The step without pods whose gate the API server did not let go, which say so until it is tried again."""
    said = {name: refusal.message for (kind, name), refusal in step.observed.refused.items() if kind == POD}
    pods = tuple(
        replace(pod, unschedulable=(f"scheduling gate {GROUP_GATE}, which may not be taken away ({said[pod.name]})",))
        if pod.is_held and pod.name in said
        else pod
        for pod in step.observed.pods
    )
    release = tuple(each for each in step.release if each.pod not in said)
    observed = replace(step.observed, pods=pods)
    return replace(step, observed=observed, release=release, is_placing=step.is_placing and bool(release))


def _step(inputs: Inputs) -> GroupStep | Requirements:
    observed = inputs.observed
    there = [each for each in observed.replicas if not each.is_terminating and each.first.group]
    begun = [each for each in there if not all(pod.is_held for pod in each.pods)]
    workload = next((each for each in observed.workloads if each.nodes > 1), None)
    label = None if workload is None else domain_label(workload.template().get("spec") or {})
    release = tuple(one for each in begun for one in _of([each], _domain_of(each, label)))
    is_placing = bool(release) or any(not (pod.is_held or pod.scheduled) for each in begun for pod in each.pods)
    complete = [each for each in there if workload is not None and _waits_only_for_room(each, workload.nodes)]
    if workload is None or not complete or is_placing:
        return GroupStep(observed, release, is_placing)
    if inputs.group_turn is None:
        return Requirements(group_turn=True)
    turn = inputs.group_turn.value
    if not turn.is_own:  # what the status says of them stays meanwhile
        return GroupStep(observed, recheck_after=RECHECK_SECONDS)
    place = _place(inputs, workload, turn)
    if isinstance(place, Requirements):
        return place
    if isinstance(place, _Place):
        return GroupStep(observed, _of(complete[:1], place.node_selector), is_placing=True)
    held = {pod.uid for each in complete for pod in each.pods}
    causes = (place,) if place else ()
    pods = tuple(replace(pod, unschedulable=causes) if pod.uid in held else pod for pod in observed.pods)
    return GroupStep(replace(observed, pods=pods), recheck_after=RECHECK_SECONDS)


def _may_go(pod: PodFacts) -> bool:
    """No other gate is left."""
    return pod.is_held and not pod.unschedulable


def _waits_only_for_room(each: Replica, nodes: int) -> bool:
    return len(each.pods) >= nodes and all(map(_may_go, each.pods))


_Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """The pods of one more replica may look for nodes."""

    node_selector: _Labels = ()


def _domain_of(replica: Replica, label: str | None) -> _Labels:
    """What its other pods were told, for one that was not let go with them or replaces one that was."""
    told = ((key, value) for pod in replica.pods for key, value in pod.node_selector if key == label)
    return tuple(dict.fromkeys(told))[:1]


def _of(groups: list[Replica], node_selector: _Labels = ()) -> tuple[Release, ...]:
    return tuple(Release(pod.name, pod.uid, node_selector) for each in groups for pod in each.pods if _may_go(pod))


def _place(inputs: Inputs, workload: WorkloadFacts, turn: GroupTurn) -> _Place | str | Requirements:
    """Where one more replica goes, or what the nodes lack for it, in the scheduler's words; empty: it is not known yet.

    Where no node is eligible, pods hold nothing while they wait, and the scheduler says why. A node autoscaler only
    sees pods without gates.
    """
    service = inputs.stored
    resource = accelerator_resource(service) if service is not None else None
    room = inputs.free_room(RoomQuery(resource))
    if isinstance(room, Requirements):
        return room
    if room.may_be_known_soon:
        return ""
    spec = workload.template().get("spec") or {}
    label, nodes = domain_label(spec), list(nodes_for(room, spec))
    wanted = requests_of(spec)

    def room_on(node: NodeRoom) -> int:
        return fitting_on_separate_devices(node, wanted, resource)

    places = places_by_domain(nodes, label, room_on)
    # The smallest that is large enough: others stay whole for larger replicas.
    enough = min(((count, name) for name, count in places.items() if count >= workload.nodes), default=None)
    if enough is not None:
        return _Place(() if label is None else ((label, enough[1]),))
    if room.unknown is not None or not nodes or (inputs.settings.has_node_autoscaler and not turn.are_others_placing):
        return _Place()
    within = "" if label is None else f" within one {label}"
    lacking = f"Insufficient {resource or 'cpu or memory'} for {workload.nodes} pods of a replica at once{within}"
    return lacking + _most_room(by_domain(filter(room_on, nodes), label))


def _most_room(free: Mapping[str, Sequence[NodeRoom]]) -> str:
    """The domain where the fewest nodes are missing, with those that have room; empty where none has."""
    domain, there = min(free.items(), key=lambda each: (-len(each[1]), each[0]), default=("", ()))
    names = [node.name for node in there[:MOST_NODES]]
    more = ", ..." if there[MOST_NODES:] else ""
    return f": {len(there)} now{domain and f' in {domain}'} ({', '.join(sorted(names))}{more})" if there else ""
