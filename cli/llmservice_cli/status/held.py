"""What the activators hold of one service, and what its last use was, from the /metrics of each through the API
server's pod proxy.

Both change with every request, so the operator does not write them into the status. Answers of pods are untrusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kubeloop.errors import KubeError
from kubeloop.resources import POD, Key
from llmservice_api.holding import LAST_USE_METRIC, LastUse, stored_port

from llmservice_cli.api import Api, Json
from llmservice_cli.installation import ACTIVATORS, NAMESPACE, activators
from llmservice_cli.metrics import METRICS
from llmservice_cli.unread import line_of, why

METRICS_PORT = 9090
REQUESTS, AGE = "llmservice_activator_held_requests", "llmservice_activator_held_age_seconds"
ALWAYS = "llmservice_scaler_services"
"""On the page of every activator, also of one that holds nothing."""
PATIENCE = 5.0
"""Seconds for the answer of an activator."""
MOST_ACTIVATORS = 16
MOST_REQUESTS = 1_000_000
LONGEST_AGE = 7 * 86_400.0
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
    last: LastUse | None = None
    """The last request that keeps the service from zero, as far as they know."""

    def to_object(self) -> dict[str, Any]:
        """JSON."""
        found = {
            "requests": self.requests,
            "oldestSeconds": round(self.oldest_seconds, 1),
            "activators": self.activators,
        }
        return {**found, "unread": dict(self.unread)} if self.unread else found


@dataclass(frozen=True, slots=True)
class Count:
    """Of one service, as an activator's page has it: not checked yet."""

    requests: float = 0.0
    oldest_seconds: float = 0.0
    last: LastUse | None = None
    """None as well where it is not as an activator writes it: nothing follows from it."""


Counts = Mapping[Key, Count]
Pages = Mapping[tuple[str, str], Counts | str]
"""Counts, or why there are none, by the pod's namespace and name."""


async def held_of(kube: Api, service: Json) -> Held | str | None:
    """None where the service's requests are never held; the reason where no activator could be read."""
    return None if stored_port(service.get("status") or {}) is None else held_in(await read_pages(kube), service)


async def read_pages(kube: Api) -> Pages | str:
    """Of every activator; the reason where there is none or they may not be listed."""
    try:
        where, pods = await activators(kube)
    except KubeError as error:
        return why(error, f"{NAMESPACE}, or in all namespaces where the operator is in another")
    if not pods:
        return f"no pod of an activator runs in {where} ({ACTIVATORS})"
    asked = pods[:MOST_ACTIVATORS]
    answers = dict(zip(asked, await asyncio.gather(*(_read(kube, pod) for pod in asked)), strict=True))
    return answers | dict.fromkeys(pods[MOST_ACTIVATORS:], "not asked: there are too many")


def held_in(pages: Pages | str, service: Json) -> Held | str | None:
    """What one service has at the activators; as `held_of`."""
    if stored_port(service.get("status") or {}) is None:
        return None
    if isinstance(pages, str):
        return pages
    key = Key(service["metadata"]["namespace"], service["metadata"]["name"])
    answers = {name: _of_one(page, key) for name, page in pages.items()}
    found = [answer for answer in answers.values() if not isinstance(answer, str)]
    unread = {name: answer for (_, name), answer in answers.items() if isinstance(answer, str)}
    if not found:
        return "; ".join(dict.fromkeys(unread.values()))
    last = max((each.last for each in found if each.last is not None), default=None)
    requests, oldest = sum(round(each.requests) for each in found), max(each.oldest_seconds for each in found)
    return Held(requests, oldest, len(found), unread, last)


def _of_one(page: Counts | str, key: Key) -> Count | str:
    try:
        return page if isinstance(page, str) else _checked(page, key)
    except ValueError as error:
        return line_of(f"not understood: {error}")


async def _read(kube: Api, pod: tuple[str, str]) -> Counts | str:
    try:
        async with asyncio.timeout(PATIENCE):
            text = await kube.proxied(POD, *pod, METRICS_PORT, METRICS)
        return read_counts(text)
    except TimeoutError:
        return f"no answer within {PATIENCE:g} s"
    except KubeError as error:
        return why(error, pod[0])
    except ValueError as error:
        return line_of(f"not understood: {error}")


def read_held(text: str, key: Key) -> Count:
    """What an activator says of one service. ValueError where the text is not its /metrics page."""
    return _checked(read_counts(text), key)


def read_counts(text: str) -> Counts:
    """The same of all services."""
    # Not at the top: `status` imports this module, and reads no page where nothing is at zero.
    from prometheus_client.parser import text_string_to_metric_families

    lines = [line for line in text.split("\n") if line.startswith((REQUESTS, AGE, ALWAYS, LAST_USE_METRIC))]
    samples = [each for family in text_string_to_metric_families("\n".join(lines)) for each in family.samples]
    if not any(sample.name == ALWAYS for sample in samples):
        raise ValueError("it holds no metric of an activator")
    counts: dict[Key, Count] = {}
    for sample in samples:
        key = Key(sample.labels.get("namespace", ""), sample.labels.get("service", ""))
        known = counts.get(key, Count())
        if sample.name == REQUESTS:
            counts[key] = replace(known, requests=known.requests + sample.value)
        elif sample.name == AGE:
            counts[key] = replace(known, oldest_seconds=max(sample.value, known.oldest_seconds))  # NaN stays
        elif sample.name == LAST_USE_METRIC:
            labels = sample.labels.get("method", ""), sample.labels.get("path", "")
            counts[key] = replace(known, last=LastUse.parsed(sample.value, *labels))
    return counts


def _checked(counts: Counts, key: Key) -> Count:
    found = counts.get(key, Count())
    if not (0 <= found.requests <= MOST_REQUESTS and 0 <= found.oldest_seconds <= LONGEST_AGE):  # NaN is not either
        raise ValueError("its figures are out of range")
    return found
