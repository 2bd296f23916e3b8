"""Where the Service leads while prompts are routed: to the router's pods, and past them while none is ready. Pure.

`mode` is spec.routing.mode with a router's image in the installation; `leads` is what the live Service selects.

| mode | leads | router | then |
|-|-|-|-|
| router | to replicas | none of its pods is ready | its children are made, the Service stays |
| router | to replicas | one is ready | the Service leads to the router |
| router | to the router | one is ready | nothing changes |
| router | to the router | none is ready | EndpointSlices of the operator's lead to the replicas as well |
| none | to the router | any | the Service leads to the replicas |
| none | to replicas | none of them is among its endpoints yet | the EndpointSlices that are there stay |
| none | to replicas | there is one | the Deployment gets no replicas, and the budget is deleted |

The Deployment and NAME-direct stay, without pods: the operator may delete neither kind. So each request finds a pod
that answers, at each step. The router's pods are ready only with a replica: while no replica serves, the activators
alone have ready endpoints.
"""

from __future__ import annotations

from collections import Counter
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
from llmservice_operator.manifests.meta import Manifest, Owner, selector
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.observed import ChildId, Observed, Ownership, ownership
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
    own = _own(service, settings, of_replicas.manifest, _beside_groups(service, observed, of_replicas.manifest))
    if not _has_direct(observed, service):
        own = own[:1]  # without it the router's pods would have no replicas, or another one's
    if leads_there or _is_ready(observed, service):
        leading = with_hash(router.routed(service, of_replicas.manifest))
        made = [leading if child is of_replicas else child for child in made]
    wanted = {child.id for child in own}
    surplus = [live for live in observed.routing if live.kind == BUDGET and (live.kind, live.name) not in wanted]
    return Route(made, own, slices, tuple(_prunes(surplus, service, "one router needs no budget")))


@cached_by_service
def _own(
    service: LLMService, settings: Settings, of_replicas: Manifest, revision: str | None
) -> tuple[DesiredChild, ...]:
    """NAME-direct first: the router's pods look for it at once."""
    made = (router.direct(service, of_replicas, revision), router.deployment(service, settings), router.budget(service))
    return tuple(with_hash(manifest) for manifest in made if manifest is not None)


def _beside_groups(service: LLMService, observed: Observed, of_replicas: Manifest) -> str | None:
    """The revision of the pods for NAME-direct, while the Service selects replicas of one node and pods of groups are
    there; None: all that it selects.

    Workers of a group have the Service's label too, though not its port. The DNS gives their addresses all the same,
    and nobody listens there. No label is on pods of one node alone but that of their revision, which no group shares.
    Of several the one with the most ready pods, so that some are left at each step; where none is ready, all.
    """
    singles = [pod for pod in observed.pods if not pod.group]
    if len(singles) == len(observed.pods) or of_replicas["spec"]["selector"] != selector(service):
        return None
    ready = Counter(pod.revision for pod in singles if pod.ready and not pod.deleting and pod.revision)
    last = next((live.revision for live in observed.workloads if live.nodes == 1), "")
    return max(ready, key=lambda revision: (ready[revision], revision == last, revision), default=None)


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
    """EndpointSlices with the replicas, while the Service leads to a router of which no pod is ready. Those that are
    there stay once it leads to replicas, until one is among its own endpoints: others write these later."""
    endpoint = observed.service
    if endpoint is None or observed.endpoints is None or observed.has_ready_router:
        return ()
    if not endpoint.selects_routers and not observed.past_router:
        return ()
    serving = (each for each in observed.replicas if each.ready and not each.is_terminating)
    pods = [pod for each in serving for pod in each.answering if pod.address]
    if not endpoint.selects_routers:
        is_listed = any(pod.uid in observed.endpoints for pod in pods)
        if is_listed or ownership(endpoint, service) is Ownership.FOREIGN:
            return ()
        led = _led_past(service, observed)
        pods = [pod for pod in pods if pod.address in led]
    elif _has_direct(observed, service):  # without it nothing lists them, and the router has none
        pods = [pod for pod in pods if pod.uid in observed.endpoints]
    return tuple(map(with_hash, router.replica_slices(service, ((pod.address, pod.node) for pod in pods))))


def _led_past(service: Owner, observed: Observed) -> frozenset[str]:
    """Addresses in the live EndpointSlices of `past_router`."""
    lives = (live.live() for live in observed.past_router if may_prune(live, service))
    endpoints = (each for live in lives for each in live.get("endpoints") or ())
    return frozenset(address for each in endpoints for address in each["addresses"])


def unreached(service: Owner, observed: Observed) -> tuple[frozenset[str], str]:
    """Uids of ready pods that get no request, since an EndpointSlice of `past_router` is another's or is not taken, and
    why; empty where there are none."""
    endpoint = observed.service
    if endpoint is None or not endpoint.selects_routers:
        return frozenset(), ""
    led, addresses, why = _led_past(service, observed), set[str](), ""
    for child in past_router(service, observed):
        lacking = {address for each in child.manifest["endpoints"] for address in each["addresses"]} - led
        if lacking and (refusal := _refusal(child.id, service, observed)):
            addresses |= lacking
            why = why or f"No pod of the router is ready, and requests cannot go past it: {refusal}"
    return frozenset(pod.uid for pod in observed.pods if pod.address in addresses), why


def _refusal(child: ChildId, service: Owner, observed: Observed) -> str:
    """Why this one cannot be as desired; empty: nothing is known."""
    (kind, name), live = child, observed.child(*child)
    if live is not None and ownership(live, service) is Ownership.FOREIGN:
        return f"{kind} {name} exists already and is not this service's."
    if (refusal := observed.refused.get(child)) is not None:
        return f"{kind} {name} cannot be applied: {normalize.replica_failure(refusal.message)}."
    if (missed := observed.unanswered.get(child)) is not None:
        return f"{kind} {name} cannot be written: {normalize.replica_failure(missed.message)}."
    return ""


def undesired_past_router(service: Owner, observed: Observed, slices: Sequence[DesiredChild]) -> Iterator[Prune]:
    desired, endpoint = {each.id for each in slices}, observed.service
    left = [live for live in observed.past_router if (live.kind, live.name) not in desired]
    if endpoint is None or not endpoint.selects_routers:
        reason = "the Service leads to the replicas"
    else:
        reason = "requests go to the router" if observed.has_ready_router else "it leads to no replica"
    yield from _prunes(left, service, reason)


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
    if why := unreached(service, observed)[1]:
        text = f"{Reason.NO_ENDPOINTS.summary} {why} {Reason.ROUTER_REFUSED.remedy}"
        return Finding(ConditionStatus.FALSE, Reason.NO_ENDPOINTS, text)
    if refused := next(_refusals(service, observed), ""):
        return _no(Reason.ROUTER_REFUSED, refused)
    endpoint, live = observed.service, _router(observed)
    if endpoint is not None and endpoint.selects_routers:
        if observed.has_ready_router:
            return _of_pods(service, live)
        if not observed.endpoints:
            return Finding(ConditionStatus.UNKNOWN, Reason.PROGRESSING, "No replica serves, to which to route.")
        failure = live.replica_failure if live is not None else None
        return _no(Reason.ROUTER_NOT_READY, failure or "")
    if live is not None and (live.replica_failure is not None or live.deadline_exceeded) and observed.endpoints:
        return _no(Reason.ROUTER_NOT_READY, live.replica_failure or live.deadline_message)
    return Finding(ConditionStatus.UNKNOWN, Reason.PROGRESSING, "No pod of the router is ready yet.")


def _of_pods(service: LLMService, live: DeploymentFacts | None) -> Finding:
    """While some pod of the router takes the requests: whether all are as asked for, and else which of them route."""
    is_asked = live is not None and router.has_policy(live.live()["spec"], service.spec.routing.policy)
    if live is None or not is_asked or 0 < live.observed_generation < live.generation:
        return _routing(_PAUSED if service.spec.paused and not is_asked else _REPLACED)
    why = live.replica_failure or (live.deadline_message if live.deadline_exceeded else "")
    why = f"others do not come: {why.rstrip('.')}." if why else ""
    if earlier := max(0, live.replicas - live.updated):
        serving = min(earlier, live.ready)
        pods = f"Earlier ones that serve: {serving}, new ones: {live.ready - serving}"
        return _no(Reason.ROUTER_OUTDATED, f"{pods}; {why}") if why else _routing(_REPLACED)
    if why and live.ready < live.spec_replicas:
        return _routing(f"{live.ready} of {live.spec_replicas} are ready; {why} {Reason.ROUTER_OUTDATED.remedy}")
    return _routing()


_REPLACED = "They are being replaced; until then earlier ones route as they were made to."
_PAUSED = "They are not changed while spec.paused is true."


def _routing(more: str = "") -> Finding:
    return Finding(ConditionStatus.TRUE, Reason.ROUTING, f"{Reason.ROUTING.summary} {more}".strip())


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
