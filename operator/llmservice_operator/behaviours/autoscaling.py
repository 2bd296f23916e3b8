"""The condition Autoscaled, and which pods a scale-down ends: those with the fewest requests in flight.

A ReplicaSet deletes unready pods first, then those with the lowest annotation
controller.kubernetes.io/pod-deletion-cost. Only as many ready pods are marked as have to go: a pod that cannot be read
keeps the default cost of 0, and stays if others can go. Pods that a rollout ends are not chosen here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llmservice_api.conditions import ConditionStatus, ConditionType
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService
from llmservice_planner.room import Amounts, requests_of

from llmservice_operator.decision import DeletionCost, Inputs, Requirements
from llmservice_operator.facts import normalize
from llmservice_operator.facts.children import KedaCondition, ScaledObjectFacts
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.children import why_no_scaled_object
from llmservice_operator.observe.observed import Observed, Ownership, Refusal, ownership
from llmservice_operator.observe.verdict import Finding
from llmservice_operator.revisions import own_workload

KIND = ScaledObjectFacts.kind
MANAGED_ALREADY = "already managed by"
"""Part of each refusal of KEDA's admission webhook because of another autoscaler."""
SEVERAL_SELECT = "AmbiguousSelector"
"""An HPA's reason where another one scales the same pods."""
CHOSEN_COST, DEFAULT_COST = -1, 0
"""Costs of a chosen pod, and of an unmarked one."""
_TRUE, _FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


def autoscaled(
    service: LLMService, inputs: Inputs, holding_problem: str, *, is_accepted: bool
) -> Finding | Requirements | None:
    """The condition; None where the spec has no autoscaling. `holding_problem` is `ScaleToZero.problem`; `is_accepted`:
    whether the spec is applied, so that quotas matter."""
    if service.spec.scaling.autoscaling is None:
        return None
    if (wrong := next(_findings(service, inputs, holding_problem), None)) is not None:
        return wrong
    beyond = _of_quotas(service, inputs) if is_accepted else _of_quotas_before(service)
    return beyond or Finding(_TRUE, Reason.AUTOSCALING, Reason.AUTOSCALING.summary)


def _of_quotas(service: LLMService, inputs: Inputs) -> Finding | Requirements | None:
    """The finding about a quota below maxReplicas, or None. While quotas are unknown, the stored finding stays.

    Quotas are read once in each generation in which KEDA scales the service (its changes of replicas are generations
    too), and repeatedly while a quota is below maxReplicas.
    """
    assert service.spec.scaling.autoscaling is not None
    most, reason = service.spec.scaling.autoscaling.highest_maximum, Reason.QUOTA_BELOW_MAXIMUM
    said, per_replica = _stored(service), _per_replica(service, inputs)
    is_known = said.get("reason") == Reason.AUTOSCALING and said.get("observedGeneration") == service.generation
    if is_known or per_replica is None:
        return _of_quotas_before(service)
    if inputs.quotas is None:
        return Requirements(quotas=True)
    known = inputs.quotas.value
    if known is None:
        return _of_quotas_before(service)
    admitted = known.admitted(per_replica)
    if admitted is None or admitted.replicas >= most:
        return None
    text = f"ResourceQuota {admitted.quota} admits {admitted.replicas} of {most} replicas, by its {admitted.key}."
    return Finding(_TRUE, reason, f"{reason.summary} {text} {reason.remedy}")


def _of_quotas_before(service: LLMService) -> Finding | None:
    """The stored finding."""
    said, reason = _stored(service), Reason.QUOTA_BELOW_MAXIMUM
    return Finding(_TRUE, reason, str(said.get("message", ""))) if said.get("reason") == reason else None


def _per_replica(service: LLMService, inputs: Inputs) -> Amounts | None:
    """Resource requests of one replica; None without a workload."""
    live = own_workload(service, inputs.observed)
    if live is None:
        return None
    requests = requests_of(live.template().get("spec") or {})
    return {name: each * live.nodes for name, each in requests.items()}


def _stored(service: LLMService) -> Mapping[str, Any]:
    """The stored condition, or an empty mapping."""
    conditions: Iterable[Mapping[str, Any]] = service.status.get("conditions") or ()
    return next((each for each in conditions if each.get("type") == ConditionType.AUTOSCALED), {})


def _findings(service: LLMService, inputs: Inputs, holding_problem: str) -> Iterator[Finding]:
    """Problems, from the installation to KEDA's conditions."""
    why = why_no_scaled_object(service, inputs.settings)
    if why is Reason.REPLICAS_STATED:
        yield _no(why, f"{why.summary} It is stated by: {service.replicas_stated_by}.")
    elif why is Reason.SCALED_TO_ZERO:
        yield _no(why, f"{why.summary} Autoscaling goes on once it is 1 or more.")
    elif why is not None:
        yield _no(why, why.summary)
    if holding_problem:
        yield _no(Reason.HOLDING_UNAVAILABLE, f"{Reason.HOLDING_UNAVAILABLE.summary} {holding_problem}")
    yield from _of_object(service, inputs.observed)


def _of_object(service: LLMService, observed: Observed) -> Iterator[Finding]:
    if KIND in observed.hidden:
        yield _no(Reason.KEDA_MISSING, Reason.KEDA_MISSING.summary)
    refusal = observed.refused.get((KIND, service.name))
    if refusal is not None:
        yield _refused(service, refusal)
    live = observed.child(KIND, service.name)
    if not isinstance(live, ScaledObjectFacts):
        yield Finding(ConditionStatus.UNKNOWN, Reason.PROGRESSING, f"{KIND} {service.name} is yet to be made.")
        return
    whose = ownership(live, service)
    if whose is Ownership.FOREIGN:
        text = f"{KIND} {service.name} exists already and is not this service's."
        yield _no(Reason.AUTOSCALER_CONFLICT, f"{Reason.AUTOSCALER_CONFLICT.summary} {text}")
    if whose is Ownership.LEAVING:
        text = f"An earlier {KIND} {service.name} is being deleted, for which KEDA's operator has to run."
        yield Finding(ConditionStatus.UNKNOWN, Reason.KEDA_MISSING, text)
    yield from _of_keda(live.conditions)


def _of_keda(conditions: Mapping[str, KedaCondition]) -> Iterator[Finding]:
    """Problems in KEDA's conditions of the ScaledObject."""
    none = KedaCondition("", "", "")
    ready, fallback, hpa, paused = (conditions.get(each, none) for each in ("Ready", "Fallback", "HPAActive", "Paused"))
    conflict, unavailable = Reason.AUTOSCALER_CONFLICT, Reason.SCALER_UNAVAILABLE
    if paused.status == _TRUE:
        yield _no(conflict, f"{conflict.summary} An annotation autoscaling.keda.sh/paused stands on the {KIND}.")
    if hpa.status == _FALSE and hpa.reason == SEVERAL_SELECT:
        yield _no(conflict, f"{conflict.summary} Another HorizontalPodAutoscaler selects the same pods.")
    if ready.status == _FALSE:
        yield _no(unavailable, f"{unavailable.summary} KEDA says ({ready.reason}): {ready.message}")
    if fallback.status == _TRUE:
        yield _no(unavailable, f"{unavailable.summary} KEDA uses the fallback of the {KIND}.")
    if hpa.status == _FALSE:
        yield _no(unavailable, f"{unavailable.summary} Its HorizontalPodAutoscaler does not scale: {hpa.reason}.")
    if ready.status != _TRUE:
        text = f"KEDA has not taken the {KIND} up yet. If this stays, see that KEDA's operator runs."
        yield Finding(ConditionStatus.UNKNOWN, Reason.KEDA_MISSING, text)


def _refused(service: LLMService, refusal: Refusal) -> Finding:
    said = normalize.replica_failure(refusal.message)
    is_conflict = MANAGED_ALREADY in refusal.message or refusal.code == 409
    reason = Reason.AUTOSCALER_CONFLICT if is_conflict else Reason.KEDA_MISSING
    return _no(reason, f"{KIND} {service.name} cannot be applied: {said}")


def _no(reason: Reason, message: str) -> Finding:
    return Finding(_FALSE, reason, f"{message.rstrip('.')}. {reason.remedy}")


def pods_to_count(service: LLMService, observed: Observed) -> tuple[tuple[str, str], ...]:
    """(name, IP address) of each pod whose requests are to be counted; empty where no ready pod has to be chosen."""
    if not _surplus_replicas(service, observed):
        return ()
    return tuple((pod.name, pod.address) for pod in _ready(observed) if pod.address)


def deletion_costs(service: LLMService, observed: Observed, in_flight: Mapping[str, int]) -> tuple[DeletionCost, ...]:
    """Deletion costs to write before the workload is scaled down: only those that change.

    `in_flight` has the requests of each pod that could be read, by name.
    """
    number = _surplus_replicas(service, observed)
    if not number:
        return ()
    known = [pod for pod in _ready(observed) if pod.name in in_flight]
    chosen = {pod.name for pod in sorted(known, key=lambda pod: (in_flight[pod.name], pod.name))[:number]}
    return tuple(_changes(_ready(observed), chosen))


def _changes(pods: tuple[PodFacts, ...], chosen: set[str]) -> Iterator[DeletionCost]:
    """Marks on other pods are reset: they are of a scale-down that did not happen. Costs set by users stay."""
    for pod in pods:
        if pod.name in chosen and pod.deletion_cost != CHOSEN_COST:
            yield DeletionCost(pod.name, pod.uid, CHOSEN_COST)
        elif pod.name not in chosen and pod.deletion_cost == CHOSEN_COST:
            yield DeletionCost(pod.name, pod.uid, DEFAULT_COST)


def _surplus_replicas(service: LLMService, observed: Observed) -> int:
    """Ready replicas that the next scale-down ends; 0 where none or all of them go."""
    live, replicas = own_workload(service, observed), service.spec.scaling.replicas
    if live is None or live.nodes > 1 or not 0 < replicas < live.spec_replicas:  # of groups the last ones go
        return 0
    ready, staying = len(_ready(observed)), [each for each in observed.replicas if not each.is_terminating]
    unready = len(staying) - ready
    return max(0, min(ready, live.spec_replicas - replicas - unready))


def _ready(observed: Observed) -> tuple[PodFacts, ...]:
    """For each ready replica the pod that gets its requests."""
    return tuple(each.first for each in observed.replicas if each.ready and not each.is_terminating)
