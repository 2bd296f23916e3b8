"""Reads one LLMService: the object, its pods, the figures of each ready vLLM, what is held, and Events."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from kubeloop.errors import KubeError
from kubeloop.resources import EVENT, POD
from llmservice_api.constants import selector_text
from llmservice_operator.facts.pods import PodFacts, replicas
from llmservice_runtime.bounded_json import clean
from llmservice_vllm import metrics

from llmservice_cli.api import Api, Json, status_of
from llmservice_cli.cluster import why
from llmservice_cli.metrics import HeldRequests, Samples, held_of, page_of, samples_of
from llmservice_cli.services import service

# What one vLLM says of itself at this moment, from the text of its /metrics.

_DRAFTS = (metrics.DRAFTS, metrics.DRAFT_TOKENS, metrics.ACCEPTED_TOKENS)
_NOW = (metrics.RUNNING, metrics.WAITING, metrics.KV_USAGE, metrics.PREEMPTIONS, metrics.REJECTIONS)
NAMES = frozenset((*_NOW, metrics.PREFIX_QUERIES, metrics.PREFIX_HITS, *_DRAFTS))

NOT_SPECULATING = "vLLM has no counters of drafts: it does not speculate"


@dataclass(frozen=True, slots=True)
class Absent:
    """A figure that there is none of, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Requests and shares (0 to 1) now; counts since this vLLM started. Engines of one pod are taken together."""

    running: int | Absent
    waiting: int | Absent
    kv_cache_usage: float | Absent  # of the fullest engine
    prefix_hit_rate: float | Absent  # prompt tokens found in the cache / asked of it
    preemptions: int | Absent
    rejections: Mapping[str, int] | Absent  # by the queue limit that was hit
    acceptance_rate: float | Absent  # draft tokens that the model kept / draft tokens
    acceptance_length: float | Absent  # tokens that one pass of the model yields on average: 1 + accepted / drafts

    def to_object(self) -> dict[str, Any]:
        """JSON; figures that there are none of lie under `absent` with the reason."""
        named: dict[str, Any] = {
            "requestsRunning": self.running,
            "requestsWaiting": self.waiting,
            "kvCacheUsage": self.kv_cache_usage,
            "prefixCacheHitRate": self.prefix_hit_rate,
            "preemptions": self.preemptions,
            "admissionRejections": self.rejections,
            "draftAcceptanceRate": self.acceptance_rate,
            "meanAcceptanceLength": self.acceptance_length,
        }
        absent = {name: value.why for name, value in named.items() if isinstance(value, Absent)}
        there = {name: value for name, value in named.items() if name not in absent}
        return {**there, "absent": absent} if absent else there


def read_figures(text: str) -> Figures:
    """ValueError when it is not the text of a /metrics page."""
    samples = samples_of(text, NAMES)
    drafts, accepted = _total(samples, metrics.DRAFTS), _total(samples, metrics.ACCEPTED_TOKENS)
    ratio = _share(accepted, drafts, "nothing was drafted yet")
    usage = samples.get(metrics.KV_USAGE)
    return Figures(
        running=_whole(_total(samples, metrics.RUNNING)),
        waiting=_whole(_total(samples, metrics.WAITING)),
        kv_cache_usage=max(value for _, value in usage) if usage else _missing(metrics.KV_USAGE),
        prefix_hit_rate=_share(
            _total(samples, metrics.PREFIX_HITS), _total(samples, metrics.PREFIX_QUERIES), "no prompt was looked up yet"
        ),
        preemptions=_whole(_total(samples, metrics.PREEMPTIONS)),
        rejections=_by_label(samples, metrics.REJECTIONS, "reason"),
        acceptance_rate=_share(accepted, _total(samples, metrics.DRAFT_TOKENS), "nothing was drafted yet"),
        acceptance_length=ratio if isinstance(ratio, Absent) else 1 + ratio,
    )


def _missing(name: str) -> Absent:
    if name in _DRAFTS:
        return Absent(NOT_SPECULATING)
    return Absent(f"vLLM reports no {name}")


def _total(samples: Samples, name: str) -> float | Absent:
    values = samples.get(name)
    return sum(value for _, value in values) if values else _missing(name)


def _whole(value: float | Absent) -> int | Absent:
    return value if isinstance(value, Absent) else round(value)


def _share(part: float | Absent, whole: float | Absent, none_yet: str) -> float | Absent:
    if isinstance(part, Absent):
        return part
    if isinstance(whole, Absent):
        return whole
    return part / whole if whole else Absent(none_yet)


def _by_label(samples: Samples, name: str, label: str) -> Mapping[str, int] | Absent:
    values = samples.get(name)
    if not values:
        return _missing(name)
    counts: dict[str, int] = {}
    for labels, value in values:
        counts[labels.get(label, "")] = counts.get(labels.get(label, ""), 0) + round(value)
    return counts


# Where each pod of a service is between its making and its end. Pure.


class Phase(StrEnum):
    """In the order in which a pod goes through them; FAILING may come at any time."""

    PENDING = "pending"
    """It has no node, or none of its containers runs the server yet."""
    FETCHING = "fetching"
    LOADING = "loading"
    STARTING = "starting"
    """The server's process runs and does not answer yet: its checks, its first request, or a phase not reported."""
    READY = "ready"
    DRAINING = "draining"
    FAILING = "failing"


_REPORTED = {"Fetching": Phase.FETCHING, "Loading": Phase.LOADING}
_ON_ITS_WAY = frozenset({"", "ContainerCreating", "PodInitializing"})
"""What a container waits for that is no failure."""


def phase_of(facts: PodFacts, status: Json) -> Phase:
    """`status` is the service's: its progress and its failure are about one pod each."""
    progress, failure = status.get("progress") or {}, status.get("failure") or {}
    if facts.deleting:
        return Phase.DRAINING
    if facts.ready:
        return Phase.READY
    if facts.phase == "Failed" or facts.is_lost or _is_failing(facts) or failure.get("pod") == facts.name:
        return Phase.FAILING  # the pod of a failure may be at its next attempt
    if not facts.running:
        return Phase.PENDING
    if facts.was_ready:
        return Phase.FAILING
    reported = str(progress.get("phase")) if progress.get("pod") == facts.name else ""
    return _REPORTED.get(reported, Phase.STARTING)


def _is_failing(facts: PodFacts) -> bool:
    if facts.waiting is not None and facts.waiting.reason not in _ON_ITS_WAY:
        return True
    return facts.terminated is not None and not facts.running


def counts(phases: Iterable[Phase]) -> Mapping[Phase, int]:
    """How many pods are in each phase that any is in, in their order."""
    found = Counter(phases)
    return {phase: found[phase] for phase in Phase if found[phase]}


# The last Events of a service and its pods, those of one kind and reason taken together. Anybody who may write Events
# can write one about any object: what is read is bounded and cleaned.

MOST_READ = 100
"""Events that are read of one object."""
MOST_PODS = 8
MOST_SHOWN = 10
MOST_COUNTED = 1_000_000
LONGEST = 300
"""Characters of a message."""
LONGEST_WORD = 128
_OLDEST = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """Events of one type, kind and reason; the message is the latest one's."""

    is_warning: bool
    kind: str
    reason: str
    message: str
    count: int
    last: datetime

    def to_object(self) -> dict[str, Any]:
        """JSON."""
        return {
            "type": "Warning" if self.is_warning else "Normal",
            "kind": self.kind,
            "reason": self.reason,
            "message": self.message,
            "count": self.count,
            "lastSeen": self.last.isoformat(timespec="seconds"),
        }


async def events_of(kube: Api, namespace: str, name: str, pods: Sequence[str]) -> tuple[Event, ...] | str:
    """The latest first, at most MOST_SHOWN; the reason where they may not be read. The children of a service that have
    its name, such as its Deployment, are among them."""
    asked = (name, *pods[:MOST_PODS])
    try:
        pages = await asyncio.gather(*(_about(kube, namespace, one) for one in asked))
    except KubeError as error:
        return f"not listed: {why(error, namespace)}"
    return aggregated(event for page, one in zip(pages, asked, strict=True) for event in page if _is_about(event, one))


async def _about(kube: Api, namespace: str, name: str) -> list[Json]:
    selector = {"fieldSelector": f"involvedObject.name={name}", "limit": str(MOST_READ)}
    return list((await kube.list_selected(EVENT, namespace, selector)).get("items") or ())[:MOST_READ]


def _is_about(event: object, name: str) -> bool:
    about = event.get("involvedObject") if isinstance(event, Mapping) else None
    return isinstance(about, Mapping) and about.get("name") == name


def aggregated(objects: Iterable[object]) -> tuple[Event, ...]:
    """Taken together by type, kind and reason; what is no Event is left out."""
    found: dict[tuple[bool, str, str], Event] = {}
    for event in map(_read, objects):
        if event is None:
            continue
        key = event.is_warning, event.kind, event.reason
        before = found.get(key)
        if before is None:
            found[key] = event
            continue
        latest = max(before, event, key=lambda one: one.last)
        found[key] = replace(latest, count=min(before.count + event.count, MOST_COUNTED))
    return tuple(sorted(found.values(), key=lambda event: event.last, reverse=True)[:MOST_SHOWN])


def _read(event: object) -> Event | None:
    if not isinstance(event, Mapping):
        return None
    about, series = event.get("involvedObject"), event.get("series")
    more = series if isinstance(series, Mapping) else {}
    stamps = [more.get("lastObservedTime"), *(event.get(key) for key in ("lastTimestamp", "eventTime"))]
    counted = [count for count in (event.get("count"), more.get("count")) if type(count) is int]
    return Event(
        is_warning=event.get("type") == "Warning",
        kind=_text(about.get("kind") if isinstance(about, Mapping) else "", LONGEST_WORD),
        reason=_text(event.get("reason"), LONGEST_WORD),
        message=_text(event.get("message"), LONGEST),
        count=max(1, min(max(counted, default=1), MOST_COUNTED)),
        last=max(map(_moment, stamps)),
    )


def _text(value: object, longest: int) -> str:
    text = value[: longest + 1] if isinstance(value, str) else ""
    text = " ".join(clean(text).split())
    return text if len(text) <= longest else f"{text[: longest - 4]} ..."


def _moment(stamp: object) -> datetime:
    """The oldest moment for what names none."""
    try:
        found = datetime.fromisoformat(stamp[:64]) if isinstance(stamp, str) else _OLDEST
        return found.astimezone(UTC) if found.tzinfo else _OLDEST
    except (ValueError, OverflowError):
        return _OLDEST


NOT_READY = "the pod is not ready"
NOT_ASKED = "not asked"
WORKER = "its leader answers requests"
"""Of a pod of a replica over several nodes."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod; `figures` is what its vLLM says, or the reason why that is not known."""

    facts: PodFacts
    figures: Figures | str

    @property
    def state(self) -> str:
        """As `kubectl get pods` says it: what a container waits for or ended with says more than the phase."""
        if self.facts.deleting:
            return "Terminating"
        if self.facts.waiting is not None:
            return self.facts.waiting.reason
        if self.facts.terminated is not None:
            return self.facts.terminated.reason
        return self.facts.reason or self.facts.phase


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The object as the API server has it; `pods`, `held` and `events` are the reason where they could not be read."""

    service: Json
    pods: tuple[Pod, ...] | str
    held: HeldRequests | str | None
    """None: the service's requests are never held."""
    events: tuple[Event, ...] | str

    def phase(self, pod: Pod) -> Phase:
        """Where one of its pods is."""
        return phase_of(pod.facts, status_of(self.service))

    @property
    def phases(self) -> Mapping[Phase, int]:
        """How many pods are in each phase; empty where they could not be read."""
        return {} if isinstance(self.pods, str) else counts(map(self.phase, self.pods))


async def snapshot(kube: Api, namespace: str, name: str, *, is_live: bool = True) -> Snapshot:
    """All of it; what may not be read is replaced by the reason. Not `is_live`: no pod is asked for anything. CliError
    where there is no such service."""
    found = await service(kube, namespace, name)
    held_now = held_of(kube, found) if is_live else _nothing()
    pods, held = await asyncio.gather(_pods(kube, namespace, name, is_live=is_live), held_now)
    known = () if isinstance(pods, str) else sorted(pods, key=lambda pod: pod.facts.ready)
    return Snapshot(found, pods, held, await events_of(kube, namespace, name, [pod.facts.name for pod in known]))


async def _nothing() -> None:
    return None


async def _pods(kube: Api, namespace: str, name: str, *, is_live: bool) -> tuple[Pod, ...] | str:
    try:
        objects = await kube.list_all(POD, namespace, label_selector=selector_text(name))
    except KubeError as error:
        return f"not listed: {why(error, namespace)}"
    found = replicas(map(PodFacts.from_object, objects))
    pods = await asyncio.gather(*(_pod(kube, facts, is_live=is_live) for facts in found))
    return tuple(sorted(pods, key=lambda pod: pod.facts.name))


async def _pod(kube: Api, facts: PodFacts, *, is_live: bool) -> Pod:
    if not is_live:
        return Pod(facts, NOT_ASKED)
    if not facts.has_api:
        return Pod(facts, WORKER)
    return Pod(facts, await _figures(kube, facts.namespace, facts.name) if facts.ready else NOT_READY)


async def _figures(kube: Api, namespace: str, pod: str) -> Figures | str:
    try:
        text = await page_of(kube, namespace, pod)
    except KubeError as error:
        return f"not read: {why(error, namespace)}"
    try:
        return read_figures(text)
    except ValueError as error:
        return f"not understood: {error}"
