"""/metrics of vLLM, and of the activators that hold requests, through the API server's pod proxy.

Pages are untrusted: bounded, and finite. What is held, and a service's last use, change with every request, so the
operator does not write them into the status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from kubeloop.errors import KubeError
from kubeloop.resources import POD, Key
from llmservice_api.holding import LAST_USE_METRIC, LastUse, stored_port
from llmservice_runtime.contract import HTTP_PORT
from llmservice_vllm.metrics import PREFIX

from .api import Api, Json
from .cluster import line_of, why
from .installation import ACTIVATORS, NAMESPACE, activators

METRICS = "/metrics"
MOST_LINES = 20_000
"""Of vLLM's page, of the metrics that are read."""
LONGEST_LINE = 10_000
"""Characters; the time of the parser grows with their square."""
MOST_PAGE = 2 * 2**20
"""Bytes; vLLM's own has some ten thousand."""
LARGEST = 2.0**63

Samples = Mapping[str, list[tuple[Mapping[str, str], float]]]
"""Labels and value, by the sample's name."""


async def page_of(kube: Api, namespace: str, pod: str) -> str:
    """KubeError where there is none, or one that is too long."""
    return await kube.proxied(POD, namespace, pod, HTTP_PORT, METRICS, max_bytes=MOST_PAGE)


def samples_of(text: str, names: frozenset[str]) -> Samples:
    """The samples of these names. ValueError where it is not vLLM's page, or one of them is not a finite number."""
    found = parsed(text, names, MOST_LINES)
    if not found and f"\n{PREFIX}" not in f"\n{text}":
        raise ValueError("it holds no metric of vLLM")
    for name, samples in found.items():
        for _, value in samples:
            if not isfinite(value) or abs(value) > LARGEST:
                raise ValueError(f"{name} is {value}")
    return found


def parsed(text: str, names: frozenset[str], most_lines: int) -> Samples:
    """The samples of these names on any page. ValueError where there are more, or one cannot be read."""
    # Only these lines are parsed: a page has ten times as many.
    lines = [line for line in text.split("\n") if line.partition("{")[0].partition(" ")[0] in names]
    if len(lines) > most_lines:
        raise ValueError(f"it has more than {most_lines} lines of these metrics")
    if any(len(line) > LONGEST_LINE for line in lines):
        raise ValueError(f"it has a line of more than {LONGEST_LINE} characters")
    # Not at the top: `status` imports this module, and reads no page where no vLLM serves and nothing is at zero.
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


METRICS_PORT = 9090
REQUESTS, AGE = "llmservice_activator_held_requests", "llmservice_activator_held_age_seconds"
ALWAYS = "llmservice_scaler_services"
"""On the page of every activator, also of one that holds nothing."""
NAMES = frozenset({REQUESTS, AGE, ALWAYS, LAST_USE_METRIC})
MOST_ACTIVATOR_LINES = 100_000
"""Of these on a page."""
PATIENCE = 5.0
"""Seconds for the answer of an activator."""
MOST_ACTIVATORS = 16
MOST_REQUESTS = 1_000_000
LONGEST_AGE = 7 * 86_400.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class HeldRequests:
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


async def held_of(kube: Api, service: Json) -> HeldRequests | str | None:
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


def held_in(pages: Pages | str, service: Json) -> HeldRequests | str | None:
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
    return HeldRequests(requests, oldest, len(found), unread, last)


def _of_one(page: Counts | str, key: Key) -> Count | str:
    try:
        return page if isinstance(page, str) else count_of(page, key)
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


def read_counts(text: str) -> Counts:
    """What an activator says of all services. ValueError where the text is not its /metrics page."""
    page = parsed(text, NAMES, MOST_ACTIVATOR_LINES)
    if ALWAYS not in page:
        raise ValueError("it holds no metric of an activator")
    counts: dict[Key, Count] = {}
    for name, samples in page.items():
        for labels, value in samples:
            key = Key(labels.get("namespace", ""), labels.get("service", ""))
            known = counts.get(key, Count())
            if name == REQUESTS:
                counts[key] = replace(known, requests=known.requests + value)
            elif name == AGE:
                counts[key] = replace(known, oldest_seconds=max(value, known.oldest_seconds))  # NaN stays
            elif name == LAST_USE_METRIC:
                last = LastUse.parsed(value, labels.get("method", ""), labels.get("path", ""))
                counts[key] = replace(known, last=last)
    return counts


def count_of(counts: Counts, key: Key) -> Count:
    """Of one service. ValueError where its figures cannot be."""
    found = counts.get(key, Count())
    if not (0 <= found.requests <= MOST_REQUESTS and 0 <= found.oldest_seconds <= LONGEST_AGE):  # NaN is not either
        raise ValueError("its figures are out of range")
    return found
