"""Holding of requests while a rollout leaves no replica. Pure.

For services with holding (`scale_to_zero.py`) and rollouts that end the last ready pod on purpose: Recreate, and
Replace of a single replica. `new` and `old` are pods of the new revision and of others.

| the workload has | the cluster lists | activators | slices | the workload |
|-|-|-|-|-|
| the old template | old pods | all can hold, not in the status yet | unchanged | waits |
| the old template | old pods | all can hold, not confirmed yet | created | waits |
| the old template | old pods | all can hold, confirmed | created | gets the new template |
| the old template | old pods | one cannot hold yet | none | waits |
| the old template | old pods | not confirmed for MAX_WAIT_SECONDS | created if all can hold | gets the new template |
| the old template | old pods | none, or slices are refused | none | gets the new template |
| the old template | old pods | unknown | unchanged | waits |
| the old template | old pods | unknown for MAX_WAIT_SECONDS | unchanged | gets the new template |
| the new template | old pods | some | as when it changed | is as desired |
| the new template | none, or a new pod | any | by the table of `scale_to_zero.py` | is as desired |

Confirmed is as there, without the check of requests in flight: old pods drain. So slices exist before the cluster
removes the last pod from its own, and until it lists a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService

from llmservice_operator.behaviours.holding.scale_to_zero import (
    KIND,
    UNKNOWN,
    addresses_of,
    are_applied,
    is_listed,
    problem_of,
    refusals,
    slices_for,
    trial_slices,
)
from llmservice_operator.children import DesiredChild
from llmservice_operator.decision import Event, RolloutStep
from llmservice_operator.inputs import Inputs, value_of
from llmservice_operator.observe.activators import ASK_SECONDS, SPREAD_SECONDS, Reports
from llmservice_operator.revisions.selection import own_workload
from llmservice_operator.workload.port import WorkloadFacts

MAX_WAIT_SECONDS = 60.0
"""Seconds that a rollout waits until requests can be held."""
WAITING = "The rollout waits until requests can be held: from the end of the last replica on, none answers."
HELD = "Requests are held until a new replica is ready."
LOST = "Requests are lost until a new replica is ready."


@dataclass(frozen=True, slots=True)
class RolloutHolding:
    slices: tuple[DesiredChild, ...] | None = ()
    """As `ScaleToZero.slices`."""
    is_waiting: bool = False
    """The workload must not change yet."""
    text: str = ""
    """The value of status.rollout.gap; empty: unchanged."""
    is_lost: bool = False
    """Requests during the interruption are lost."""
    asks: tuple[str, ...] = ()
    """As `ScaleToZero.asks`."""

    recheck_after: float | None = None


def rollout_holding(inputs: Inputs, port: int | None, step: RolloutStep, label: str) -> RolloutHolding | None:
    """By the table above; None: only the table of `scale_to_zero.py` applies. `port` is the service's at the
    activators, `label` the new revision."""
    stored, observed = inputs.stored, inputs.observed
    live = None if stored is None else own_workload(stored, observed)
    if stored is None or live is None or stored.spec.paused or not stored.spec.scaling.holds:
        return None
    replicas = stored.spec.scaling.replicas
    if not (replicas and _ends_all(step, replicas)) or not is_listed(observed) or is_listed(observed, label):
        return None
    if not _is_started(live, step, label):
        return (
            None
            if step.is_held or step.is_reported_first
            else _reported_first(_before_rollout(inputs, port), stored, label)
        )
    if inputs.activators is None:
        return RolloutHolding(None, text=_reported(stored, label))
    text = _reported(stored, label) or (HELD if observed.slices else LOST)
    is_kept = bool(inputs.activators and observed.slices)
    return RolloutHolding(
        slices_for(stored, port, inputs.activators) if is_kept and port is not None else (), text=text
    )


def rollout_holding_events(before: Mapping[str, Any], found: RolloutHolding | None) -> Iterator[Event]:
    """A warning before requests will be lost; `before` is the stored status."""
    if (
        found is not None
        and found.is_lost
        and (before.get("rollout") or {}).get("gap") != found.text
        and found.is_waiting
    ):
        yield Event("Warning", Reason.HOLDING_UNAVAILABLE, found.text)


def _before_rollout(inputs: Inputs, port: int | None) -> RolloutHolding:
    """The result before the workload changes."""
    stored, observed, activators = inputs.stored, inputs.observed, inputs.activators
    assert stored is not None
    if inputs.settings.activator_service is None:
        return _lost("The chart's autoscaling.enabled is false.")
    if activators is None and inputs.unknown_for < MAX_WAIT_SECONDS:
        return _waiting(None)
    if activators is None:
        return _lost(UNKNOWN, None)
    if not activators:
        return _lost("No activator is ready.")
    if KIND in observed.hidden:
        return _lost("The operator may not list endpointslices.discovery.k8s.io.")
    if port is None:
        return _lost("No port could be allotted.")
    slices = slices_for(stored, port, activators)
    if refusal := next(refusals(stored, observed, slices), ""):
        return _lost(refusal)
    addresses, reports = addresses_of(activators), value_of(inputs.holding, None)
    if reports is None or any(each not in reports.by_address for each in addresses):
        return _waiting(None, addresses)
    return _from_reports(reports, port, slices, is_made=are_applied(stored, observed, slices))


def _from_reports(reports: Reports, port: int, slices: tuple[DesiredChild, ...], *, is_made: bool) -> RolloutHolding:
    found = reports.by_address.values()
    can_hold = all(report.is_listening and not report.problem for report in found)
    are_reached = all(report.is_reachable for report in found)
    if can_hold and is_made and are_reached and reports.made_for >= SPREAD_SECONDS:
        return RolloutHolding(slices, text=HELD)
    if reports.asked_for >= MAX_WAIT_SECONDS:
        why = problem_of(reports, port) or "The activators' slices were not applied in time."
        return _lost(why, slices if can_hold else ())
    # Old replicas serve beside the slices.
    is_tried = are_reached or trial_slices(reports.tried_for)[0]
    return _waiting(slices if can_hold and is_tried else ())


def _waiting(slices: tuple[DesiredChild, ...] | None, asks: tuple[str, ...] = ()) -> RolloutHolding:
    return RolloutHolding(slices, is_waiting=True, text=WAITING, asks=asks, recheck_after=ASK_SECONDS)


def _lost(why: str, slices: tuple[DesiredChild, ...] | None = ()) -> RolloutHolding:
    return RolloutHolding(slices, text=f"{LOST} {why}", is_lost=True)


def _reported_first(found: RolloutHolding, service: LLMService, label: str) -> RolloutHolding:
    """Report an interruption in the status before slices are created, since activators forward nothing beside replicas
    otherwise; and a loss before it begins. A reported loss stays, whatever activators report later."""
    if not found.is_lost:
        rollout = service.status.get("rollout") or {}
        is_reported = rollout.get("revision") == label and rollout.get("gap")
        return found if is_reported or not found.slices else replace(_waiting(None), recheck_after=0.0)
    reported = _reported(service, label)
    return replace(found, text=reported) if reported else replace(found, is_waiting=True, recheck_after=0.0)


def _reported(service: LLMService, label: str) -> str:
    """The loss that the status reports for this rollout, or ""."""
    rollout = service.status.get("rollout") or {}
    text = str(rollout.get("gap") or "")
    return text if rollout.get("revision") == label and text.startswith(LOST) else ""


def _ends_all(step: RolloutStep, replicas: int) -> bool:
    return step.strategy == "Recreate" or (step.strategy == "Replace" and replicas == 1)


def _is_started(live: WorkloadFacts, step: RolloutStep, label: str) -> bool:
    return live.revision == label and live.strategy_in_force() == step.strategy
