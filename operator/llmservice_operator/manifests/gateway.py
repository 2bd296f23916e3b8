"""Children of a service that a Gateway reaches: the HTTPRoute and, for an endpoint picker, the InferencePool.

Each field that the API server would fill in is given, so that nothing differs afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from llmservice_api.constants import HTTP_ROUTE, INFERENCE_POOL, endpoint_picker_name
from llmservice_api.service import LLMService
from llmservice_runtime.contract import HTTP_PORT

from llmservice_operator.manifests.meta import Manifest, Owner, metadata, selector
from llmservice_operator.manifests.settings import Settings

PATH = "/v1"
"""What a Gateway publishes: neither metrics nor what vLLM has besides the OpenAI API."""
_OF_A_RULE, MOST_NAMES = 64, 128
"""Most matches of a rule, and of a route (Gateway API)."""


def picker_name(llm: LLMService) -> str:
    """Of the endpoint picker's Service."""
    return llm.spec.routing.endpoint_picker.name or endpoint_picker_name(llm.name)


def pool(llm: LLMService, settings: Settings) -> Manifest | None:
    """The InferencePool NAME: the replicas, and who chooses among them; None where the spec asks for none."""
    if not (llm.spec.routing.has_pool and settings.has_gateways):
        return None
    return {
        "apiVersion": INFERENCE_POOL.api_version,
        "kind": INFERENCE_POOL.kind,
        "metadata": metadata(llm, llm.name),
        # No appProtocol: the inference extension knows it from 1.4 on only.
        "spec": {
            "selector": {"matchLabels": selector(llm)},
            "targetPorts": [{"number": HTTP_PORT}],
            "endpointPickerRef": {
                "group": "",
                "kind": "Service",
                "name": picker_name(llm),
                "port": {"number": llm.spec.routing.endpoint_picker.port},
                # Without an answer of the picker any replica is better than none.
                "failureMode": "FailOpen",
            },
        },
    }


def route(llm: LLMService, settings: Settings) -> Manifest | None:
    """The HTTPRoute NAME, leading to the Service; None where the spec names no Gateway."""
    gateway = llm.spec.endpoint.gateway
    if gateway is None or not settings.has_gateways:
        return None
    parent = {
        "group": HTTP_ROUTE.group,
        "kind": "Gateway",
        "name": gateway.ref.name,
        "namespace": gateway.ref.namespace or llm.namespace,
        **({} if gateway.ref.section_name is None else {"sectionName": gateway.ref.section_name}),
    }
    service = to_service(llm, llm.spec.endpoint.port)
    spec = {
        "parentRefs": [parent],
        **({"hostnames": list(gateway.hostnames)} if gateway.hostnames else {}),
        "rules": _rules(models(llm) if gateway.by_model else None, settings.model_header, service),
    }
    return with_spec(llm, spec)


def with_spec(llm: Owner, spec: Manifest) -> Manifest:
    """The HTTPRoute NAME with this spec."""
    meta = metadata(llm, llm.name)
    return {"apiVersion": HTTP_ROUTE.api_version, "kind": HTTP_ROUTE.kind, "metadata": meta, "spec": spec}


def models(llm: LLMService) -> list[str]:
    """Names by which clients ask for the service and its adapters."""
    return [*llm.served_model_names, *(adapter.name for adapter in llm.spec.adapters)]


def by_models(names: Iterable[str], header: str) -> list[list[Manifest]]:
    """Matches of these names in the header, in as many rules as they need."""
    every = [{"headers": [{"type": "Exact", "name": header, "value": name}]} for name in dict.fromkeys(names)]
    return [every[start : start + _OF_A_RULE] for start in range(0, min(len(every), MOST_NAMES), _OF_A_RULE)]


def _rules(names: Iterable[str] | None, header: str, backend: Manifest) -> list[Manifest]:
    """By these names in the header; None: one rule for all requests."""
    path: Manifest = {"path": {"type": "PathPrefix", "value": PATH}}
    every = [[path]] if names is None else [[path | each for each in rule] for rule in by_models(names, header)]
    # A Gateway's own limit, often 15 s, would cut streams.
    return [{"matches": matches, "backendRefs": [backend], "timeouts": {"request": "0s"}} for matches in every]


def models_of(made: Manifest) -> list[str] | None:
    """The names by which the HTTPRoute `made` takes requests; None: by none."""
    matches = [match for rule in made["spec"]["rules"] for match in rule["matches"]]
    return [match["headers"][0]["value"] for match in matches] if "headers" in matches[0] else None


def with_models(made: Manifest, models: Iterable[str]) -> Manifest:
    """The HTTPRoute `made`, which takes requests by names, with these."""
    first = made["spec"]["rules"][0]
    header = first["matches"][0]["headers"][0]["name"]
    return made | {"spec": made["spec"] | {"rules": _rules(models, header, first["backendRefs"][0])}}


def leading(made: Manifest, backend: Manifest) -> Manifest:
    """The HTTPRoute `made`, leading to this backend."""
    rules = [rule | {"backendRefs": [backend]} for rule in made["spec"]["rules"]]
    return made | {"spec": made["spec"] | {"rules": rules}}


def to_pool(llm: Owner) -> Manifest:
    return {"group": INFERENCE_POOL.group, "kind": INFERENCE_POOL.kind, "name": llm.name, "weight": 1}


def to_service(llm: Owner, port: int) -> Manifest:
    return {"group": "", "kind": "Service", "name": llm.name, "port": port, "weight": 1}


def narrowed(made: Manifest, hosts: Collection[str], models: Collection[str]) -> Manifest | None:
    """The HTTPRoute `made` with only these of its hosts and names of models, where empty ones stand for any; None:
    nothing is left of it."""
    given, names = _hosts(made), _names(made)
    kept, left = [each for each in given if each in hosts], [each for each in names if each in models]
    if not (kept and left):
        return None
    if left != names:
        made = with_models(made, left)
    return made if kept == given else made | {"spec": made["spec"] | {"hostnames": kept}}


def without(
    made: Manifest, taken: Collection[tuple[str, str]], hosts: Collection[str], models: Collection[str]
) -> Manifest | None:
    """The HTTPRoute `made` without these pairs of host and model, as one route can express it: each of its hosts has
    all of its models. `hosts` and `models`: those that the route has; what it has and is to have, it keeps. None:
    nothing is left of it.

    The first hosts to have are those that the route has, or else the one with the most models. From these follow the
    models, and from these all hosts.
    """
    given, names = _hosts(made), _names(made)
    has = [host for host in given if host in hosts] if any(name in models for name in names) else []
    first = has or [max(given, key=lambda host: sum((host, name) not in taken for name in names))]
    left = [name for name in names if not any((host, name) in taken for host in first)]
    return narrowed(made, [host for host in given if not any((host, name) in taken for name in left)], left)


def _hosts(made: Manifest) -> list[str]:
    return list(made["spec"].get("hostnames") or [""])


def _names(made: Manifest) -> list[str]:
    named = models_of(made)
    return [""] if named is None else named
