"""`llmservice render --for envoy-ai-gateway`: a service behind Envoy AI Gateway (1.0), and limits of its clients.

The AI Gateway reads the model in each request's body, lists the models that it has at `/v1/models`, and counts tokens.
Why limits are no field of an LLMService: docs/decisions/routing.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llmservice_api.constants import HTTP_ROUTE, INFERENCE_POOL
from llmservice_api.errors import InvalidSpec, Problem
from llmservice_api.service import LLMService
from llmservice_operator.manifests.gateway import by_models, models

from llmservice_cli.manifests import Json
from llmservice_cli.render import MODEL_HEADER

ENVOY, AI = "gateway.envoyproxy.io", "aigateway.envoyproxy.io"
_COST = "llm_total_token"


@dataclass(frozen=True, slots=True)
class Limits:
    """Of each client in a minute; None: none."""

    by: str | None
    """The header that names a client."""
    requests: int | None
    tokens: int | None

    def rules(self) -> Iterator[Json]:
        """Of a BackendTrafficPolicy."""
        # Else each name of the service would have a limit of its own.
        clients = {"clientSelectors": [{"headers": [{"name": self.by, "type": "Distinct"}]}], "shared": True}
        if self.requests is not None:
            yield clients | {"limit": {"requests": self.requests, "unit": "Minute"}}
        if self.tokens is not None:
            # Nothing is taken of the budget before the answer says how many tokens it was.
            counted = {"from": "Metadata", "metadata": {"namespace": "io.envoy.ai_gateway", "key": _COST}}
            cost = {"request": {"from": "Number", "number": 0}, "response": counted}
            yield clients | {"limit": {"requests": self.tokens, "unit": "Minute"}, "cost": cost}


def gateway_of(service: LLMService, gateway: str) -> tuple[str, str]:
    """Namespace and name of [NAMESPACE/]NAME."""
    namespace, _, name = gateway.rpartition("/")
    return namespace or service.namespace, name


def behind(service: LLMService, gateway: str, limits: Limits) -> list[Json]:
    """Objects for `kubectl apply`; `gateway` is [NAMESPACE/]NAME. InvalidSpec where the operator makes a route of its
    own."""
    if service.spec.endpoint.gateway is not None:
        message = f"{service.name} has a route of the operator's, of the same name as the AI Gateway's."
        raise InvalidSpec([Problem("spec.endpoint.gateway", message, "Remove it: the AI Gateway makes the route.")])
    namespace, name = gateway_of(service, gateway)

    def made(group: str, version: str, kind: str, **spec: Any) -> Json:
        meta = {"name": service.name, "namespace": service.namespace}
        return {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": meta, "spec": spec}

    objects = []
    if service.spec.routing.has_pool:
        backend = {"group": INFERENCE_POOL.group, "kind": INFERENCE_POOL.kind, "name": service.name}
    else:
        backend = {"name": service.name}
        host = f"{service.name}.{service.namespace}.svc.cluster.local"
        fqdn = {"fqdn": {"hostname": host, "port": service.spec.endpoint.port}}
        to = {"group": ENVOY, "kind": "Backend", "name": service.name}
        objects = [
            made(ENVOY, "v1alpha1", "Backend", endpoints=[fqdn]),
            made(AI, "v1beta1", "AIServiceBackend", schema={"name": "OpenAI"}, backendRef=to),
        ]
    parent = {"group": HTTP_ROUTE.group, "kind": "Gateway", "name": name, "namespace": namespace}
    counted = {"llmRequestCosts": [{"metadataKey": _COST, "type": "TotalToken"}]} if limits.tokens is not None else {}
    # The AI Gateway makes an HTTPRoute of it, one rule of each rule. Its own limit of time is 60 s.
    rules = [
        {"matches": matches, "backendRefs": [backend], "timeouts": {"request": "0s"}}
        for matches in by_models(models(service), MODEL_HEADER)
    ]
    objects.append(made(AI, "v1beta1", "AIGatewayRoute", parentRefs=[parent], rules=rules, **counted))
    if of_clients := [*limits.rules()]:
        route = {"group": HTTP_ROUTE.group, "kind": HTTP_ROUTE.kind, "name": service.name}
        limit = {"type": "Global", "global": {"rules": of_clients}}
        merged = {"targetRefs": [route], "mergeType": "StrategicMerge", "rateLimit": limit}
        objects.append(made(ENVOY, "v1alpha1", "BackendTrafficPolicy", **merged))
    return objects
