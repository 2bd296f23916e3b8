"""LLMServices as the API server has them: how a command finds them, and what several commands read of one."""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_api.conditions import Condition
from llmservice_api.constants import DEFAULT_ENDPOINT_PORT
from llmservice_api.kinds import LLMSERVICE

from .api import Api, Json
from .errors import CliError


async def services(kube: Api, namespace: str | None) -> tuple[Json, ...]:
    """Every LLMService of one namespace, or of all, by namespace and name."""
    found = await kube.list_all(LLMSERVICE, namespace)
    return tuple(sorted(found, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"])))


async def service(kube: Api, namespace: str, name: str) -> Json:
    """The LLMService, or a CliError that names those that there are."""
    found = await kube.get(LLMSERVICE, namespace, name)
    if found is not None:
        return found
    names = ", ".join(item["metadata"]["name"] for item in await services(kube, namespace))
    raise CliError(
        f"there is no LLMService {name!r} in the namespace {namespace!r}",
        f"choose one of: {names}" if names else "name another namespace with -n; this one has no LLMService",
    )


def conditions_of(service: Json) -> tuple[Condition, ...]:
    """In the order in which the operator wrote them."""
    return tuple(Condition.from_object(c) for c in (service.get("status") or {}).get("conditions") or ())


def is_outdated(service: Json) -> bool:
    """Whether the status is of an earlier generation of the spec."""
    observed = (service.get("status") or {}).get("observedGeneration", -1)
    return int(observed) < int(service["metadata"].get("generation", 0))


def rollout_of(service: Json) -> Json:
    """status.rollout, empty where nothing is known yet."""
    rollout: Json = (service.get("status") or {}).get("rollout") or {}
    return rollout


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The port of the Service, and spec.endpoint.apiKeySecretRef."""

    port: int
    key: Json | None


def endpoint_of(service: Json) -> Endpoint:
    """By the spec: the status may be behind."""
    stated = service["spec"].get("endpoint") or {}
    return Endpoint(int(stated.get("port", DEFAULT_ENDPOINT_PORT)), stated.get("apiKeySecretRef"))
