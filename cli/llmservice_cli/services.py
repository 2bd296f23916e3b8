"""LLMServices as the API server has them: how a command finds them, and what several commands read of one."""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_api.conditions import Condition, ConditionType
from llmservice_api.constants import DEFAULT_ENDPOINT_PORT, LLMSERVICE

from .api import Api, Json, status_of
from .errors import CliError

NO_VALUE = "-"


async def services(kube: Api, namespace: str | None) -> tuple[Json, ...]:
    """Every LLMService of one namespace, or of all, by namespace and name."""
    found = await kube.list_all(LLMSERVICE, namespace)
    return tuple(sorted(found, key=by_name))


def by_name(item: Json) -> tuple[str, str]:
    """To sort by namespace and name."""
    return item["metadata"]["namespace"], item["metadata"]["name"]


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
    return tuple(Condition.from_object(c) for c in status_of(service).get("conditions") or ())


def condition_of(service: Json, kind: ConditionType) -> Condition | None:
    """The condition of a type; None where there is none yet."""
    return next((each for each in conditions_of(service) if each.type == kind), None)


def is_outdated(service: Json) -> bool:
    """Whether the status is of an earlier generation of the spec."""
    observed = status_of(service).get("observedGeneration", -1)
    return int(observed) < int(service["metadata"].get("generation", 0))


def rollout_of(service: Json) -> Json:
    """status.rollout, empty where nothing is known yet."""
    rollout: Json = status_of(service).get("rollout") or {}
    return rollout


def share_done(progress: Json) -> str:
    """How much of a start is done, by status.progress: its percentage, else its phase, else NO_VALUE."""
    percent = progress.get("percent")
    return str(progress.get("phase") or NO_VALUE) if percent is None else f"{percent} %"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The port of the Service, and spec.endpoint.apiKeySecretRef."""

    port: int
    key: Json | None


def endpoint_of(service: Json) -> Endpoint:
    """By the spec: the status may be behind."""
    stated = service["spec"].get("endpoint") or {}
    return Endpoint(int(stated.get("port", DEFAULT_ENDPOINT_PORT)), stated.get("apiKeySecretRef"))
