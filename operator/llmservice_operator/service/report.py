"""Builds the status, its Events, and the time of the next reconcile from decisions about the children."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmservice_api.constants import selector_text
from llmservice_api.errors import Problem
from llmservice_api.holding import stored_idle, stored_port
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService

from llmservice_operator.behaviours.autoscaling import autoscaled, deletion_costs, pods_to_count
from llmservice_operator.behaviours.holding import (
    ScaleToZero,
    is_listed,
    slices_without_spec,
    undesired_slices,
)
from llmservice_operator.children import DesiredChild, apply_of, obstacle_to_prune
from llmservice_operator.decision import (
    NO_REQUIREMENTS,
    QUOTAS_SECONDS,
    REFRESH_SECONDS,
    Apply,
    Decision,
    Event,
    Inputs,
    Prune,
    Requirements,
    RoomQuery,
    soonest,
    value_of,
)
from llmservice_operator.facts import scheduling
from llmservice_operator.manifests.resources import accelerator_resource
from llmservice_operator.observe.failures.failure import may_be_of_nodes
from llmservice_operator.observe.failures.pod_events import EventQuery, event_query
from llmservice_operator.observe.failures.status_failure import ENDS_BY_TIME
from llmservice_operator.observe.observed import asks, name_conflicts
from llmservice_operator.observe.progress import SETTLE_SECONDS, stored_rollout
from llmservice_operator.observe.status import (
    is_stored,
    may_wait,
    progress_snapshot,
    status_of,
)
from llmservice_operator.observe.verdict import Subject, Verdict, plan_of
from llmservice_operator.workload.kinds import is_workload

Json = Mapping[str, Any]

_SINGLE = 3
"""Adapters with an Event each; further ones share one."""


@dataclass(frozen=True, slots=True)
class Case:
    """The subject of a decision, and what follows directly from its inputs. None: the spec cannot be parsed."""

    inputs: Inputs
    subject: Subject
    service: LLMService | None = None
    """With the number of replicas that its workload is to have."""
    scale_to_zero: ScaleToZero | None = None
    is_selected: bool = False
    """The revision to run is known, and the cause of a failure is worth reading."""


def report(case: Case, verdict: Verdict, *, prune: tuple[Prune, ...] = (), **actions: Any) -> Decision | Requirements:
    """The decision with these `actions` (fields of `Decision`), and the status for `verdict`. Refused ones of `prune`
    are omitted."""
    inputs, subject = case.inputs, case.subject
    observed, now = inputs.observed, inputs.now
    if observed.kept or observed.unanswered:
        verdict = replace(verdict, obstacle=verdict.obstacle or obstacle_to_prune(case.service, observed, prune))
        prune = tuple(each for each in prune if (each.kind, each.name) not in observed.kept)
    scaled = _with_scaling(verdict, case)
    needed = scaled if isinstance(scaled, Requirements) else NO_REQUIREMENTS
    query = event_query(observed.pods, observed.reports, verdict.revision, now)
    if case.is_selected:
        needed |= _of_failures(case, verdict, query)
        needed |= _of_deletion(case, actions.get("apply", ()))
    if needed or isinstance(scaled, Requirements):
        return needed
    verdict = scaled
    moment = progress_snapshot(subject, observed, verdict, now)
    room = inputs.room.value if inputs.room is not None else None
    pod_events = inputs.pod_events.value if inputs.pod_events is not None else None
    status = status_of(subject, observed, verdict, moment, now, room=room, pod_events=pod_events)
    is_unsettled = moment.progress.is_unsettled
    is_unplaced = (status.get("failure") or {}).get("reason") in scheduling.REASONS
    may_last = (status.get("failure") or {}).get("reason") in ENDS_BY_TIME
    is_at_quota = verdict.autoscaled is not None and verdict.autoscaled.reason is Reason.QUOTA_BELOW_MAXIMUM
    actions["requeue_after"] = soonest(
        actions.get("requeue_after"),
        REFRESH_SECONDS if is_unplaced or may_last else None,
        moment.progress.overdue_in,
        None if case.scale_to_zero is None else case.scale_to_zero.recheck_after,
        QUOTAS_SECONDS if is_at_quota else None,
        query.again,
    )
    asked = asks(observed.pods, observed.reports, verdict.revision, status, verdict.adapters_digest)
    decision = _with_deletion_costs(Decision(asks=asked, is_unsettled=is_unsettled, prune=prune, **actions), case)
    if is_unsettled and may_wait(subject, observed, verdict):
        patience = SETTLE_SECONDS - observed.unsettled_for
        return replace(decision, requeue_after=min(patience, decision.requeue_after or patience))
    if is_stored(status, subject.previous):
        return decision
    return replace(decision, status=status, events=events(subject.previous, status))


def _of_failures(case: Case, verdict: Verdict, query: EventQuery) -> Requirements:
    """What to read from the cluster to explain why pods do not run."""
    inputs = case.inputs
    needed = Requirements(pod_events=query.pods if inputs.pod_events is None else ())
    failure = case.subject.previous.get("failure") or {}
    if not may_be_of_nodes(inputs.observed.pods, verdict.revision, failure):
        return needed
    shown = scheduling.accelerator_request(case.subject.previous.get("effective") or {})
    own = accelerator_resource(case.service) if case.service is not None else None
    room = inputs.free_room(
        RoomQuery(shown.resource if shown is not None else own, REFRESH_SECONDS, is_only_shown=True)
    )
    return needed | room if isinstance(room, Requirements) else needed


def _of_deletion(case: Case, applies: Iterable[Apply]) -> Requirements:
    """Requests in flight of the pods, where the workload is about to be scaled down."""
    if case.service is None or case.inputs.in_flight is not None or not any(is_workload(each.kind) for each in applies):
        return NO_REQUIREMENTS
    return Requirements(in_flight=pods_to_count(case.service, case.inputs.observed))


def _with_scaling(verdict: Verdict, case: Case) -> Verdict | Requirements:
    """The verdict with autoscaling and holding of requests."""
    inputs, previous, found = case.inputs, case.subject.previous, case.scale_to_zero
    if case.service is None or found is None:
        return replace(verdict, holding_port=stored_port(previous), idle=stored_idle(previous))
    scaled = autoscaled(case.service, inputs, found.problem, is_accepted=case.is_selected)
    if isinstance(scaled, Requirements):
        return scaled
    scaling = case.service.spec.scaling
    return replace(
        verdict,
        autoscaling=scaling.autoscaling,
        autoscaled=scaled,
        holding_port=found.port,
        idle=found.idle,
        held_seconds=scaling.holding.timeout_seconds if found.is_held else None,
    )


def _with_deletion_costs(decision: Decision, case: Case) -> Decision:
    """The decision with the pods to end, where the workload is about to be scaled down."""
    service = case.service
    if service is None or not any(is_workload(apply.kind) for apply in decision.apply):
        return decision
    in_flight = value_of(case.inputs.in_flight, {})
    return replace(decision, deletion_costs=deletion_costs(service, case.inputs.observed, in_flight))


def refuse(case: Case, problems: tuple[Problem, ...], replicas: int) -> Decision | Requirements:
    """Change only the status and the routes of requests; the status stays about what serves."""
    inputs, subject = case.inputs, case.subject
    live, previous = inputs.observed.workload, subject.previous
    verdict = Verdict(
        problems=problems,
        replicas=replicas,
        revision=live.revision if live is not None else "",
        rolling=stored_rollout(previous.get("rollout") or {}),
        selector=selector_text(subject.name),
        gpus=int(previous.get("gpus") or 0),
        endpoint=previous.get("endpoint") or {},
        effective=previous.get("effective") or {},
        plan=previous.get("plan") if live is None else plan_of(live.revision, previous),
        model=previous.get("model"),
        adapters=tuple(item["name"] for item in previous.get("adapters") or ()),
    )
    return report(case, verdict, notes=tuple(map(str, problems)), **_slices(case))


def _slices(case: Case) -> dict[str, Any]:
    """Routes despite the refusal: requests go to a listed pod, or else to the current activators."""
    subject, observed = case.subject, case.inputs.observed
    slices = () if is_listed(observed) else _held(case)
    ours = [each for each in slices or () if not name_conflicts(subject, observed, {each.id})]
    return {
        "apply": tuple(apply for each in ours if (apply := apply_of(each, subject, observed)) is not None),
        "prune": tuple(undesired_slices(subject, observed, slices)),
    }


def _held(case: Case) -> tuple[DesiredChild, ...] | None:
    if case.scale_to_zero is not None:
        return case.scale_to_zero.slices
    inputs, subject = case.inputs, case.subject
    return slices_without_spec(subject, stored_port(subject.previous), inputs.observed, inputs.activators)


def subject_of(service: LLMService) -> Subject:
    """The service for its status."""
    return Subject(service.name, service.namespace, service.uid, service.generation, service.status)


def events(before: Json, after: Json) -> tuple[Event, ...]:
    """Events for the step from one status to the next."""
    return (*_events(_by_type(before), _by_type(after), before, after), *_adapters(before, after))


def _events(old: dict[str, Json], new: dict[str, Json], before: Json, after: Json) -> Iterator[Event]:
    if _turned("Accepted", "False", old, new) or _other_words("Accepted", "False", old, new):
        yield _event("Warning", new["Accepted"])
    yield from _fits(old.get("Fits", {}), new.get("Fits", {}), new)
    scaled = new.get("Autoscaled", {})
    if scaled.get("reason") == Reason.HOLDING_UNAVAILABLE != old.get("Autoscaled", {}).get("reason"):
        yield _event("Warning", scaled)  # a replica runs that was not requested
    revision, earlier = ((status.get("rollout") or {}).get("revision") for status in (after, before))
    if revision and earlier and revision != earlier:
        yield Event("Normal", Reason.PROGRESSING, f"Rolling out revision {revision}.")
    if _turned("Ready", "True", old, new):
        yield _event("Normal", new["Ready"])
    known = {old.get("Stalled", {}).get("reason"), (before.get("failure") or {}).get("reason"), None}
    if new.get("Accepted", {}).get("status") == "False":
        known.add(new["Accepted"]["reason"])  # reported above, or before: a taken name is also a failure
    failure = after.get("failure") or {}
    if failure.get("reason") not in known:
        yield Event("Warning", failure["reason"], f"{failure['message']} {failure['remedy']}")
    # A failure that might pass was reported when it began; becoming final is no new failure.
    known.add(failure.get("reason"))
    if new.get("Accepted", {}).get("status") == "True" and new.get("Stalled", {}).get("reason") not in known:
        yield _event("Warning", new["Stalled"])


def _fits(old: Json, new: Json, conditions: dict[str, Json]) -> Iterator[Event]:
    """A changed verdict, or a first one that needs action; one that stops the service is Stalled instead."""
    reason, before = new.get("reason"), old.get("reason")
    if reason in (None, before, Reason.INSPECTING_MODEL, Reason.POLICY_IGNORE):
        return
    if before in (None, Reason.INSPECTING_MODEL) and reason in (Reason.FITS, Reason.FACTS_MISSING):
        return
    if reason == conditions.get("Stalled", {}).get("reason"):
        return
    yield _event("Warning" if reason == Reason.DOES_NOT_FIT else "Normal", new)


def _adapters(before: Json, after: Json) -> Iterator[Event]:
    reported = {item.get("name"): item.get("message") for item in before.get("adapters") or ()}
    news = [
        item
        for item in after.get("adapters") or ()
        if item.get("message") not in (None, "", reported.get(item["name"]))
    ]
    for item in news[:_SINGLE]:
        yield Event("Warning", Reason.ADAPTER_NOT_SERVED, f"Adapter {item['name']}: {item['message']}")
    if more := [item["name"] for item in news[_SINGLE:]]:
        text = f"{len(more)} more adapters are not served; status.adapters says why: {', '.join(more)}"
        yield Event("Warning", Reason.ADAPTER_NOT_SERVED, text)


def _by_type(status: Json) -> dict[str, Json]:
    return {c.get("type", ""): c for c in status.get("conditions") or ()}


def _turned(type_: str, status: str, old: dict[str, Json], new: dict[str, Json]) -> bool:
    return new.get(type_, {}).get("status") == status and old.get(type_, {}).get("status") != status


def _other_words(type_: str, status: str, old: dict[str, Json], new: dict[str, Json]) -> bool:
    both = (old.get(type_, {}), new.get(type_, {}))
    return all(c.get("status") == status for c in both) and both[0].get("message") != both[1].get("message")


def _event(kind: str, condition: Json) -> Event:
    return Event(kind, str(condition["reason"]), str(condition["message"]))
