"""One read of everything that `llmservice top` shows, and what it costs the API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan
from typing import Any

from kubeloop.credentials import Credentials
from kubeloop.errors import KubeError
from kubeloop.resources import POD, Resource
from llmservice_api.constants import SERVICE_LABEL, selector_text
from llmservice_api.holding import stored_port
from llmservice_operator.facts.pods import PodFacts, replicas
from llmservice_vllm import metrics

from llmservice_cli.api import USER_AGENT, Api, Json
from llmservice_cli.cluster import LOGIN_TIMEOUT, line_of, why
from llmservice_cli.metrics import LARGEST, Pages, Samples, page_of, read_pages, samples_of
from llmservice_cli.services import service, services
from llmservice_cli.streams import StreamTransport

# What a vLLM did between two reads of its /metrics. Pure.

PLAIN = (metrics.RUNNING, metrics.WAITING, metrics.KV_USAGE, metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS)
NAMES = frozenset(PLAIN) | {f"{name}_bucket" for name in (metrics.FIRST_TOKEN, metrics.INTER_TOKEN)}


@dataclass(frozen=True, slots=True)
class MetricsSample:
    """One page. None, or no buckets: vLLM does not report it."""

    at: float
    """The clock's seconds."""
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    """0 to 1, of the fullest engine."""
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    first_token: Buckets = field(default_factory=dict)
    inter_token: Buckets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds; None where nothing was observed."""

    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """One pod, or several together. Counts and shares are those of the second read."""

    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    """Of the fullest."""
    prompt_per_second: float | None = None
    generation_per_second: float | None = None
    first_token: Buckets = field(default_factory=dict)
    inter_token: Buckets = field(default_factory=dict)

    @property
    def ttft(self) -> Latency:
        return latency(self.first_token)

    @property
    def itl(self) -> Latency:
        return latency(self.inter_token)


def latency(buckets: Buckets) -> Latency:
    return Latency(quantile(0.5, buckets), quantile(0.99, buckets))


def reading(text: str, at: float) -> MetricsSample:
    """ValueError where it is no page of vLLM, or a figure in it is not possible."""
    samples = samples_of(text, NAMES)
    usage = [value for _, value in samples.get(metrics.KV_USAGE, ())]
    for name in PLAIN:
        if any(value < 0 for _, value in samples.get(name, ())):
            raise ValueError(f"{name} is negative")
    return MetricsSample(
        at,
        _total(samples, metrics.RUNNING),
        _total(samples, metrics.WAITING),
        max(usage) if usage else None,
        _total(samples, metrics.PROMPT_TOKENS),
        _total(samples, metrics.GENERATION_TOKENS),
        buckets_of(samples, metrics.FIRST_TOKEN),
        buckets_of(samples, metrics.INTER_TOKEN),
    )


def _total(samples: Samples, name: str) -> float | None:
    values = samples.get(name)
    return sum(value for _, value in values) if values else None


def between(before: MetricsSample | None, after: MetricsSample) -> Rates:
    """Without a first read there are no rates, and no latencies."""
    if before is None or after.at <= before.at:
        return Rates(after.running, after.waiting, after.kv_cache_usage)
    seconds = after.at - before.at
    return Rates(
        after.running,
        after.waiting,
        after.kv_cache_usage,
        _per_second(before.prompt_tokens, after.prompt_tokens, seconds),
        _per_second(before.generation_tokens, after.generation_tokens, seconds),
        increase(before.first_token, after.first_token),
        increase(before.inter_token, after.inter_token),
    )


def _per_second(before: float | None, after: float | None, seconds: float) -> float | None:
    """A counter that went back began anew at 0."""
    if after is None:
        return None
    return (after - before if before is not None and before <= after else after) / seconds


def together(several: Sequence[Rates]) -> Rates:
    """Sums; shares are of the fullest."""
    usages = [each.kv_cache_usage for each in several if each.kv_cache_usage is not None]
    return Rates(
        _sum([each.running for each in several]),
        _sum([each.waiting for each in several]),
        max(usages) if usages else None,
        _sum([each.prompt_per_second for each in several]),
        _sum([each.generation_per_second for each in several]),
        added(each.first_token for each in several),
        added(each.inter_token for each in several),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# Quantiles of Prometheus histograms, over the time between two reads. Pure.

Buckets = Mapping[float, float]
"""Observations up to each upper bound, as Prometheus counts them: in all smaller buckets, too."""


def buckets_of(samples: Samples, name: str) -> Buckets:
    """Of all engines of a pod together; empty where there is no such histogram. ValueError where it is none."""
    found: dict[float, float] = {}
    for labels, value in samples.get(f"{name}_bucket", ()):
        bound = float(labels.get("le", "nan"))
        if isnan(bound) or (bound != inf and abs(bound) > LARGEST) or value < 0:
            raise ValueError(f"{name} has a bucket {labels.get('le')!r} of {value}")
        found[bound] = found.get(bound, 0.0) + value
    return found


def increase(before: Buckets, after: Buckets) -> Buckets:
    """What was observed in between. Where a count went back the server has restarted: then all of `after` is new."""
    if any(after.get(bound, 0.0) < count for bound, count in before.items()):
        return after
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def added(several: Iterable[Buckets]) -> Buckets:
    """Observations of several servers together."""
    found: dict[float, float] = {}
    for buckets in several:
        for bound, count in buckets.items():
            found[bound] = found.get(bound, 0.0) + count
    return found


def quantile(share: float, buckets: Buckets) -> float | None:
    """As PromQL's histogram_quantile: evenly spread within a bucket, the highest finite bound for what is above it.
    None without observations, or without the bucket of all."""
    bounds = sorted(buckets)
    if len(bounds) < 2 or bounds[-1] != inf:
        return None
    counts: list[float] = []
    for bound in bounds:  # servers with other bounds may make a count smaller than the one below it
        counts.append(max(buckets[bound], counts[-1] if counts else 0.0))
    rank = share * counts[-1]
    if not counts[-1]:
        return None
    index = next(place for place, count in enumerate(counts) if count >= rank)
    if index == len(bounds) - 1:
        return bounds[-2]
    below = counts[index - 1] if index else 0.0
    lower = bounds[index - 1] if index else min(0.0, bounds[0])
    inside = counts[index] - below
    return lower + (bounds[index] - lower) * ((rank - below) / inside) if inside else bounds[index]


AT_ONCE = 16
"""Pages that are read at the same time."""
MOST_PODS = 200
PATIENCE = 5.0
"""Seconds for a page."""
LISTS_EVERY = 10.0
"""Seconds between two lists of services and pods, which take more bytes than the pages."""

ServiceKey = tuple[str, str]
"""Namespace and name."""


class Metered(StreamTransport):
    """Counts what is asked of the API server."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials, user_agent=USER_AGENT, login_timeout=LOGIN_TIMEOUT, observer=self._count)
        self.requests = self.bytes = 0

    def _count(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self.requests += 1

    async def read(self, verb: str, resource: Resource, path: str, **options: Any) -> bytes:
        """The same, with the answer's size counted."""
        answer = await super().read(verb, resource, path, **options)
        self.bytes += len(answer)
        return answer


@dataclass(frozen=True, slots=True)
class Sample:
    """What was read at one moment. Where a part could not be, there is the reason."""

    at: float
    services: Sequence[Json]
    pods: Mapping[ServiceKey, Sequence[PodFacts]] | str
    pages: Mapping[tuple[str, str], MetricsSample | str]
    """Of ready pods, by namespace and name; a pod over the limit has none."""
    held: Pages | str
    requests: int
    bytes: int
    """Both since the start."""
    problem: str = ""
    """Why services and pods are those of an earlier read."""

    @property
    def left_out(self) -> int:
        """Ready pods that were not asked."""
        return 0 if isinstance(self.pods, str) else len(_ready(self.pods)) - len(self.pages)


def _ready(pods: Mapping[ServiceKey, Sequence[PodFacts]]) -> Sequence[PodFacts]:
    return [pod for each in pods.values() for pod in each if pod.ready and not pod.deleting]


@dataclass
class Sampler:
    """Reads one sample after the other."""

    transport: Metered
    namespace: str | None
    """None: all."""
    name: str | None
    clock: Callable[[], float] = time.monotonic
    _listed: tuple[float, Sequence[Json], Mapping[ServiceKey, Sequence[PodFacts]] | str] | None = None

    async def read(self) -> Sample:
        """CliError where the service is not there, or not any more. KubeError where services cannot be listed the first
        time; later the sample is of those that were, and says so."""
        kube, problem = Api(self.transport), ""
        if self._listed is None or self.clock() - self._listed[0] >= LISTS_EVERY:
            try:
                self._listed = (self.clock(), await self._services(kube), await self._pods(kube))
            except KubeError as error:
                if self._listed is None:
                    raise
                problem = f"services are those of {LISTS_EVERY:g} s ago or more: {line_of(error.message)}"
        _, found, pods = self._listed
        asked = [] if isinstance(pods, str) else _ready(pods)[:MOST_PODS]
        pages, held = await asyncio.gather(read_pages_of(kube, asked, self.clock), self._held(kube, found))
        return Sample(
            self.clock(),
            found,
            pods,
            pages,
            held,
            self.transport.requests,
            self.transport.bytes,
            problem,
        )

    async def _services(self, kube: Api) -> Sequence[Json]:
        if self.name is not None:
            return [await service(kube, self.namespace or "", self.name)]
        return await services(kube, self.namespace)

    async def _pods(self, kube: Api) -> Mapping[ServiceKey, Sequence[PodFacts]] | str:
        selector = SERVICE_LABEL if self.name is None else selector_text(self.name)
        try:
            objects = await kube.list_all(POD, self.namespace, label_selector=selector)
        except KubeError as error:
            return f"pods are not listed: {why(error, self.namespace)}"
        found: dict[ServiceKey, list[PodFacts]] = {}
        for pod in sorted(replicas(map(PodFacts.from_object, objects)), key=lambda pod: (pod.namespace, pod.name)):
            found.setdefault((pod.namespace, pod.service or ""), []).append(pod)
        return found

    async def _held(self, kube: Api, found: Sequence[Json]) -> Pages | str:
        """Nothing is asked where no service's requests are held."""
        holds = any(stored_port(each.get("status") or {}) is not None for each in found)
        return await read_pages(kube) if holds else {}


async def read_pages_of(
    kube: Api, pods: Sequence[PodFacts], clock: Callable[[], float], limit: asyncio.Semaphore | None = None
) -> Mapping[tuple[str, str], MetricsSample | str]:
    """What the vLLM of each pod counts now, or why that is not known, by namespace and name: AT_ONCE of them at a time,
    or with others as many as `limit` lets through, each within PATIENCE seconds."""
    turns = asyncio.Semaphore(AT_ONCE) if limit is None else limit

    async def page(pod: PodFacts) -> MetricsSample | str:
        async with turns:
            return await _page(kube, pod, clock)

    pages = await asyncio.gather(*map(page, pods))
    return {(pod.namespace, pod.name): found for pod, found in zip(pods, pages, strict=True)}


async def _page(kube: Api, pod: PodFacts, clock: Callable[[], float]) -> MetricsSample | str:
    if not pod.has_api:
        return "its leader answers requests"
    try:
        async with asyncio.timeout(PATIENCE):
            text = await page_of(kube, pod.namespace, pod.name)
        # A page may be made to take long; others go on meanwhile.
        return await asyncio.to_thread(reading, text, clock())
    except TimeoutError:
        return f"no answer within {PATIENCE:g} s"
    except KubeError as error:
        return why(error, pod.namespace)
    except ValueError as error:
        return line_of(f"not understood: {error}")
