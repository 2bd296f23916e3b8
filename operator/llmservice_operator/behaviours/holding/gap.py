"""Requests are held while a rollout leaves no replica: pure.

It is about services whose requests are held (`zero.py`), for rollouts that end the last ready pod on purpose: Recreate,
and Replace of a single replica. `new` and `old` are pods of the revision that comes and of others.

| the workload has | the cluster lists | activators | slices | the workload |
|-|-|-|-|-|
| the old template | old pods | all can hold, and the status has no gap yet | as they are | waits |
| the old template | old pods | all can hold, not proven yet | made | waits |
| the old template | old pods | all can hold, proven | made | gets the new template |
| the old template | old pods | one cannot hold yet | none | waits |
| the old template | old pods | not proven for PATIENCE seconds | made where all can hold | gets the new template |
| the old template | old pods | none, or slices are refused | none | gets the new template |
| the old template | old pods | not known | as they are | waits |
| the old template | old pods | not known for PATIENCE seconds | as they are | gets the new template |
| the new template | old pods | some | as they were when it was changed | is as asked for |
| the new template | none, or a new pod | any | as by the table of `zero.py` | is as asked for |

Proven is as there, without the look at requests in flight: the pods that go drain. So the slices are there before the
cluster takes the last pod out of its own, and until it lists a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService

from llmservice_operator.behaviours.holding.zero import (
    KIND,
    UNKNOWN,
    addresses_of,
    are_made,
    is_listed,
    problem_of,
    refusals,
    slices_for,
    trial,
)
from llmservice_operator.children import DesiredChild
from llmservice_operator.decision import Event, RolloutStep
from llmservice_operator.inputs import Inputs, value_of
from llmservice_operator.observe.activators import ASK_SECONDS, SPREAD_SECONDS, Reports
from llmservice_operator.revisions.selection import own_workload
from llmservice_operator.workload.port import WorkloadFacts

PATIENCE = 60.0
"""Seconds that a rollout waits until requests can be held."""
WAITING = "The rollout waits until requests can be held: from the end of the last replica on, none answers."
HELD = "Requests are held until a new replica is ready."
LOST = "Requests are lost until a new replica is ready."


@dataclass(frozen=True, slots=True)
class Gap:
    """What follows for one rollout."""

    slices: tuple[DesiredChild, ...] | None = ()
    """As `Zero.slices`."""
    waits: bool = False
    """The workload is not to be changed yet."""
    text: str = ""
    """The value of status.rollout.gap; empty: as it is."""
    is_lost: bool = False
    """Requests that come in the gap are lost."""
    asks: tuple[str, ...] = ()
    """As `Zero.asks`."""

    recheck_after: float | None = None


def gap(inputs: Inputs, port: int | None, step: RolloutStep, label: str) -> Gap | None:
    """By the table above; None: the table of `zero.py` holds alone. `port` is the service's at the activators, and
    `label` the revision that comes."""
    stored, observed = inputs.stored, inputs.observed
    live = None if stored is None else own_workload(stored, observed)
    if stored is None or live is None or stored.spec.paused or not stored.spec.scaling.holds:
        return None
    replicas = stored.spec.scaling.replicas
    if not (replicas and _ends_all(step, replicas)) or not is_listed(observed) or is_listed(observed, label):
        return None
    if not _is_begun(live, step, label):
        return None if step.is_held or step.is_reported_first else _reported_first(_ahead(inputs, port), stored, label)
    if inputs.activators is None:
        return Gap(None, text=_reported(stored, label))
    text = _reported(stored, label) or (HELD if observed.slices else LOST)
    is_kept = bool(inputs.activators and observed.slices)
    return Gap(slices_for(stored, port, inputs.activators) if is_kept and port is not None else (), text=text)


def gap_events(before: Mapping[str, Any], found: Gap | None) -> Iterator[Event]:
    """That requests will be lost is one, before it begins; `before` is the status as it was written last."""
    if found is not None and found.is_lost and (before.get("rollout") or {}).get("gap") != found.text and found.waits:
        yield Event("Warning", Reason.HOLDING_UNAVAILABLE, found.text)


def _ahead(inputs: Inputs, port: int | None) -> Gap:
    """The workload is about to be changed."""
    stored, observed, activators = inputs.stored, inputs.observed, inputs.activators
    assert stored is not None
    if inputs.settings.activator_service is None:
        return _lost("The chart's autoscaling.enabled is false.")
    if activators is None and inputs.unknown_for < PATIENCE:
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
    return _by(reports, port, slices, is_made=are_made(stored, observed, slices))


def _by(reports: Reports, port: int, slices: tuple[DesiredChild, ...], *, is_made: bool) -> Gap:
    found = reports.by_address.values()
    can_hold = all(report.is_listening and not report.problem for report in found)
    are_reached = all(report.is_reachable for report in found)
    if can_hold and is_made and are_reached and reports.made_for >= SPREAD_SECONDS:
        return Gap(slices, text=HELD)
    if reports.asked_for >= PATIENCE:
        why = problem_of(reports, port) or "The activators' slices were not applied in time."
        return _lost(why, slices if can_hold else ())
    # Old replicas serve beside the slices.
    is_tried = are_reached or trial(reports.tried_for)[0]
    return _waiting(slices if can_hold and is_tried else ())


def _waiting(slices: tuple[DesiredChild, ...] | None, asks: tuple[str, ...] = ()) -> Gap:
    return Gap(slices, waits=True, text=WAITING, asks=asks, recheck_after=ASK_SECONDS)


def _lost(why: str, slices: tuple[DesiredChild, ...] | None = ()) -> Gap:
    return Gap(slices, text=f"{LOST} {why}", is_lost=True)


def _reported_first(found: Gap, service: LLMService, label: str) -> Gap:
    """The status reports a gap before there are slices for it: activators forward nothing beside replicas otherwise.
    And a loss before it begins; that stays, whatever activators report meanwhile."""
    if not found.is_lost:
        rollout = service.status.get("rollout") or {}
        is_reported = rollout.get("revision") == label and rollout.get("gap")
        return found if is_reported or not found.slices else replace(_waiting(None), recheck_after=0.0)
    reported = _reported(service, label)
    return replace(found, text=reported) if reported else replace(found, waits=True, recheck_after=0.0)


def _reported(service: LLMService, label: str) -> str:
    """What the status says of the loss in this rollout; empty: nothing."""
    rollout = service.status.get("rollout") or {}
    text = str(rollout.get("gap") or "")
    return text if rollout.get("revision") == label and text.startswith(LOST) else ""


def _ends_all(step: RolloutStep, replicas: int) -> bool:
    return step.strategy == "Recreate" or (step.strategy == "Replace" and replicas == 1)


def _is_begun(live: WorkloadFacts, step: RolloutStep, label: str) -> bool:
    return live.revision == label and live.strategy_in_force() == step.strategy
