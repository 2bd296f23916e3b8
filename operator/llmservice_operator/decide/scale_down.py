"""Which pods a scale-down is to end: those with the fewest requests in flight.

A ReplicaSet ends pods that are not ready first, then those with the lowest annotation
controller.kubernetes.io/pod-deletion-cost. So only as many ready pods are marked as have to go: a pod that cannot be
read keeps the usual cost of 0, and stays where others can go. Whatever a rollout ends is not chosen here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llmservice_operator.api.service import LLMService
from llmservice_operator.decide.decision import DeletionCost
from llmservice_operator.decide.rollout.selection import own_deployment
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.projections.pods import PodFacts

CHOSEN, USUAL = -1, 0
"""Costs: of a pod that is to go, and of one that nobody marked."""


def addresses(service: LLMService, observed: Observed) -> tuple[tuple[str, str], ...]:
    """(name, IP address) of each pod whose requests are to be counted; empty where no ready pod is chosen."""
    if not _to_go(service, observed):
        return ()
    return tuple((pod.name, pod.address) for pod in _ready(observed) if pod.address)


def deletion_costs(service: LLMService, observed: Observed, in_flight: Mapping[str, int]) -> tuple[DeletionCost, ...]:
    """What is to be written before the Deployment is made smaller: only what differs from what the pods have.

    `in_flight` are the requests of each pod that could be read, by its name.
    """
    number = _to_go(service, observed)
    if not number:
        return ()
    known = [pod for pod in _ready(observed) if pod.name in in_flight]
    chosen = {pod.name for pod in sorted(known, key=lambda pod: (in_flight[pod.name], pod.name))[:number]}
    return tuple(_changes(_ready(observed), chosen))


def _changes(pods: tuple[PodFacts, ...], chosen: set[str]) -> Iterator[DeletionCost]:
    """Our mark on others is of a scale-down that did not come about; other costs are a user's."""
    for pod in pods:
        if pod.name in chosen and pod.deletion_cost != CHOSEN:
            yield DeletionCost(pod.name, pod.uid, CHOSEN)
        elif pod.name not in chosen and pod.deletion_cost == CHOSEN:
            yield DeletionCost(pod.name, pod.uid, USUAL)


def _to_go(service: LLMService, observed: Observed) -> int:
    """Ready pods that the next scale-down ends; 0 where there is none, or where all pods go."""
    live, replicas = own_deployment(service, observed), service.spec.scaling.replicas
    if live is None or not 0 < replicas < live.spec_replicas:
        return 0
    ready, staying = len(_ready(observed)), [pod for pod in observed.pods if not pod.deleting]
    unready = len(staying) - ready
    return max(0, min(ready, live.spec_replicas - replicas - unready))


def _ready(observed: Observed) -> tuple[PodFacts, ...]:
    return tuple(pod for pod in observed.pods if pod.ready and not pod.deleting)
