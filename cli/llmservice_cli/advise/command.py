"""`llmservice advise routing`: reads the replicas twice, and in between what they cached; says what follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean
from typing import Any

from kubeloop.errors import KubeError
from kubeloop.resources import POD
from llmservice_api.constants import selector_text
from llmservice_api.engine import DEFAULT_REPLAY_PORT
from llmservice_operator.facts.pods import PodFacts, replicas
from llmservice_runtime.supervisor.tasks import cancel_and_wait
from llmservice_vllm import metrics
from llmservice_vllm.flags import Match
from llmservice_vllm.versions import DEFAULT, flag_table_or_default

from llmservice_cli.api import Json
from llmservice_cli.cluster import Connection, connect, line_of, why
from llmservice_cli.documents import show
from llmservice_cli.errors import CliError, ExitCode, say
from llmservice_cli.forward import Forward, PodPort, at_socket
from llmservice_cli.metrics import Samples, page_of, samples_of
from llmservice_cli.progress import IN_A_LOG, repeated
from llmservice_cli.services import service
from llmservice_cli.text import duration, table

from . import Options
from .estimate import Counters, Estimate, Interval, NotPlayed, Replica, from_counters, from_events
from .kv_events import MOST_BYTES, Kept, ReplayClient

PAYS = 0.05
"""The least gain for which a router is worth its place in the path of requests, as a share of prompt tokens."""
FEWEST_TOKENS = 10_000
"""Of prompts, for any advice."""
EVERY = 5.0
"""Seconds between two reads of events, of which vLLM keeps those of 10,000 steps."""
PATIENCE = 10.0
"""Seconds for a page."""
FEWEST_REQUESTS = 50
MOST_REPLICAS = 64
PREFILL = "vllm:request_prefill_time_seconds"
CACHE = "vllm:cache_config_info"
STARTED = "process_start_time_seconds"
NAMES = frozenset(
    {
        *(metrics.PREFIX_QUERIES, metrics.PREFIX_HITS, metrics.WAITING, metrics.RUNNING, metrics.GENERATION_TOKENS),
        *(f"{PREFILL}_sum", f"{PREFILL}_count", CACHE, STARTED),
    }
)


async def run(options: Options) -> ExitCode:
    """Watch, estimate, answer."""
    async with connect(options) as connection:
        found = await service(connection.kube, connection.namespace, options.name)
        watched = await _watch(connection, options, found)
    advice = advised(watched)
    show(options.output, lambda: lines(advice), lambda: document(advice))
    return {Verdict.PAYS: ExitCode.DONE, Verdict.NOT_KNOWN: ExitCode.UNKNOWN}.get(advice.verdict, ExitCode.FAILED)


# What is read.


@dataclass(frozen=True, slots=True)
class Reading:
    """One page of one replica. ValueError where vLLM does not report what is needed."""

    queries: float
    hits: float
    waiting: float
    running: float
    prefill_seconds: float
    prefills: float
    block_size: int
    blocks: int
    """Of its cache; 0: not reported."""
    generated: float
    """Tokens."""
    started: float = 0.0
    """When its process did; 0: not reported."""

    @property
    def is_full(self) -> bool:
        """Whether it has computed more tokens than its cache holds."""
        return self.queries - self.hits + self.generated > self.blocks * self.block_size

    def is_of_another(self, before: Reading) -> bool:
        """Whether the process is another one than that of an earlier page: it counts from nothing, and its cache was
        empty."""
        counters = ("queries", "hits", "prefills", "generated")
        return self.started != before.started or any(getattr(self, name) < getattr(before, name) for name in counters)

    @classmethod
    def of(cls, text: str) -> Reading:
        samples = samples_of(text, NAMES)
        if not {metrics.PREFIX_QUERIES, metrics.PREFIX_HITS} <= samples.keys():
            raise ValueError("it counts no queries of a prefix cache")
        config = next((labels for labels, _ in samples.get(CACHE, ())), {})
        return cls(
            _sum(samples, metrics.PREFIX_QUERIES),
            _sum(samples, metrics.PREFIX_HITS),
            _sum(samples, metrics.WAITING),
            _sum(samples, metrics.RUNNING),
            _sum(samples, f"{PREFILL}_sum"),
            _sum(samples, f"{PREFILL}_count"),
            _count(config.get("block_size", ""), 1 << 20),
            _count(config.get("num_gpu_blocks", ""), 1 << 32),
            _sum(samples, metrics.GENERATION_TOKENS),
            _sum(samples, STARTED),
        )


def _sum(samples: Samples, name: str) -> float:
    return sum(value for _, value in samples.get(name, ()))


def _count(text: str, most: int) -> int:
    """0 for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 and int(text) <= most else 0


NOTHING = Reading(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0.0)
"""What a process has counted when it starts."""


@dataclass(slots=True)
class Watched:
    """One service over some time."""

    namespace: str
    name: str
    replicas: int
    """That were ready."""
    seconds: float = 0.0
    before: dict[str, Reading] = field(default_factory=dict)
    """By pod."""
    after: dict[str, Reading] = field(default_factory=dict)
    """The last page of each."""
    waiting: list[float] = field(default_factory=list)
    """Requests that waited, of each replica at each look that found it."""
    loads: dict[str, list[float]] = field(default_factory=dict)
    """Requests that ran or waited, by pod, at each look that found it."""
    events: dict[str, Kept] = field(default_factory=dict)
    no_events: str = ""
    """Why there are none, and what to do about it; empty where there are."""
    problems: list[str] = field(default_factory=list)
    routing: str = ""
    """spec.routing.mode, where requests are routed already."""

    def pairs(self) -> dict[str, tuple[Reading, Reading]]:
        """The first and the last page by pod, of those with both; NOTHING before a process that began meanwhile."""
        known = ((pod, self.before[pod], self.after[pod]) for pod in sorted(self.before.keys() & self.after.keys()))
        return {pod: (NOTHING if page.is_of_another(was) else was, page) for pod, was, page in known}


async def _watch(connection: Connection, options: Options, found: Json) -> Watched:
    listed = await connection.kube.list_all(POD, connection.namespace, label_selector=selector_text(options.name))
    pods = [
        pod.name
        for pod in sorted(replicas(map(PodFacts.from_object, listed)), key=lambda pod: pod.name)
        if pod.ready and not pod.deleting and pod.has_api
    ]
    if not pods:
        raise CliError(f"no replica of {options.name} is ready", "see why with: llmservice status " + options.name)
    asked = found["spec"].get("routing") or {}
    mode = asked.get("mode") or "none"
    # power_of_two chooses by load: what it finds is chance, as without a router.
    is_by_prefix = mode != "none" and asked.get("policy") != "power_of_two"
    routing = line_of(str(mode)) if is_by_prefix else ""
    watched = Watched(connection.namespace, options.name, len(pods), routing=routing)
    if len(pods) > MOST_REPLICAS:
        watched.problems.append(f"the first {MOST_REPLICAS} of {len(pods)} replicas are watched")
    watched.no_events = _why_no_events(found["spec"], len(pods))
    pods = pods[:MOST_REPLICAS]
    if len(pods) == 1:
        return watched
    async with AsyncExitStack() as stack:
        clients: dict[str, _Source] = {}
        if not watched.no_events:
            port = int((found["spec"]["batching"]["kvEvents"]).get("replayPort", DEFAULT_REPLAY_PORT))
            await asyncio.gather(*(_open(connection, stack, clients, pod, port) for pod in pods))
            await _read_events(watched, clients)
        watched.before = await _pages(connection, watched, pods)
        for kept in watched.events.values():
            kept.mark()
        began = time.monotonic()
        end = began + options.watch
        if not options.quiet:
            say(_left(end))
            await stack.enter_async_context(repeated(lambda: say(_left(end)), IN_A_LOG))
        left = options.watch
        while left > 0:
            await asyncio.sleep(min(EVERY, left))
            left = end - time.monotonic()
            await _read_events(watched, clients)
            pages = await _pages(connection, watched, pods)
            watched.after |= pages
            _look(watched, pages)
        watched.seconds = time.monotonic() - began
    return watched


def _why_no_events(spec: Json, number: int) -> str:
    """Of a service with this number of replicas. What a restart would not change comes first."""
    batching, parallelism = spec.get("batching") or {}, spec.get("parallelism") or {}
    if number > MOST_REPLICAS:
        return f"events of more than {MOST_REPLICAS} replicas are not read: measure with a router"
    if parallelism.get("dataParallelSize", 1) != 1:
        return "events of a replica with several engines (dataParallelSize) are not read: measure with a router"
    if batching.get("kvOffloadingSize"):
        return "events do not show what comes back from the node's memory (kvOffloadingSize): measure with a router"
    if (parallelism.get("network") or {}).get("hostNetwork"):
        return "events are refused with hostNetwork: measure with a router"
    if (batching.get("kvEvents") or {}).get("enabled"):
        return ""
    removed = " and ".join(_refused_beside_events(spec))
    return (
        f"counters alone cannot tell: {removed and f'remove {removed}, and '}set spec.batching.kvEvents.enabled: true, "
        "which restarts the replicas, and ask again once their caches are filled"
    )


def _refused_beside_events(spec: Json) -> Iterator[str]:
    """What the CRD's rules do not take together with spec.batching.kvEvents."""
    table = flag_table_or_default(DEFAULT)
    given = map(table.resolve, (spec.get("runtime") or {}).get("extraArgs") or ())
    if any(isinstance(each, Match) and each.flag.name == "--kv-events-config" for each in given):
        yield "--kv-events-config from spec.runtime.extraArgs"
    if str((spec.get("batching") or {}).get("prefixCachingHashAlgo") or "").startswith("xxhash"):
        yield "spec.batching.prefixCachingHashAlgo"


def _left(end: float) -> str:
    return f"watching, {duration(max(0.0, end - time.monotonic()))} left"


def _look(watched: Watched, pages: Mapping[str, Reading]) -> None:
    """At the pages of now: one of before says nothing of a replica that is not read any more."""
    for pod, page in pages.items():
        watched.waiting.append(page.waiting)
        watched.loads.setdefault(pod, []).append(page.waiting + page.running)


async def _pages(connection: Connection, watched: Watched, pods: Sequence[str]) -> dict[str, Reading]:
    async def page(pod: str) -> Reading | str:
        try:
            async with asyncio.timeout(PATIENCE):
                text = await page_of(connection.kube, connection.namespace, pod)
            return await asyncio.to_thread(Reading.of, text)
        except TimeoutError:
            return f"no answer within {PATIENCE:g} s"
        except KubeError as error:
            return why(error, connection.namespace)
        except ValueError as error:
            return line_of(f"not understood: {error}")

    found = dict(zip(pods, await asyncio.gather(*map(page, pods)), strict=True))
    watched.problems += [f"{pod}: {text}" for pod, text in found.items() if isinstance(text, str)]
    return {pod: reading for pod, reading in found.items() if isinstance(reading, Reading)}


@dataclass(frozen=True, slots=True)
class _Source:
    """Of one replica's events."""

    client: ReplayClient
    forward: Forward

    async def read(self, kept: Kept) -> None:
        """KubeError where the pod's port is not reached; else as ReplayClient.read."""
        reading = asyncio.ensure_future(self.client.read(kept))
        failed = asyncio.ensure_future(self.forward.failed.wait())
        try:
            await asyncio.wait((reading, failed), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done() and self.forward.error is not None:
                raise self.forward.error
            await reading
        finally:
            await cancel_and_wait(reading)
            await cancel_and_wait(failed)


async def _open(
    connection: Connection, stack: AsyncExitStack, clients: dict[str, _Source], pod: str, port: int
) -> None:
    to = PodPort(connection.namespace, pod, port)
    path, forward = await stack.enter_async_context(at_socket(connection, to, most=MOST_BYTES))
    client = ReplayClient(path)
    stack.callback(client.close)
    clients[pod] = _Source(client, forward)


async def _read_events(watched: Watched, clients: dict[str, _Source]) -> None:
    async def read(pod: str, source: _Source) -> None:
        kept = watched.events.setdefault(pod, Kept())
        try:
            await source.read(kept)
        except TimeoutError:
            kept.failed = "its port of events does not answer"
        except KubeError as error:
            kept.failed = why(error, watched.namespace)
        except ValueError as error:
            kept.failed = line_of(f"its events are of no use: {error}")
        if kept.failed:
            clients.pop(pod).client.close()

    await asyncio.gather(*(read(pod, source) for pod, source in list(clients.items())))


# What follows.


class Verdict(StrEnum):
    """Whether routing would pay."""

    PAYS = "pays"
    DOES_NOT = "does not pay"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Advice:
    """What is answered."""

    watched: Watched
    estimate: Estimate
    tokens: float
    """Of prompts."""
    verdict: Verdict
    why: str
    remedy: str = ""

    @property
    def prefill_left(self) -> Interval:
        """The share of the work of computing prompts that would be left."""
        computed = 1 - self.estimate.now
        gain = self.estimate.gain
        return Interval(*(1 - min(1.0, each / computed) if computed else 1.0 for each in (gain.high, gain.low)))


ROUTED = (
    "what is found in a cache now is found by that routing: to know what it adds, compare with what was found before"
)
CACHE_PREFIXES = (
    "set spec.batching.prefixCaching: true, which restarts the replicas, and ask again once their caches are filled; "
    "without a prefix cache routing gains nothing"
)


def advised(watched: Watched) -> Advice:
    """From what was read. CliError where nothing was. What routing adds is not seen where it is there already: the gain
    is what the best choice of replicas would add to that."""
    if watched.replicas == 1:
        why_not = "there is one replica, which gets every request anyway"
        return Advice(watched, Estimate(0.0, Interval(0.0, 0.0)), 0.0, Verdict.DOES_NOT, why_not)
    advice = _advised(watched)
    if not watched.routing:
        return advice
    said = f"requests are routed already (spec.routing.mode: {watched.routing}): {advice.why}"
    remedy = f"{advice.remedy}; {ROUTED}" if advice.remedy else ROUTED
    return replace(advice, verdict=Verdict.NOT_KNOWN, why=said, remedy=remedy)


def _advised(watched: Watched) -> Advice:
    """As if requests were not routed."""
    pairs = watched.pairs()
    if not pairs:
        problems = "; ".join(dict.fromkeys(watched.problems))
        raise CliError(problems or "no replica could be read", "see the message of each replica")
    if len(pairs) == 1:
        seen = f"of {watched.replicas} replicas {next(iter(pairs))} alone could be read"
        nothing = Estimate(0.0, Interval(0.0, 0.0))
        return Advice(watched, nothing, 0.0, Verdict.NOT_KNOWN, seen, "ask again; the notes say why")
    counters = {pod: _between(*pages) for pod, pages in pairs.items()}
    tokens, requests = (sum(getattr(each, name) for each in counters.values()) for name in ("queries", "requests"))
    bounds = from_counters(list(counters.values()), watched.replicas, is_routed=bool(watched.routing))
    if requests and not any(page.queries for pages in pairs.values() for page in pages):
        seen = f"nothing is cached: no prompt of {requests:,.0f} requests was looked for in a prefix cache"
        return Advice(watched, bounds, tokens, Verdict.NOT_KNOWN, seen, CACHE_PREFIXES)
    if tokens < FEWEST_TOKENS or requests < FEWEST_REQUESTS:
        seen = f"{requests:,.0f} requests with {tokens:,.0f} tokens came in {duration(watched.seconds)}"
        return Advice(watched, bounds, tokens, Verdict.NOT_KNOWN, seen, "watch longer (--for), while clients send")
    estimate, missing = _estimate(watched, counters, bounds)
    verdict, why_it_is = _verdict(estimate.gain)
    remedy = missing if verdict is Verdict.NOT_KNOWN else ""
    return Advice(watched, estimate, tokens, verdict, why_it_is, remedy)


def _between(before: Reading, after: Reading) -> Counters:
    """Pages are untrusted: counters that do not fit together are made to. A cache that began anew has given up what was
    in the one before."""
    queries, hits, requests = (
        max(0.0, getattr(after, name) - getattr(before, name)) for name in ("queries", "hits", "prefills")
    )
    return Counters(queries, min(hits, queries), requests, before is NOTHING or after.is_full)


def _estimate(watched: Watched, counters: Mapping[str, Counters], bounds: Estimate) -> tuple[Estimate, str]:
    """With what a better one needs."""
    if restarted := [pod for pod, (before, _) in watched.pairs().items() if before is NOTHING]:
        return bounds, f"{', '.join(restarted)} started anew meanwhile: ask again once the cache is filled"
    if len(counters) < min(watched.replicas, MOST_REPLICAS):
        seen = f"{len(counters)} of {watched.replicas} replicas alone could be read"
        return bounds, f"{seen}: ask again; the notes say why"
    if watched.no_events:
        return bounds, watched.no_events
    known = []
    for pod, counted in counters.items():
        kept, page = watched.events.get(pod, Kept(failed="it was not asked")), watched.after[pod]
        if kept.failed:
            return bounds, f"the events of {pod} are not known: {kept.failed}"
        if kept.missed or (before := kept.before) is None:
            return bounds, f"{pod} had more events than are kept: ask for a shorter time (--for)"
        if not (page.block_size and page.blocks):
            return bounds, "this vLLM does not report the size of its cache"
        known.append(Replica(counted, page.block_size, page.blocks, tuple(kept.events), before))
    longer = "watch longer (--for): more requests make the answer narrower"
    try:
        return from_events(known) or bounds, longer
    except NotPlayed as error:
        return bounds, str(error)


def _verdict(gain: Interval) -> tuple[Verdict, str]:
    if gain.low >= PAYS:
        return Verdict.PAYS, f"at least {_percent(gain.low)} more of all prompt tokens would be found in a cache"
    if gain.high < PAYS:
        return Verdict.DOES_NOT, f"at most {_percent(gain.high)} more of all prompt tokens would be found in a cache"
    return Verdict.NOT_KNOWN, f"between {_percent(gain.low)} and {_percent(gain.high)} more would be found in a cache"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _range(interval: Interval) -> str:
    low, high = (f"{100 * each:.1f}" for each in (interval.low, interval.high))
    return f"{low} %" if low == high else f"{low} to {high} %"


def lines(advice: Advice) -> list[str]:
    """For people."""
    watched, estimate = advice.watched, advice.estimate
    found: list[tuple[str, str]] = []
    if advice.tokens:
        source = f"{estimate.requests:,} requests by their blocks" if estimate.requests else "counters alone: bounds"
        gain = estimate.gain
        found = [
            (
                "watched",
                f"{_replicas(watched)}, {duration(watched.seconds)}, {advice.tokens:,.0f} prompt tokens",
            ),
            ("found in a cache", f"{_percent(estimate.now)} now"),
            ("routed by prefix", f"{_range(Interval(estimate.now + gain.low, estimate.now + gain.high))}  ({source})"),
            ("prompts to compute", f"{_range(advice.prefill_left)} of now"),
            *_prefill(advice),
            (
                "waiting",
                f"{min(watched.waiting, default=0):.0f} to {max(watched.waiting, default=0):.0f} requests a replica",
            ),
            ("busiest replica", f"{_busiest(watched):.2f} times the mean"),
        ]
    is_routed = watched.routing and advice.verdict is Verdict.NOT_KNOWN
    said = "" if is_routed else f"routing by prefix {_said(advice.verdict)}: "
    answer = [f"{watched.name}: {said}{advice.why}"]
    if advice.remedy:
        answer.append(f"  what to do: {advice.remedy}")
    problems = [f"note: {problem}" for problem in dict.fromkeys(watched.problems)]
    return [*answer, *([""] if found else []), *table(("", ""), found)[1:], *problems]


def _replicas(watched: Watched) -> str:
    read = len(watched.pairs())
    return f"{read} replicas" if read == watched.replicas else f"{read} of {watched.replicas} replicas"


def _said(verdict: Verdict) -> str:
    return {Verdict.PAYS: "would pay", Verdict.DOES_NOT: "would not pay"}.get(verdict, "may pay, or not")


def _prefill(advice: Advice) -> Iterator[tuple[str, str]]:
    """The mean time of a prompt, as it is and as it would be if it shrank with the tokens."""
    pairs = advice.watched.pairs().values()
    seconds = sum(max(0.0, after.prefill_seconds - before.prefill_seconds) for before, after in pairs)
    number = sum(max(0.0, after.prefills - before.prefills) for before, after in pairs)
    if number:
        mean, left = seconds / number, advice.prefill_left
        yield "mean prefill", f"{mean:.2f} s now, {mean * left.low:.2f} to {mean * left.high:.2f} s"


def _busiest(watched: Watched) -> float:
    loads = [fmean(each) for each in watched.loads.values()]
    mean = sum(loads) / len(loads) if loads else 0.0
    return max(loads) / mean if mean else 1.0


def document(advice: Advice) -> dict[str, Any]:
    """For programs. Shares are of all prompt tokens, 0 to 1."""
    watched, estimate = advice.watched, advice.estimate

    def interval(of: Interval) -> dict[str, float]:
        return {"low": round(of.low, 4), "high": round(of.high, 4)}

    return {
        "version": 1,
        "namespace": watched.namespace,
        "name": watched.name,
        "verdict": str(advice.verdict),
        "why": advice.why,
        **({"remedy": advice.remedy} if advice.remedy else {}),
        "seconds": round(watched.seconds, 1),
        "replicas": watched.replicas,
        "routing": watched.routing or "none",
        "promptTokens": round(advice.tokens),
        "hitRate": round(estimate.now, 4),
        "gain": interval(estimate.gain),
        "promptsToCompute": interval(advice.prefill_left),
        "requests": estimate.requests,
        "waiting": {"low": min(watched.waiting, default=0.0), "high": max(watched.waiting, default=0.0)},
        "busiestReplica": round(_busiest(watched), 3),
        "problems": list(dict.fromkeys(watched.problems)),
    }
