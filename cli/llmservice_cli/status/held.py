"""What the activators hold of one service, from the /metrics of each through the API server's pod proxy.

It changes with every request, so the operator does not write it into the status. Answers of pods are untrusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_operator.api.holding import stored_port
from llmservice_operator.api.service import Key
from llmservice_operator.kube.errors import Forbidden, KubeError, Refused
from llmservice_operator.kube.resources import POD
from llmservice_runtime.bounded_json import clean
from prometheus_client.parser import text_string_to_metric_families

from llmservice_cli.api import Api, Json
from llmservice_cli.installation import ACTIVATORS, NAMESPACE, installed_in

METRICS_PORT, METRICS = 9090, "/metrics"
REQUESTS, AGE = "llmservice_activator_held_requests", "llmservice_activator_held_age_seconds"
ALWAYS = "llmservice_scaler_services"
"""On the page of every activator, also of one that holds nothing."""
PATIENCE = 5.0
"""Seconds for the answer of an activator."""
MOST_ACTIVATORS = 16
MOST_REQUESTS = 1_000_000
LONGEST_AGE = 7 * 86_400.0
LONGEST_REASON = 300
"""Characters of what an activator answers instead of its metrics."""


@dataclass(frozen=True, slots=True)
class Held:
    """Over the activators that answered. Where some are `unread`, more may be held."""

    requests: int
    oldest_seconds: float
    """How long the oldest request has been held; 0 where none is."""
    activators: int
    unread: Mapping[str, str]
    """Why, by the pod's name."""

    def to_object(self) -> dict[str, Any]:
        """JSON."""
        found = {
            "requests": self.requests,
            "oldestSeconds": round(self.oldest_seconds, 1),
            "activators": self.activators,
        }
        return {**found, "unread": dict(self.unread)} if self.unread else found


async def held_of(kube: Api, service: Json) -> Held | str | None:
    """None where the service's requests are never held; the reason where no activator could be read."""
    if stored_port(service.get("status") or {}) is None:
        return None
    key = Key(service["metadata"]["namespace"], service["metadata"]["name"])
    try:
        where, pods = await _activators(kube)
    except KubeError as error:
        return _why(error, f"list on pods in {NAMESPACE}, or in all namespaces where the operator is in another")
    if not pods:
        return f"no pod of an activator runs in {where} ({ACTIVATORS})"
    asked = pods[:MOST_ACTIVATORS]
    answers = dict(zip(asked, await asyncio.gather(*(_read(kube, pod, key) for pod in asked)), strict=True))
    found = [answer for answer in answers.values() if not isinstance(answer, str)]
    unread = {name: answer for (_, name), answer in answers.items() if isinstance(answer, str)}
    unread |= dict.fromkeys((name for _, name in pods[MOST_ACTIVATORS:]), "not asked: there are too many")
    if not found:
        return "; ".join(dict.fromkeys(unread.values()))
    return Held(sum(held for held, _ in found), max(age for _, age in found), len(found), unread)


async def _activators(kube: Api) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Where was looked; namespace and name of each pod that may hold requests: one that is ending does until its end.

    Anybody may give a pod of theirs the chart's label, so one counts only where an operator is known to be installed,
    if that is known of any namespace.
    """
    try:
        pods = await kube.list_all(POD, None, label_selector=ACTIVATORS)
    except Forbidden:
        where, installed = f"namespace {NAMESPACE}; listing pods elsewhere is not allowed", frozenset({NAMESPACE})
        pods = await kube.list_all(POD, NAMESPACE, label_selector=ACTIVATORS)
    else:
        where, installed = "any namespace", await installed_in(kube)
    running = [pod["metadata"] for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
    names = {(each["namespace"], each["name"]) for each in running if not installed or each["namespace"] in installed}
    # Where the chart is usually installed first: anybody may have many pods with its label.
    return where, tuple(sorted(names, key=lambda name: (name[0] != NAMESPACE, name)))


async def _read(kube: Api, pod: tuple[str, str], key: Key) -> tuple[int, float] | str:
    try:
        async with asyncio.timeout(PATIENCE):
            text = await kube.proxied(POD, *pod, METRICS_PORT, METRICS)
        return read_held(text, key)
    except TimeoutError:
        return f"no answer within {PATIENCE:g} s"
    except KubeError as error:
        return _why(error, f"get on pods/proxy in {pod[0]}")
    except ValueError as error:
        return _line(f"not understood: {error}")


def _why(error: KubeError, right: str) -> str:
    """With the right that is missing, where it is one."""
    is_right = isinstance(error, Forbidden) and not isinstance(error, Refused)
    return f"needs {right}" if is_right else _line(error.message)


def _line(text: str) -> str:
    return " ".join(clean(text).split())[:LONGEST_REASON]


def read_held(text: str, key: Key) -> tuple[int, float]:
    """Requests of a service that an activator holds, and for how many seconds the oldest. ValueError where the text is
    not the /metrics page of an activator."""
    lines = [line for line in text.split("\n") if line.startswith((REQUESTS, AGE, ALWAYS))]
    samples = [each for family in text_string_to_metric_families("\n".join(lines)) for each in family.samples]
    if not any(sample.name == ALWAYS for sample in samples):
        raise ValueError("it holds no metric of an activator")
    own = [each for each in samples if (each.labels.get("namespace"), each.labels.get("service")) == key]
    requests = sum(sample.value for sample in own if sample.name == REQUESTS)
    age = max((sample.value for sample in own if sample.name == AGE), default=0.0)
    if not (0 <= requests <= MOST_REQUESTS and 0 <= age <= LONGEST_AGE):  # NaN is not either
        raise ValueError("its figures are out of range")
    return round(requests), age
