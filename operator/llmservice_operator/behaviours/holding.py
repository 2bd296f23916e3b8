"""Whether the last replica may end, and when requests are sent to the activators. Pure.

Applies to a service whose autoscaling may set zero and, with at least one replica, to one with `holding.rollouts`, in
an installation with autoscaling. While the service is paused, or after autoscaling was removed at zero, existing slices
stay until a pod is listed, and the activators refuse with the reason. `requested` is spec.scaling.replicas, or 1 where
minReplicas was raised at zero, `running` are the workload's replicas, `slices` are the operator's EndpointSlices, which
send requests to the activators.

| requested | a pod is listed | activators | running | slices | the workload gets |
|-|-|-|-|-|-|
| 1 or more | yes | any | any | none | what is requested |
| 1 or more | no | some | any | created | what is requested |
| 1 or more | no | none, unknown | any | unchanged | what is requested |
| 0 | any | some | 0 | created | 0; 1 once they reported twice that they cannot hold |
| 0 | no | some | 1 or more | created | 0 once holding is confirmed, until then 1 |
| 0 | yes | some | 1 or more | created once all listen without a problem | 0 once holding is confirmed, until then 1 |
| 0 | no | none, or slices are refused | any | unchanged | 1 |
| 0 | yes | none, or slices are refused | any | none | 1 |
| 0 | any | unknown | any | unchanged | 1 if it has more, else unchanged; reported after a minute |

Confirmed: the slices are as applied, every activator listens on the service's port, reports no problem and was reached
through the ClusterIP, and then each ready pod reports no request in flight. While the activators are not reached,
slices are created for SPREAD_LIMIT_SECONDS at a time only, since a replica serves beside them, with pauses that double
up to LONGEST_TRIAL_PAUSE.

So a service always has a pod or slices, a starting operator changes neither before it knows the activators, and each
step follows from the cache.

While a rollout leaves no replica, requests are held, too: for services with holding and rollouts that end the last
ready pod on purpose, which are Recreate, and Replace of a single replica. `new` and `old` are pods of the new revision
and of others.

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
| the new template | none, or a new pod | any | by the table above | is as desired |

Confirmed is as above, without the check of requests in flight: old pods drain. So slices exist before the cluster
removes the last pod from its own, and until it lists a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmservice_api.holding import Activator, Activators, PortClaim, holds, is_idle, stored_port
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService, cached_by_service, cached_by_spec
from llmservice_api.spec import LLMServiceSpec

from llmservice_operator.children import DesiredChild, applies, may_prune, with_hash
from llmservice_operator.decision import Event, Inputs, Prune, RolloutStep, value_of
from llmservice_operator.facts import normalize
from llmservice_operator.facts.children import HoldingSliceFacts
from llmservice_operator.manifests.children import holding_slices
from llmservice_operator.manifests.meta import Owner
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.activators import ASK_SECONDS, CONFIRM_SECONDS, SPREAD_SECONDS, Reports
from llmservice_operator.observe.observed import Observed, Ownership, ownership
from llmservice_operator.revisions import own_workload, rolled_workload
from llmservice_operator.workload.port import WorkloadFacts

SELDOM_SECONDS, SELDOM_AFTER = 10.0, 60.0
"""Seconds between two questions, once holding has not been confirmed for SELDOM_AFTER seconds: a key that cannot be
read, a stream of an hour."""
LONGEST_TRIAL_PAUSE = 1800.0
"""Longest pause in seconds between two trials of slices with which the activators are not reached."""
SPREAD_LIMIT_SECONDS = 10.0
"""Seconds that a new slice may take to reach every node before the status reports that it does not."""
KIND = HoldingSliceFacts.kind
UNKNOWN = (
    "The activators are not known: the EndpointSlices of their Service cannot be listed. The operator's log has the "
    "API server's answer."
)


@dataclass(frozen=True, slots=True)
class HoldingInputs:
    """Inputs that no watch of the service's own objects brings; None: not read."""

    activators: Activators = None
    unknown_for: float = 0.0
    """Seconds for which the activators have been unknown."""
    claim: PortClaim | None = None
    reports: Reports | None = None
    in_flight: Mapping[str, int] | None = None
    """Requests by pod name, of pods that answered."""


@dataclass(frozen=True, slots=True)
class ScaleToZero:
    replicas: int
    """Replicas of the workload."""
    port: int | None = None
    is_held: bool = False
    """No replica is to run, and requests are held."""
    idle: bool | None = None
    """Whether autoscaling set the requested 0. False: it did, and requests are held until a replica serves."""
    slices: tuple[DesiredChild, ...] | None = ()
    """Desired slices; None: unchanged."""
    problem: str = ""
    """Why a replica runs though none is requested."""
    needs_port: bool = False
    asks: tuple[str, ...] = ()
    """Addresses of the activators whose reports are needed."""
    counts: tuple[tuple[str, str], ...] = ()
    """Names and addresses of the pods whose requests are needed."""
    recheck_after: float | None = None


def scale_to_zero(service: LLMService, observed: Observed, settings: Settings, known: HoldingInputs) -> ScaleToZero:
    """By the first table. `service` is the stored one."""
    scaling = service.spec.scaling
    idle = is_idle(scaling, service.status)
    # A minReplicas that was raised at zero applies without KEDA.
    is_raised = idle and not (scaling.may_be_at_zero or service.spec.paused or service.replicas_stated_by)
    found = _scale_to_zero(with_replicas(service, 1) if is_raised else service, observed, settings, known)
    if scaling.holds or idle:
        return replace(found, idle=idle or None)
    has_ended = found.port is None or is_listed(observed) or not (scaling.replicas or found.slices)
    return replace(found, port=None) if has_ended else replace(found, idle=False if scaling.autoscaling else None)


def _scale_to_zero(service: LLMService, observed: Observed, settings: Settings, known: HoldingInputs) -> ScaleToZero:
    scaling = service.spec.scaling
    replicas = scaling.replicas
    stored, activators = stored_port(service.status), known.activators
    if not holds(scaling, service.status) or settings.activator_service is None:
        return ScaleToZero(replicas, stored if scaling.may_be_at_zero and not replicas else None)
    if service.spec.paused or not (replicas or scaling.holds or scaling.autoscaling):
        # Nothing is started. Activators that get requests answer them with the reason.
        return ScaleToZero(replicas, stored, slices=_remaining_slices(service, observed, stored, activators))
    if not (replicas or scaling.may_be_at_zero):
        return ScaleToZero(replicas, stored)
    if activators is None:
        return _unknown(_unchanged(service, observed, stored), replicas, known.unknown_for)
    if not activators:
        return _without_activators(service, observed, stored, "No activator is ready.")
    if KIND in observed.hidden:
        return _without_activators(
            service, observed, stored, "The operator may not list endpointslices.discovery.k8s.io."
        )
    claim = known.claim if known.claim is not None or stored is None else PortClaim(stored)
    if claim is None or (known.claim is None and replicas and not is_listed(observed)):
        # After Leases were deleted, the stored port may be another service's.
        return replace(_unchanged(service, observed, stored), needs_port=True)
    if claim.port is None:
        found = _without_activators(service, observed, None, f"No port could be allotted: {claim.problem.rstrip('.')}.")
        return replace(found, recheck_after=SELDOM_AFTER)
    return _with_activators(service, observed, claim.port, activators, known)


def _unchanged(service: LLMService, observed: Observed, port: int | None) -> ScaleToZero:
    """The result while the activators or the port are unknown."""
    asked, runs = service.spec.scaling.replicas, _workload_replicas(service, observed)
    replicas = asked or min(runs, 1)
    return ScaleToZero(replicas, port, is_held=not replicas, slices=() if asked and is_listed(observed) else None)


def _unknown(staying: ScaleToZero, asked: int, seconds: float) -> ScaleToZero:
    """Report that the activators are unknown, after the time that a starting operator needs."""
    if asked or not staying.replicas:
        return staying
    if seconds < SELDOM_AFTER:
        return replace(staying, recheck_after=SELDOM_AFTER - seconds)
    return replace(staying, problem=UNKNOWN)


def _without_activators(service: LLMService, observed: Observed, port: int | None, problem: str) -> ScaleToZero:
    """The result without an activator that can hold requests."""
    asked, slices = service.spec.scaling.replicas, () if is_listed(observed) else None
    return ScaleToZero(asked or 1, port, slices=slices, problem="" if asked else problem)


def _with_activators(
    service: LLMService, observed: Observed, port: int, activators: tuple[Activator, ...], known: HoldingInputs
) -> ScaleToZero:
    asked, runs, serves = service.spec.scaling.replicas, _workload_replicas(service, observed), is_listed(observed)
    if asked and serves and runs:
        return ScaleToZero(asked, port)
    slices = slices_for(service, port, activators)
    if asked:
        return ScaleToZero(asked, port, slices=slices)
    without = () if serves else slices
    if refusal := next(refusals(service, observed, slices), ""):
        return ScaleToZero(1, port, slices=without, problem=refusal)
    addresses = addresses_of(activators)
    if not runs:
        return _at_zero(ScaleToZero(0, port, is_held=True, slices=slices, asks=addresses), known.reports)
    if known.reports is None or any(each not in known.reports.by_address for each in addresses):
        return ScaleToZero(1, port, slices=None, asks=addresses, recheck_after=ASK_SECONDS)
    return _scale_down(
        ScaleToZero(1, port, slices=slices), without, runs, observed, known.reports, known.in_flight, service
    )


def _at_zero(resting: ScaleToZero, reports: Reports | None) -> ScaleToZero:
    """The result without a replica. Holding that was confirmed before may fail later, for example if a key's Role is
    revoked."""
    if reports is None:
        return resting
    if reports.unable_for < CONFIRM_SECONDS:
        return replace(resting, recheck_after=reports.due_in)
    return replace(resting, replicas=1, is_held=False, problem=problem_of(reports, resting.port))


def _scale_down(
    staying: ScaleToZero,
    without: tuple[DesiredChild, ...],
    runs: int,
    observed: Observed,
    reports: Reports,
    in_flight: Mapping[str, int] | None,
    service: LLMService,
) -> ScaleToZero:
    """The result while the last replica is about to end; `without` are the slices while it stays."""
    slices = staying.slices or ()
    wait = ASK_SECONDS if reports.asked_for < SELDOM_AFTER else SELDOM_SECONDS
    staying = replace(staying, recheck_after=wait, problem=problem_of(reports, staying.port))
    found = reports.by_address.values()
    if not all(report.is_listening and not report.problem for report in found):
        return replace(staying, slices=without)
    if not are_applied(service, observed, slices) or not all(report.is_reachable for report in found):
        is_tried, change_in = trial_slices(reports.tried_for)
        staying = replace(staying, recheck_after=min(wait, max(change_in, ASK_SECONDS)))
        return staying if is_tried else replace(staying, slices=without)
    is_proven = runs == 1 and reports.made_for >= SPREAD_SECONDS
    return _without_requests(staying, observed, in_flight, reports) if is_proven else staying


def trial_slices(seconds: float) -> tuple[bool, float]:
    """Whether to create slices with which the activators were not reached yet, `seconds` after the first trial; and in
    how many seconds that changes."""
    begins, pause = 0.0, SELDOM_AFTER
    while seconds >= begins + pause:
        begins, pause = begins + pause, min(2 * pause, LONGEST_TRIAL_PAUSE)
    since = seconds - begins
    return since < SPREAD_LIMIT_SECONDS, (SPREAD_LIMIT_SECONDS if since < SPREAD_LIMIT_SECONDS else pause) - since


@cached_by_service
def slices_for(service: LLMService, port: int, activators: tuple[Activator, ...]) -> tuple[DesiredChild, ...]:
    return tuple(with_hash(manifest) for manifest in holding_slices(service, port, activators))


def problem_of(reports: Reports, port: int | None) -> str:
    """Problems that activators report, at once; problems that may only need time, after SPREAD_LIMIT_SECONDS."""
    if stated := next((report.problem for report in reports.by_address.values() if report.problem), ""):
        return stated
    if reports.asked_for < SPREAD_LIMIT_SECONDS:
        return ""
    for address, report in reports.by_address.items():
        if report.unread:
            return f"Activator {address} does not report whether it can hold requests: {report.unread}."
        if not report.is_listening:
            return f"Activator {address} does not listen on port {port}, or its watches lag: its log has the cause."
        if not report.is_reachable:
            return f"Activator {address} is not reached through the service's ClusterIP on port {port}."
    return ""


def _without_requests(
    staying: ScaleToZero, observed: Observed, in_flight: Mapping[str, int] | None, reports: Reports
) -> ScaleToZero:
    """The last check: a request may have reached a pod before the slices reached its client's node."""
    serving = (each for each in observed.replicas if each.ready and not each.is_terminating)
    ready = [pod for each in serving for pod in each.answering]
    addresses = tuple((pod.name, pod.address) for pod in ready if pod.address)
    if addresses and in_flight is None:
        return replace(staying, counts=addresses)
    silent = [pod.name for pod in ready if in_flight is None or pod.name not in in_flight]
    if silent:
        text = f"Pod {silent[0]} does not say how many requests it has in flight."
        return replace(staying, problem=text if reports.asked_for >= SPREAD_LIMIT_SECONDS else "")
    if in_flight is not None and any(in_flight[pod.name] for pod in ready):
        return staying
    return replace(staying, replicas=0, is_held=True, recheck_after=None)


def addresses_of(activators: tuple[Activator, ...]) -> tuple[str, ...]:
    """One address of each activator: with two families, each has both."""
    of_ipv4 = tuple(each.address for each in activators if not each.is_ipv6)
    return of_ipv4 or tuple(each.address for each in activators)


def refusals(service: LLMService, observed: Observed, slices: tuple[DesiredChild, ...]) -> Iterator[str]:
    for each in slices:
        live, refusal = observed.child(*each.id), observed.refused.get(each.id)
        if live is not None and ownership(live, service) is Ownership.FOREIGN:
            yield f"{KIND} {each.id[1]} exists already and is not this service's."
        elif refusal is not None:
            yield f"{KIND} {each.id[1]} cannot be applied: {normalize.replica_failure(refusal.message)}."


def are_applied(service: LLMService, observed: Observed, slices: tuple[DesiredChild, ...]) -> bool:
    live = [observed.child(*each.id) for each in slices]
    are_ours = all(each is not None and ownership(each, service) is Ownership.OURS for each in live)
    return are_ours and next(applies(service, observed, list(slices)), None) is None


def is_listed(observed: Observed, revision: str | None = None) -> bool:
    """Whether the cluster sends requests to a replica that stays, of a revision or of any: by its own slices, or by
    readiness if those may not be listed. Slices may list a terminating pod a moment longer."""
    uids = observed.endpoints
    found = (each for each in observed.replicas if revision in (None, each.revision) and not each.is_terminating)
    return any(each.ready if uids is None else any(pod.uid in uids for pod in each.answering) for each in found)


def _workload_replicas(service: LLMService, observed: Observed) -> int:
    live = own_workload(service, observed)
    return 0 if live is None else live.spec_replicas


def _remaining_slices(
    service: LLMService, observed: Observed, port: int | None, activators: Activators
) -> tuple[DesiredChild, ...] | None:
    """The current slices, with the current activators; None: unchanged."""
    if is_listed(observed) or port is None or not observed.slices:
        return ()
    slices = slices_for(service, port, activators) if activators else None
    return None if slices is None or next(refusals(service, observed, slices), "") else slices


def slices_without_spec(
    owner: Owner, port: int | None, observed: Observed, activators: Activators
) -> tuple[DesiredChild, ...] | None:
    """As `ScaleToZero.slices`, for a spec that cannot be parsed: requests are held as before, by the current
    activators."""
    live = observed.workload
    is_held = bool(observed.slices) or (live is not None and live.spec_replicas > 0)
    if port is None or not activators or not is_held:
        return None
    return tuple(map(with_hash, holding_slices(owner, port, activators)))


def undesired_slices(service: Owner, observed: Observed, slices: tuple[DesiredChild, ...] | None) -> Iterator[Prune]:
    desired = None if slices is None else {each.id for each in slices}
    for live in observed.slices:
        if desired is not None and (live.kind, live.name) not in desired and may_prune(live, service):
            yield Prune(live.kind, live.name, live.uid, "requests go to the replicas")


def with_replicas(service: LLMService, replicas: int) -> LLMService:
    """The service with another number of replicas for its workload than the stored one."""
    if replicas == service.spec.scaling.replicas:
        return service
    return replace(service, spec=_with_replicas(service.spec, replicas))


@cached_by_spec
def _with_replicas(spec: LLMServiceSpec, replicas: int) -> LLMServiceSpec:
    """The same object for the same number: results are cached by its identity."""
    return spec.model_copy(update={"scaling": spec.scaling.model_copy(update={"replicas": replicas})})


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
    """By the second table; None: only the first applies. `port` is the service's at the
    activators, `label` the new revision."""
    stored, observed = inputs.stored, inputs.observed
    live = None if stored is None else rolled_workload(stored, observed, label)
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
