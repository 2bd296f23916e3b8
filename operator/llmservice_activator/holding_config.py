"""How the requests of an LLMService are held: its port, its limits, and why none are.

The API server has checked the spec by its schema, and the operator wrote the status: unexpected values count as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from llmservice_api.base import SecretKeyRef
from llmservice_api.conditions import ConditionType
from llmservice_api.holding import MOST_HELD_BYTES, Peer, is_idle, peers_of, stored_port
from llmservice_api.lifecycle import Endpoint, Scaling
from llmservice_api.reasons import Reason
from llmservice_planner.quantity import amount

from llmservice_activator.holding.interface import Refusal

Json = Mapping[str, Any]

SEQUENCES = 256
"""maxNumSeqs if the status lacks it: vLLM's default on its smaller GPUs."""
MOST_SEQUENCES = 100_000
MOST_TEXT = 1024
"""Characters of a message to clients."""


@dataclass(frozen=True, slots=True)
class HoldingConfig:
    """How the requests of one service are held."""

    created: str
    """Its creationTimestamp: of two services with one port the older one has it."""
    port: int
    """Port for its requests; 0: not allocated yet."""
    service_port: int
    model_names: frozenset[str]
    max_requests: int
    max_bytes: int
    timeout_seconds: int
    sequences: int
    """Requests that a replica processes at once."""
    keys: SecretKeyRef | None
    """Secret with its API keys; None: no key is required."""
    refusal: Refusal | None
    """Why no replica will start."""
    clients: tuple[Peer, ...] = ()
    """Clients that may send requests; empty: all."""
    root_path: str = ""
    """vLLM's --root-path."""
    any_origin: bool = True
    """Whether pages of every origin may read responses: vLLM's default, unless a CORS flag is set."""
    is_shut: bool = False
    """Every request gets `refusal`, even while a pod is ready: spec.scaling.holding.from cannot be read."""


def holding_config_of(obj: Json, scaling: Scaling) -> HoldingConfig:
    """From an LLMService object. ValueError where its endpoint or its holding cannot be read, InvalidSpec where
    holding.from is not valid."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    holding = scaling.holding
    endpoint = Endpoint.model_validate(spec.get("endpoint") or {}, by_alias=True, by_name=False)
    arguments = _texts(_part(spec, "runtime").get("extraArgs"))
    sequences = _part(_part(status, "effective"), "batching").get("maxNumSeqs")
    return HoldingConfig(
        created=str(metadata.get("creationTimestamp", "")),
        port=stored_port(status) or 0,
        service_port=endpoint.port,
        model_names=frozenset(_names(metadata["name"], spec, status)),
        max_requests=holding.max_requests,
        max_bytes=min(int(amount(holding.max_bytes)), MOST_HELD_BYTES),
        timeout_seconds=holding.timeout_seconds,
        sequences=sequences if type(sequences) is int and 1 <= sequences <= MOST_SEQUENCES else SEQUENCES,
        keys=endpoint.api_key_secret_ref,
        refusal=_refusal(metadata, spec, status) or _scaled_to_zero(scaling, status),
        clients=peers_of(holding.clients),
        root_path=_root_path(arguments),
        any_origin=not any(map(_is_of_origins, arguments)),
    )


def unreadable_config(obj: Json, before: HoldingConfig | None, why: str, *, is_shut: bool) -> HoldingConfig | None:
    """For a spec that cannot be read: its earlier state with a refusal; None where its requests do not arrive here.

    Its EndpointSlices still lead here, and a refused connection would name no field.
    """
    metadata, status = obj["metadata"], obj.get("status") or {}
    port = stored_port(status)
    if port is None:
        return None
    text = f"The service has no replica, and its LLMService cannot be read: {why}"
    refusal = Refusal(503, Reason.INVALID_SPEC, text[:MOST_TEXT])
    if before is not None:
        return replace(before, port=port, refusal=refusal, is_shut=is_shut or before.is_shut)
    empty = holding_config_of({"metadata": metadata, "status": status}, Scaling())
    return replace(empty, model_names=frozenset(), refusal=refusal, is_shut=True)


def _is_of_origins(argument: str) -> bool:
    """Whether an argument is one of vLLM's CORS flags (--allowed-origins, -methods, -headers, --allow-credentials) in
    any spelling or abbreviation; matches some other flags too."""
    return argument.replace("_", "-").startswith("--allow")


def _root_path(arguments: tuple[str, ...]) -> str:
    """The value of --root-path in any spelling or abbreviation (from --ro); of several the last."""
    found = ""
    for argument, following in pairwise((*arguments, "")):
        name, equals, value = argument.partition("=")
        flag = name.replace("_", "-")
        if len(flag) > len("--r") and "--root-path".startswith(flag):
            found = value if equals else following
    return found


def _names(name: str, spec: Json, status: Json) -> Iterator[str]:
    """As LLMService.served_model_names, with adapters, and names of a running revision that is not the spec's."""
    yield from _texts(_part(spec, "model").get("servedModelNames")) or (name,)
    yield from _texts([each.get("name") for each in spec.get("adapters") or () if isinstance(each, Mapping)])
    rollout = _part(status, "rollout")
    if rollout.get("pinned") or rollout.get("failedRevision"):
        yield from _texts(_part(status, "endpoint").get("modelNames"))


def _refusal(metadata: Json, spec: Json, status: Json) -> Refusal | None:
    """Paused, or failed until a change; a failure of an earlier generation may be resolved."""
    if spec.get("paused"):
        return Refusal(503, Reason.PAUSED, "The service is paused: spec.paused of its LLMService is true.")
    for condition in status.get("conditions") or ():
        is_stalled = condition.get("type") == ConditionType.STALLED and condition.get("status") == "True"
        if is_stalled and condition.get("observedGeneration") == metadata.get("generation"):
            message = f"The model does not start: {str(condition.get('message', ''))[:MOST_TEXT]}"
            return Refusal(503, str(condition.get("reason", ""))[:64] or Reason.UNKNOWN, message)
    return None


def _scaled_to_zero(scaling: Scaling, status: Json) -> Refusal | None:
    """Refuses requests of a service that was scaled to zero by hand. With minReplicas raised, the operator starts a
    replica."""
    if scaling.replicas or is_idle(scaling, status):
        return None
    text = "The service has no replica: spec.scaling.replicas of its LLMService is 0."
    return Refusal(503, Reason.SCALED_TO_ZERO, text)


def _part(parent: Json, name: str) -> Json:
    found = parent.get(name)
    return found if isinstance(found, Mapping) else {}


def _texts(values: object) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list | tuple) else ()
