"""Where a Gateway's requests go, and what its controller says of the route. Pure.

With a pool the HTTPRoute leads to it while it is there and some replica serves, and to the Service otherwise: an
endpoint picker has nobody to choose then. So it does while the service is paused or its spec cannot be read. A pool
goes after the route no longer leads to it.

A route by names keeps those that it has while pods of another revision serve: these pods know them. While an edit is
held, it gets no others than those of the revision that runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmservice_api.conditions import ConditionStatus
from llmservice_api.constants import HTTP_ROUTE, INFERENCE_POOL
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService

from llmservice_operator.children import DesiredChild, apply_of, with_hash
from llmservice_operator.decision import Apply, Prune
from llmservice_operator.facts import normalize
from llmservice_operator.facts.routes import ANY, HTTPRouteFacts, InferencePoolFacts, ParentStatus, is_taken
from llmservice_operator.manifests import gateway
from llmservice_operator.manifests.meta import Manifest, Owner
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.observed import Observed, Ownership, ownership
from llmservice_operator.observe.verdict import Finding

_FULL = (
    f"has {gateway.MOST_NAMES} names of models, the most that a route may have, so that further names of an "
    "earlier revision, whose pods still serve, lead nowhere. That ends with the rollout; rename fewer at a time."
)
_FALSE, _UNKNOWN, _TRUE = ConditionStatus.FALSE, ConditionStatus.UNKNOWN, ConditionStatus.TRUE


def with_route(
    service: LLMService, observed: Observed, made: list[DesiredChild], revision: str | None
) -> list[DesiredChild]:
    """The children `made`, with the HTTPRoute as it is to lead, first: it leaves a pool before the last replica goes.
    `revision`: the one that is rolled out; None: an edit is held."""
    routes = [child for child in made if child.id[0] == HTTP_ROUTE.kind]
    leading = [with_hash(_leading(service, observed, child.manifest, revision)) for child in routes]
    return [*leading, *(child for child in made if child not in routes)]


def _leading(service: LLMService, observed: Observed, made: Manifest, revision: str | None) -> Manifest:
    live, models = _route(service, observed), gateway.models_of(made)
    if models is not None:
        if revision is None:
            known = _known(service, live)
            kept = [name for name in models if name in known]
            made = gateway.with_models(made, [*kept, *sorted(known.difference(kept))]) if known else made
        elif live is not None and any(pod.revision != revision for pod in observed.pods):
            made = gateway.with_models(made, [*models, *sorted(live.models - {ANY})])
    return gateway.leading(made, gateway.to_pool(service)) if leads_to_pool(service, observed) else made


def _known(service: LLMService, live: HTTPRouteFacts | None) -> frozenset[str]:
    """Names that pods know while an edit is held: what the route has, and what the status says of the revision that
    runs. Its adapters are there once they are loaded."""
    served = (service.status.get("endpoint") or {}).get("modelNames") or ()
    return frozenset(served) | (live.models - {ANY} if live is not None else frozenset())


def leads_to_pool(service: LLMService, observed: Observed) -> bool:
    is_asked = service.spec.routing.has_pool and service.spec.scaling.replicas > 0
    return is_asked and _has_choice(service, observed)


def move_route(service: Owner, observed: Observed) -> Iterator[Apply]:
    """Lead the live HTTPRoute to the pool, or past it, where nothing else of the service may change."""
    live, endpoint = _route(service, observed), observed.service
    if live is None or endpoint is None or ownership(endpoint, service) is not Ownership.OURS:
        return
    is_to_pool = _has_choice(service, observed)
    if live.leads_to_pool is is_to_pool:
        return
    port = endpoint.live()["spec"]["ports"][0]["port"]
    backend = gateway.to_pool(service) if is_to_pool else gateway.to_service(service, port)
    moved = with_hash(gateway.leading(gateway.with_spec(service, live.live()["spec"]), backend))
    if (apply := apply_of(moved, service, observed)) is not None:
        yield apply


def _has_choice(service: Owner, observed: Observed) -> bool:
    """Whether a picker has somebody to choose. Of a group over several nodes it would choose pods that answer
    nothing."""
    pool = observed.child(INFERENCE_POOL.kind, service.name)
    if pool is None or ownership(pool, service) is not Ownership.OURS or any(pod.group for pod in observed.pods):
        return False
    ready = [pod.uid for each in observed.replicas if each.ready and not each.is_terminating for pod in each.answering]
    return any(observed.endpoints is None or uid in observed.endpoints for uid in ready)


def _route(service: Owner, observed: Observed) -> HTTPRouteFacts | None:
    live = observed.child(HTTP_ROUTE.kind, service.name)
    is_ours = isinstance(live, HTTPRouteFacts) and ownership(live, service) is Ownership.OURS
    return live if is_ours else None  # type: ignore[return-value]  # mypy does not follow is_ours


def without_pool_in_use(service: LLMService, observed: Observed, prune: Iterator[Prune]) -> Iterator[Prune]:
    """Not the pool, while the route still leads there."""
    live = _route(service, observed)
    is_used = live is not None and live.leads_to_pool
    yield from (each for each in prune if not (is_used and each.kind == INFERENCE_POOL.kind))


def gateway_ready(service: LLMService, observed: Observed, settings: Settings) -> Finding | None:
    """The condition RoutingReady as far as it is a Gateway's; None where the spec asks for none."""
    wants_route, wants_pool = service.spec.endpoint.gateway is not None, service.spec.routing.has_pool
    if not (wants_route or wants_pool):
        return None
    if not settings.has_gateways:
        return _no(Reason.GATEWAY_DISABLED)
    kinds = [*([INFERENCE_POOL.kind] if wants_pool else []), *([HTTP_ROUTE.kind] if wants_route else [])]
    if problem := next(_problems(service, observed, kinds), None):
        return problem
    named = ", ".join(sorted({said.gateway for said in _said(service, observed, kinds[-1])}))
    return Finding(_TRUE, Reason.ATTACHED, f"{Reason.ATTACHED.summary} It is {named}.")


def _problems(service: LLMService, observed: Observed, kinds: list[str]) -> Iterator[Finding]:
    for kind in kinds:
        if kind in observed.hidden:
            yield _no(Reason.GATEWAY_API_MISSING, f"It is {kind}.")
        refusal = observed.refused.get((kind, service.name))
        if refusal is not None:
            reason = Reason.ROUTE_TAKEN if is_taken(refusal.message) else Reason.ROUTE_REFUSED
            said = refusal.message if is_taken(refusal.message) else normalize.replica_failure(refusal.message)
            yield _no(reason, f"{kind} {service.name} cannot be applied as it is asked for: {said}.")
        live = observed.child(kind, service.name)
        if live is None:
            yield Finding(_UNKNOWN, Reason.PROGRESSING, f"{kind} {service.name} is yet to be made.")
        elif ownership(live, service) is Ownership.FOREIGN:
            yield _no(Reason.ROUTE_REFUSED, f"{kind} {service.name} exists already and is not this service's.")
        if isinstance(live, HTTPRouteFacts) and len(live.models) >= gateway.MOST_NAMES:
            yield _no(Reason.ROUTE_REFUSED, f"{kind} {service.name} {_FULL}")
    for kind in kinds:
        # Of a pool that no route leads to, controllers say nothing.
        is_resting = HTTP_ROUTE.kind in kinds and not leads_to_pool(service, observed)
        if kind == HTTP_ROUTE.kind or not is_resting:
            yield from _of_controllers(service, kind, _said(service, observed, kind))


def _said(service: LLMService, observed: Observed, kind: str) -> list[ParentStatus]:
    """What the controller of the Gateway says that the spec names; of a pool alone, what any says."""
    live, named = observed.child(kind, service.name), service.spec.endpoint.gateway
    said = live.parents if isinstance(live, HTTPRouteFacts | InferencePoolFacts) else ()
    if named is None:
        return list(said)
    asked = f"{named.ref.namespace or service.namespace}/{named.ref.name}"
    return [each for each in said if each.gateway == asked]


def _of_controllers(service: LLMService, kind: str, said: list[ParentStatus]) -> Iterator[Finding]:
    for each in said:
        if (each.status == _TRUE) is (each.type == "PartiallyInvalid"):
            status = _UNKNOWN if each.status not in (_TRUE, _FALSE) else _FALSE
            text = f"Gateway {each.gateway} says of {kind} {service.name}: {each.type}={each.status} ({each.reason})"
            yield _no(Reason.ROUTE_NOT_ACCEPTED, f"{text}: {each.message.rstrip('.')}.", status)
    if missing := {"Accepted", "ResolvedRefs"} - {each.type for each in said}:
        text = f"No Gateway's controller has said {' and '.join(sorted(missing))} of {kind} {service.name} yet."
        yield _no(Reason.ROUTE_NOT_ACCEPTED, text, _UNKNOWN)


def _no(reason: Reason, message: str = "", status: ConditionStatus = _FALSE) -> Finding:
    return Finding(status, reason, " ".join(filter(None, (reason.summary, message, reason.remedy))))
