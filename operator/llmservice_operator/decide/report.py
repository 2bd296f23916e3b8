"""From what was decided about the children to the status, the Events of its change, and when to reconcile again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from llmservice_api.constants import selector_text
from llmservice_api.errors import Problem
from llmservice_api.holding import stored_idle, stored_port
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService

from llmservice_operator.decide.autoscaling import autoscaled, deletion_costs
from llmservice_operator.decide.children import DesiredChild, apply_of, lingering
from llmservice_operator.decide.decision import QUOTAS_SECONDS, REFRESH_SECONDS, Decision, Event, Prune, soonest
from llmservice_operator.decide.inputs import Inputs
from llmservice_operator.decide.ownership import name_conflicts
from llmservice_operator.decide.zero import is_listed, needless_slices, remembered_slices
from llmservice_operator.facts import scheduling
from llmservice_operator.observe.failures.pod_events import event_query
from llmservice_operator.observe.failures.status_failure import ENDS_BY_TIME
from llmservice_operator.observe.progress import PATIENCE, stored_rolling
from llmservice_operator.observe.reports import asks
from llmservice_operator.observe.status.plan import plan_of
from llmservice_operator.observe.status.status import is_stored, may_wait, moment_of, status_of
from llmservice_operator.observe.status.verdict import Subject, Verdict
from llmservice_operator.workload.kinds import is_workload

Json = Mapping[str, Any]

_SINGLE = 3
"""Adapters with an Event each; those beyond share one."""


def report(
    inputs: Inputs, subject: Subject, verdict: Verdict, *, prune: tuple[Prune, ...] = (), **actions: Any
) -> Decision:
    """The decision with these `actions` (fields of `Decision`), and the status that `verdict` calls for. Of `prune` it
    has what was not refused."""
    observed, now = inputs.observed, inputs.now
    if observed.kept or observed.unanswered:
        verdict = replace(verdict, obstacle=verdict.obstacle or lingering(inputs.service, observed, prune))
        prune = tuple(each for each in prune if (each.kind, each.name) not in observed.kept)
    verdict = _with_scaling(verdict, inputs, subject)
    moment = moment_of(subject, observed, verdict, now)
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
        None if inputs.stored is None else inputs.zero.recheck_after,
        QUOTAS_SECONDS if is_at_quota else None,
        event_query(observed.pods, observed.reports, verdict.revision, now).again,
    )
    asked = asks(observed.pods, observed.reports, verdict.revision, status, verdict.adapters_digest)
    decision = with_deletion_costs(Decision(asks=asked, is_unsettled=is_unsettled, prune=prune, **actions), inputs)
    if is_unsettled and may_wait(subject, observed, verdict):
        patience = PATIENCE - observed.unsettled_for
        return replace(decision, requeue_after=min(patience, decision.requeue_after or patience))
    if is_stored(status, subject.previous):
        return decision
    return replace(decision, status=status, events=events(subject.previous, status))


def _with_scaling(verdict: Verdict, inputs: Inputs, subject: Subject) -> Verdict:
    """With what the status says of autoscaling and of requests that are held."""
    if inputs.stored is None:
        return replace(verdict, holding_port=stored_port(subject.previous), idle=stored_idle(subject.previous))
    scaling, found = inputs.stored.spec.scaling, inputs.zero
    return replace(
        verdict,
        autoscaling=scaling.autoscaling,
        autoscaled=autoscaled(inputs),
        holding_port=found.port,
        idle=found.idle,
        held_seconds=scaling.holding.timeout_seconds if found.is_held else None,
    )


def with_deletion_costs(decision: Decision, inputs: Inputs) -> Decision:
    """Where the workload is about to be made smaller, which pods are to go."""
    service = inputs.service
    if service is None or not any(is_workload(apply.kind) for apply in decision.apply):
        return decision
    in_flight = inputs.in_flight.value if inputs.in_flight is not None else {}
    return replace(decision, deletion_costs=deletion_costs(service, inputs.observed, in_flight))


def refuse(inputs: Inputs, subject: Subject, problems: tuple[Problem, ...], replicas: int) -> Decision:
    """Only the status changes, and where requests go; it goes on about what serves."""
    live, previous = inputs.observed.workload, subject.previous
    verdict = Verdict(
        problems=problems,
        replicas=replicas,
        revision=live.revision if live is not None else "",
        rolling=stored_rolling(previous.get("rollout") or {}),
        selector=selector_text(subject.name),
        gpus=int(previous.get("gpus") or 0),
        endpoint=previous.get("endpoint") or {},
        effective=previous.get("effective") or {},
        plan=previous.get("plan") if live is None else plan_of(live.revision, previous),
        model=previous.get("model"),
        adapters=tuple(item["name"] for item in previous.get("adapters") or ()),
    )
    return report(inputs, subject, verdict, notes=tuple(map(str, problems)), **_slices(inputs, subject))


def _slices(inputs: Inputs, subject: Subject) -> dict[str, Any]:
    """Whatever is refused, requests go to a pod that is listed, or else to the activators that are there now."""
    observed, slices = inputs.observed, () if is_listed(inputs.observed) else _held(inputs, subject)
    ours = [each for each in slices or () if not name_conflicts(subject, observed, {each.id})]
    return {
        "apply": tuple(apply for each in ours if (apply := apply_of(each, subject, observed)) is not None),
        "prune": tuple(needless_slices(subject, observed, slices)),
    }


def _held(inputs: Inputs, subject: Subject) -> tuple[DesiredChild, ...] | None:
    if inputs.stored is not None:
        return inputs.zero.slices
    return remembered_slices(subject, stored_port(subject.previous), inputs.observed, inputs.activators)


def subject_of(service: LLMService) -> Subject:
    """The service as far as its status is concerned."""
    return Subject(service.name, service.namespace, service.uid, service.generation, service.status)


def events(before: Json, after: Json) -> tuple[Event, ...]:
    """The Events for the step from one status to the next."""
    return (*_events(_by_type(before), _by_type(after), before, after), *_adapters(before, after))


def _events(old: dict[str, Json], new: dict[str, Json], before: Json, after: Json) -> Iterator[Event]:
    if _turned("Accepted", "False", old, new) or _other_words("Accepted", "False", old, new):
        yield _event("Warning", new["Accepted"])
    yield from _fits(old.get("Fits", {}), new.get("Fits", {}), new)
    scaled = new.get("Autoscaled", {})
    if scaled.get("reason") == Reason.HOLDING_UNAVAILABLE != old.get("Autoscaled", {}).get("reason"):
        yield _event("Warning", scaled)  # a replica runs that nobody asked for
    revision, earlier = ((status.get("rollout") or {}).get("revision") for status in (after, before))
    if revision and earlier and revision != earlier:
        yield Event("Normal", Reason.PROGRESSING, f"Rolling out revision {revision}.")
    if _turned("Ready", "True", old, new):
        yield _event("Normal", new["Ready"])
    known = {old.get("Stalled", {}).get("reason"), (before.get("failure") or {}).get("reason"), None}
    if new.get("Accepted", {}).get("status") == "False":
        known.add(new["Accepted"]["reason"])  # reported above, or before: a name that is taken is a failure as well
    failure = after.get("failure") or {}
    if failure.get("reason") not in known:
        yield Event("Warning", failure["reason"], f"{failure['message']} {failure['remedy']}")
    # A failure that may pass was reported when it began; that it has become final is no other one.
    known.add(failure.get("reason"))
    if new.get("Accepted", {}).get("status") == "True" and new.get("Stalled", {}).get("reason") not in known:
        yield _event("Warning", new["Stalled"])


def _fits(old: Json, new: Json, conditions: dict[str, Json]) -> Iterator[Event]:
    """A verdict that changed, or a first one that calls for action; one that stops the service is Stalled instead."""
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
