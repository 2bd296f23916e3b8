"""What a decision needs beside what the watches bring: found out cheaply, before anything is decided.

A steady service needs nothing, and one that rests at zero only what is read anew every few minutes. What is asked for
may be more than the decision comes to use, and is never less: with parts that were not required the same is decided
(`tests/unit/test_requirements.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmservice_api.service import LLMService
from llmservice_runtime.contract import FailureReason

from llmservice_operator.decide.autoscaling import needs_quotas, pods_to_count
from llmservice_operator.decide.decide import activators_to_ask
from llmservice_operator.decide.decision import REFRESH_SECONDS
from llmservice_operator.decide.fit.assess import (
    LABELS_MAY_BE_OLD,
    cpu_requirements,
    device_of,
    failed_gpus,
    is_assessed,
    is_to_be_planned,
)
from llmservice_operator.decide.inputs import Inputs
from llmservice_operator.decide.rollout.selection import Selection, own_workload
from llmservice_operator.decide.rollout.strategy import Change, max_age_of_room
from llmservice_operator.facts import scheduling
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.resources import accelerator_resource
from llmservice_operator.observe.failures.pod_events import event_query
from llmservice_operator.observe.failures.pod_failure import is_of_driver
from llmservice_operator.observe.status.plan import is_plan_of_another


@dataclass(frozen=True, slots=True)
class NodeGPUs:
    """What nodes with these labels have of an extended resource."""

    resource: str
    node_selector: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What is free on the cluster's nodes, and who holds a resource."""

    resource: str | None
    """The accelerator's; None on CPUs."""
    max_age_seconds: float = 0.0
    """What was read for this service before and is younger will do: messages are not to change more often."""
    is_only_shown: bool = False
    """Nothing is decided by it: where it cannot be read, what was read long ago is better than nothing."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """The parts of `Inputs` that are to be read next, by their names there."""

    turn: bool = False
    sibling_model: str | None = None
    """The inspection key of the model that a sibling may know."""
    reading: str | None = None
    """The model's configuration, as JSON text."""
    gpus: NodeGPUs | None = None
    room: NodeRoom | None = None
    pod_events: tuple[str, ...] = ()
    """Names of the pods."""
    in_flight: tuple[tuple[str, str], ...] = ()
    """Names and IP addresses of the pods."""
    port: bool = False
    """The port at the activators is to be allotted, or known to be the service's still."""
    holding: tuple[str, ...] = ()
    """IP addresses of the activators."""
    quotas: bool = False
    """The ResourceQuotas of the namespace, for this generation, of the last QUOTAS_SECONDS."""

    def __bool__(self) -> bool:
        return self != NOTHING


NOTHING = Requirements()


def requirements(inputs: Inputs) -> Requirements:
    """What is to be read next; nothing: `decide` has all that it needs. One part may show that another is needed."""
    if inputs.service is None or inputs.service.is_deleting:
        return NOTHING
    if inputs.zero.needs_port:
        return Requirements(port=True)
    selection = inputs.selection
    if not isinstance(selection, Selection):
        return NOTHING
    if selection.needs_turn and inputs.turn is None:
        return Requirements(turn=True)
    facts = inputs.facts if is_assessed(selection.service) else None
    if facts is not None and facts.sibling_key is not None:
        return Requirements(sibling_model=facts.sibling_key)
    is_planned = facts is not None and is_to_be_planned(selection, inputs.facts_digest)
    is_read = is_planned or (facts is not None and facts.is_known and bool(failed_gpus(inputs, selection)))
    if facts is not None and is_read and not facts.is_stated:
        reading = inputs.reading.value if inputs.reading is not None else None
        if reading is None or reading.document != facts.document:
            return Requirements(reading=facts.document)
        is_planned = is_planned and reading.answer is not None
    is_new = selection.match.chosen is None
    is_held = is_new and facts is not None and (facts.is_waiting or facts.is_known > is_planned)
    rooms = (
        _of_cpus(selection.service, facts.document) if facts is not None and is_new and not is_held else None,
        _of_rollout(inputs, selection) if not is_held or _is_kept(inputs, selection) else None,
        _of_failure(inputs, selection),
    )
    needed = Requirements(
        gpus=_of_gpus(selection) if is_planned and inputs.gpus is None else None,
        room=_strictest([room for room in rooms if room is not None]) if inputs.room is None else None,
        pod_events=_of_pods(inputs, selection) if inputs.pod_events is None else (),
        in_flight=_of_requests(inputs, selection) if inputs.in_flight is None else (),
        holding=inputs.zero.asks if inputs.holding is None else (),
        quotas=inputs.quotas is None and needs_quotas(inputs),
    )
    if not needed and inputs.holding is None:
        needed = Requirements(holding=activators_to_ask(inputs, selection))
    if needed.holding and inputs.port_claim is None:
        return replace(needed, holding=(), port=True)  # the port that they are asked about
    return needed


def _of_requests(inputs: Inputs, selection: Selection) -> tuple[tuple[str, str], ...]:
    """For the choice of the pods that a scale-down ends, or for the end of the last one."""
    return inputs.zero.counts or pods_to_count(selection.service, inputs.observed)


def _is_kept(inputs: Inputs, selection: Selection) -> bool:
    """Whether the desired revision is made or runs already, though its plan has to wait."""
    live = inputs.observed.workload
    return selection.rollback is not None or (live is not None and live.revision == selection.match.label)


def _of_gpus(selection: Selection) -> NodeGPUs | None:
    service = selection.service
    if service.spec.accelerator.type == "cpu" or device_of(selection) is not None:
        return None
    resource = accelerator_resource(service)
    assert resource is not None, "services on GPUs have one"
    return NodeGPUs(resource, tuple(sorted(service.spec.pod_template.spec.node_selector.items())))


def _of_cpus(service: LLMService, document: str | None) -> NodeRoom | None:
    """The nodes' labels, for a new revision that needs a feature of the CPU."""
    return NodeRoom(None, LABELS_MAY_BE_OLD) if cpu_requirements(service, document) else None


def _of_rollout(inputs: Inputs, selection: Selection) -> NodeRoom | None:
    service, label = selection.service, selection.match.label
    live = own_workload(service, inputs.observed)
    if live is None:
        return None
    if label is None:  # the revision of an update: nothing of it runs, as far as is known before it is rendered
        is_free = service.spec.rollout.strategy != "Auto" or not selection.may_choose_strategy or live.available == 0
        return None if is_free or not service.spec.scaling.replicas else NodeRoom(accelerator_resource(service))
    change = Change(service, label, live, inputs.observed, inputs.settings, inputs.now)
    age = max_age_of_room(change, may_choose=selection.may_choose_strategy)
    if age is None:
        return None
    is_held = is_plan_of_another(service.status) and service.status.get("observedGeneration") == service.generation
    return NodeRoom(accelerator_resource(service), max(age, REFRESH_SECONDS) if is_held else age)


def _of_failure(inputs: Inputs, selection: Selection) -> NodeRoom | None:
    """For what the status says of pods that find no GPU, or no node of which it is clear why, or too old a driver."""
    of_status = set(_labels(inputs, selection))
    pods = [p for p in inputs.observed.pods if p.revision in of_status and not p.deleting and p.phase != "Failed"]
    causes = {cause for pod in pods for cause in pod.unschedulable}
    failure = selection.service.status.get("failure") or {}
    if failure.get("reason") in scheduling.REASONS and any(not pod.scheduled for pod in pods):
        causes |= set(failure.get("evidence") or ())
    is_of_nodes = scheduling.are_of_gpus(causes) or scheduling.may_need_nodes(causes)
    if not is_of_nodes and not _lacks_driver(pods, failure):
        return None
    shown = scheduling.wanted_of(selection.service.status.get("effective") or {})
    resource = shown.resource if shown is not None else accelerator_resource(selection.service)
    return NodeRoom(resource, REFRESH_SECONDS, is_only_shown=True)


def _lacks_driver(pods: Sequence[PodFacts], failure: Mapping[str, Any]) -> bool:
    """Whether a pod fails by the driver of its node and the status has no failure of it yet: its text does not change
    later."""
    found = [pod for pod in pods if is_of_driver(pod)]
    is_reported = failure.get("reason") == FailureReason.DRIVER_MISMATCH
    reported = {pod.revision for pod in found if is_reported and pod.name == failure.get("pod")}
    return any(pod.revision not in reported for pod in found)


def _of_pods(inputs: Inputs, selection: Selection) -> tuple[str, ...]:
    observed = inputs.observed
    found = (event_query(observed.pods, observed.reports, label, inputs.now) for label in _labels(inputs, selection))
    return tuple(sorted({name for each in found for name in each.pods}))


def _labels(inputs: Inputs, selection: Selection) -> Iterator[str]:
    """The revisions that the status may be about: the one that is to run, or while that is held, the one that runs."""
    label, live = selection.match.label, inputs.observed.workload
    if label is not None:
        yield label
    may_be_held = selection.match.chosen is None or selection.service.spec.fit_policy == "Enforce"
    if live is not None and live.revision != label and may_be_held:
        yield live.revision


def _strictest(rooms: Sequence[NodeRoom]) -> NodeRoom | None:
    """One that does for all of them."""
    if not rooms:
        return None
    resource = next((room.resource for room in rooms if room.resource is not None), None)
    return NodeRoom(resource, min(r.max_age_seconds for r in rooms), all(r.is_only_shown for r in rooms))
