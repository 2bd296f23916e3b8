"""Where the Service leads while prompts are routed: to the router's pods, and past them while none is ready. Pure.

`mode` is spec.routing.mode with a router's image in the installation; `leads` is what the live Service selects.

| mode | leads | router | then |
|-|-|-|-|
| router | to replicas | none of its pods is ready | its children are made, the Service stays |
| router | to replicas | one is ready | the Service leads to the router |
| router | to the router | one is ready | nothing changes |
| router | to the router | none is ready | EndpointSlices of the operator's lead to the replicas as well |
| none | to the router | any | the Service leads to the replicas |
| none | to replicas | there is one | the Deployment gets no replicas, and the budget is deleted |

The Deployment and NAME-direct stay, without pods: the operator may delete neither kind. So each request finds a pod
that answers, at each step. The router's pods are ready only with a replica: while no replica serves, the activators
alone have ready endpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llmservice_api.conditions import ConditionStatus
from llmservice_api.constants import direct_name
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService, cached_by_service

from llmservice_operator.children import RETRY_SECONDS, DesiredChild, apply_of, may_prune, with_hash
from llmservice_operator.decision import Apply, Prune
from llmservice_operator.facts import normalize
from llmservice_operator.facts.children import ChildFacts, HoldingSliceFacts
from llmservice_operator.manifests import router
from llmservice_operator.manifests.meta import Manifest, Owner
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.observed import Observed, Ownership, ownership
from llmservice_operator.observe.verdict import Finding
from llmservice_operator.workload.deployment import DeploymentFacts

KIND = HoldingSliceFacts.kind
BUDGET = "PodDisruptionBudget"


@dataclass(frozen=True, slots=True)
class Route:
    made: list[DesiredChild]
    """The children, with the Service as it is to lead."""
    own: tuple[DesiredChild, ...] = ()
    """The router's own; their refusal stops nothing."""
    slices: tuple[DesiredChild, ...] = ()
    """That lead past the router."""
    prune: tuple[Prune, ...] = ()

    def applies(self, service: LLMService, observed: Observed) -> Iterator[Apply]:
        """Of the router's own children that differ from what is desired."""
        for child in self.own:
            if child.id not in observed.refused and (found := apply_of(child, service, observed)) is not None:
                yield replace(found, is_optional=True, retry_after=RETRY_SECONDS)


def is_routed(service: LLMService, settings: Settings) -> bool:
    return service.spec.routing.has_router and settings.router_image is not None


def route(service: LLMService, observed: Observed, settings: Settings, made: list[DesiredChild]) -> Route:
    """By the table; `made` has the Service as it leads to the replicas."""
    leads_there = observed.service is not None and observed.service.selects_routers
    slices = past_router(service, observed)
    of_replicas = next((child for child in made if child.id == ("Service", service.name)), None)
    if of_replicas is None:
        return Route(made, slices=slices)
    if not is_routed(service, settings):
        if leads_there:
            return Route(made, slices=slices)
        budgets = [live for live in observed.routing if live.kind == BUDGET]
        ended = _prunes(budgets, service, "spec.routing no longer asks for it")
        return Route(made, tuple(_without_pods(service, observed)), slices, tuple(ended))
    own = _own(service, settings, of_replicas.manifest)
    if not _has_direct(observed, service):
        own = own[:1]  # without it the router's pods would have no replicas, or another one's
    if leads_there or _is_ready(observed, service):
        leading = with_hash(router.routed(service, of_replicas.manifest))
        made = [leading if child is of_replicas else child for child in made]
    wanted = {child.id for child in own}
    surplus = [live for live in observed.routing if live.kind == BUDGET and (live.kind, live.name) not in wanted]
    return Route(made, own, slices, tuple(_prunes(surplus, service, "one router needs no budget")))


@cached_by_service
def _own(service: LLMService, settings: Settings, of_replicas: Manifest) -> tuple[DesiredChild, ...]:
    """NAME-direct first: the router's pods look for it at once."""
    made = (router.direct(service, of_replicas), router.deployment(service, settings), router.budget(service))
    return tuple(with_hash(manifest) for manifest in made if manifest is not None)


def _router(observed: Observed) -> DeploymentFacts | None:
    return next((live for live in observed.routing if isinstance(live, DeploymentFacts)), None)


def _is_ready(observed: Observed, service: LLMService) -> bool:
    """A router's pod can take the requests, and the operator sees when it no longer can."""
    live = _router(observed)
    is_ours = live is not None and ownership(live, service) is Ownership.OURS and _has_direct(observed, service)
    return is_ours and live is not None and live.ready > 0 and KIND not in observed.hidden


def _has_direct(observed: Observed, service: Owner) -> bool:
    """NAME-direct is this service's."""
    name = direct_name(service.name)
    return any(live.name == name and ownership(live, service) is Ownership.OURS for live in observed.routing)


def past_router(service: Owner, observed: Observed) -> tuple[DesiredChild, ...]:
    """EndpointSlices with the replicas, while the Service leads to a router of which no pod is ready."""
    endpoint = observed.service
    if endpoint is None or not endpoint.selects_routers or observed.has_ready_router or observed.endpoints is None:
        return ()
    serving = (each for each in observed.replicas if each.ready and not each.is_terminating)
    # Without NAME-direct nothing lists them, and the router has none.
    listed = observed.endpoints if _has_direct(observed, service) else None
    pods = (pod for each in serving for pod in each.answering if pod.address and (listed is None or pod.uid in listed))
    found = ((pod.address, pod.node) for pod in pods)
    return tuple(map(with_hash, router.replica_slices(service, found)))


def undesired_past_router(service: Owner, observed: Observed, slices: Sequence[DesiredChild]) -> Iterator[Prune]:
    desired = {each.id for each in slices}
    left = [live for live in observed.past_router if (live.kind, live.name) not in desired]
    yield from _prunes(left, service, "requests go to the router")


def _without_pods(service: LLMService, observed: Observed) -> Iterator[DesiredChild]:
    """The router's Deployment as it is, with no replicas. Its pods drain, and find replicas by NAME-direct."""
    live = _router(observed)
    if live is None or not live.spec_replicas or not may_prune(live, service):
        return
    ready = [pod for each in observed.replicas if each.ready for pod in each.answering]
    if ready and observed.endpoints is not None and not any(pod.uid in observed.endpoints for pod in ready):
        return  # the Service's own endpoints are the router's still
    if spec := live.live()["spec"]:
        yield with_hash(router.ended(service, spec))


def _prunes(children: Sequence[ChildFacts], service: Owner, reason: str) -> Iterator[Prune]:
    for live in children:
        if may_prune(live, service):
            yield Prune(live.kind, live.name, live.uid, reason)


def routing_ready(service: LLMService, observed: Observed, settings: Settings) -> Finding | None:
    """The condition; None where the spec asks for no router."""
    if not service.spec.routing.has_router:
        return None
    if settings.router_image is None:
        return _no(Reason.ROUTING_DISABLED)
    if KIND in observed.hidden:
        return _no(Reason.ROUTER_REFUSED, "The operator may not list endpointslices.discovery.k8s.io.")
    if refused := next(_refusals(service, observed), ""):
        return _no(Reason.ROUTER_REFUSED, refused)
    endpoint, live = observed.service, _router(observed)
    if endpoint is not None and endpoint.selects_routers:
        if observed.has_ready_router:
            return Finding(ConditionStatus.TRUE, Reason.ROUTING, Reason.ROUTING.summary)
        if not observed.endpoints:
            return Finding(ConditionStatus.UNKNOWN, Reason.PROGRESSING, "No replica serves, to which to route.")
        failure = live.replica_failure if live is not None else None
        return _no(Reason.ROUTER_NOT_READY, failure or "")
    if live is not None and (live.replica_failure is not None or live.deadline_exceeded) and observed.endpoints:
        return _no(Reason.ROUTER_NOT_READY, live.replica_failure or live.deadline_message)
    return Finding(ConditionStatus.UNKNOWN, Reason.PROGRESSING, "No pod of the router is ready yet.")


def _refusals(service: LLMService, observed: Observed) -> Iterator[str]:
    for live in observed.routing:
        if ownership(live, service) is Ownership.FOREIGN:
            yield f"{live.kind} {live.name} exists already and is not this service's."
    ours = router.children(service.name)
    for (kind, name), refusal in sorted(observed.refused.items()):
        if (kind, name) in ours:
            yield f"{kind} {name} cannot be applied: {normalize.replica_failure(refusal.message)}."


def _no(reason: Reason, message: str = "") -> Finding:
    return Finding(ConditionStatus.FALSE, reason, " ".join(filter(None, (reason.summary, message, reason.remedy))))
