"""The screen of `llmservice status`: lines of text from what was read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from shlex import quote
from typing import Any

from llmservice_api.conditions import Condition, ConditionType
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json
from llmservice_cli.metrics import HeldRequests
from llmservice_cli.services import NO_VALUE, condition_of, conditions_of, is_outdated, share_done
from llmservice_cli.terminal import Row
from llmservice_cli.text import age, duration, table

from .document import compared, needs_attention, remedies_beside_failure, shown
from .snapshot import Absent, Event, Figures, Phase, Pod, Snapshot

# Bars of characters: one for each phase that pods are in. Pure.

LONGEST = 40
"""Characters of the longest bar; up to as many pods have a character each."""
BLOCK, PLAIN = "█", "#"
STYLES: Mapping[Phase, str] = {
    Phase.PENDING: "dim",
    Phase.FETCHING: "cyan",
    Phase.LOADING: "cyan",
    Phase.STARTING: "cyan",
    Phase.READY: "green",
    Phase.DRAINING: "yellow",
    Phase.FAILING: "red",
}


def bars(phases: Mapping[Phase, int], *, is_styled: bool) -> Iterator[Row]:
    """A row each: the phase, its bar, its number of pods."""
    most = max(phases.values(), default=0)
    widest = max(map(len, Phase))
    for phase, count in phases.items():
        length = count if most <= LONGEST else max(1, round(LONGEST * count / most))
        bar = (BLOCK if is_styled else PLAIN) * length
        yield (f"{phase:<{widest}}  ", ""), (bar, STYLES[phase]), (f" {count}", "")


IDLE = "Idle"
"""Reason of Available while no replica runs because no requests come."""


SEVERE = (ConditionType.STALLED, ConditionType.DEGRADED)


def screen(snapshot: Snapshot, now: datetime, *, is_styled: bool) -> Iterator[Row]:
    """Everything about one service, the most urgent first. What others wrote is cleaned."""
    service = snapshot.service
    status = service.get("status") or {}
    yield from _plain(_head(service, snapshot.held, now), first="bold")
    yield ()
    yield from _conditions(service, now)
    phases = bars(snapshot.phases, is_styled=is_styled)
    pods = "pods, and what vLLM counts in each since its start"
    parts: tuple[tuple[str, Iterable[Row]], ...] = (
        ("failure", _plain(_failure(status.get("failure"), now), first="red")),
        ("progress", _plain(progress_lines(status.get("progress")))),
        ("rollout", _plain(rollout_lines(service))),
        ("replicas by phase", phases),
        ("replicas over several nodes", _plain(group_lines(status.get("groups")))),
        ("adapters", _plain(_adapters(status.get("adapters")))),
        ("what would fit", _plain(_fitting(service))),
        ("planned and measured", _plain(_compared(status))),
        ("measured by vLLM at its start", _plain(measured_lines(status))),
        (pods, _plain(_pods(snapshot.pods))),
        ("last Events", _events(snapshot.events, now)),
    )
    for title, part in parts:
        if rows := list(part):
            yield ()
            yield ((title, "bold"),)
            yield from ((("  ", ""), *row) for row in rows)


def _plain(lines: Iterable[str], *, first: str = "") -> Iterator[Row]:
    """Cleaned, in no style but the first one's. A newline in a text begins no line of its own."""
    for number, line in enumerate(lines):
        yield ((_one_line(line), "" if number else first),)


def _one_line(text: str) -> str:
    return " ".join(clean(text).splitlines())


def _head(service: Json, held: HeldRequests | str | None, now: datetime) -> Iterator[str]:
    metadata, spec, status = service["metadata"], service["spec"], service.get("status") or {}
    ready = condition_of(service, ConditionType.READY)
    verdict = "not reconciled by an operator yet" if ready is None else f"Ready is {ready.status}: {ready.reason}"
    yield f"{metadata['name']} in namespace {metadata['namespace']}: {verdict}"
    if is_outdated(service):
        yield "  warning     the operator has not reconciled the latest change of the spec; this is about an older one"
    if spec.get("paused"):
        yield "  warning     spec.paused is true: the operator changes and repairs nothing"
    endpoint, rollout = status.get("endpoint") or {}, status.get("rollout") or {}
    yield f"  model       {spec['model']['uri']}"
    names = ", ".join(endpoint.get("modelNames") or ())
    yield f"  endpoint    {endpoint.get('url', NO_VALUE)}{f' as {names}' if names else ''}"
    yield (
        f"  replicas    {status.get('ready', NO_VALUE)} ready, {status.get('updatedReplicas', 0)} of this revision,"
        f" {status.get('availableReplicas', 0)} available; {status.get('gpus', 0)} GPUs asked for"
    )
    yield from _scaling(spec, status)
    yield from _at_zero(service, now)
    yield from _held(held, now)
    strategy = f", strategy {rollout['strategy']}" if rollout.get("strategy") else ""
    yield f"  revision    {rollout.get('revision', NO_VALUE)}{strategy}"


def _scaling(spec: Json, status: Json) -> Iterator[str]:
    """Bounds, wanted replicas and load of each, where the spec asks for autoscaling; the condition says the rest."""
    scaling = spec.get("scaling") or {}
    if not scaling.get("autoscaling"):
        return
    effective = (status.get("effective") or {}).get("scaling") or {}
    bounds = f"{effective.get('minReplicas', NO_VALUE)} to {effective.get('maxReplicas', NO_VALUE)} replicas"
    each = effective.get("concurrencyPerReplica")
    load = "requests for each not known yet" if each is None else f"{each} requests for each"
    yield f"  autoscaling {bounds}, {scaling.get('replicas', NO_VALUE)} desired; {load}"


def _at_zero(service: Json, now: datetime) -> Iterator[str]:
    """Since when no replica runs because no requests come, and where the next one is held."""
    available = condition_of(service, ConditionType.AVAILABLE)
    if available is None or available.reason != IDLE:
        return
    port = ((service.get("status") or {}).get("holding") or {}).get("port", NO_VALUE)
    since = age(available.last_transition_time, now)
    yield f"  idle        for {since}: the next request is held at port {port} of the activators and starts a replica"


def _held(held: HeldRequests | str | None, now: datetime) -> Iterator[str]:
    """Requests that wait at the activators for a replica, and what keeps the service from zero."""
    if held is None:
        return
    if isinstance(held, str):
        yield f"  held        not readable: {held}"
        return
    count = f"at least {held.requests}" if held.unread else str(held.requests or "none")
    oldest = f", the oldest for {duration(held.oldest_seconds)}" if held.requests else ""
    yield f"  held        {count}{oldest} (activators: {held.activators})"
    yield from (f"              pod {name} is not readable: {why}" for name, why in held.unread.items())
    if held.last is not None:
        seconds = max(0.0, now.timestamp() - held.last.at)
        yield f"  last use    {duration(seconds)} ago, {held.last.method} {held.last.path or 'to another path'}"


def _conditions(service: Json, now: datetime) -> Iterator[Row]:
    found = conditions_of(service)
    first: dict[str, str] = {}
    for condition in found:
        first.setdefault(condition.message, condition.type)
    rows = [
        [
            condition.type,
            condition.status,
            age(condition.last_transition_time, now),
            condition.reason,
            _one_line(condition.message) if first[condition.message] == condition.type else NO_VALUE,
        ]
        for condition in found
    ]
    if not rows:
        yield (("no conditions: is the operator running, and does it watch this namespace?", "yellow"),)
        return
    header, *lines = table(["CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"], rows)
    yield ((header, "bold"),)
    for condition, line in zip(found, lines, strict=True):
        yield ((line, _style(condition)),)
    for reason, remedy in remedies_beside_failure(service).items():
        yield ((f"what to do about {reason}: {remedy}", ""),)


def _style(condition: Condition) -> str:
    if not needs_attention(condition):
        return "green"
    return "red" if condition.type in SEVERE else "yellow"


def rollout_lines(service: Json) -> Iterator[str]:
    """What is under way, what waits, and what was left; nothing once all is rolled out."""
    status = service.get("status") or {}
    rollout = status.get("rollout") or {}
    revision, stable = rollout.get("revision"), rollout.get("stableRevision")
    if stable and stable != revision:
        wanted = str(status.get("ready", NO_VALUE)).rpartition("/")[2]
        updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
        yield f"from {stable} to {revision}: {updated} of {wanted} updated, {available} available"
    if rollout.get("pinned"):
        yield f"pinned: {revision} is the revision of spec.rollout.pinnedRevision"
    for key, words in _ROLLOUT:
        if rollout.get(key):
            yield f"{words}: {rollout[key]}"
    if rollout.get("updatePending"):
        name = service["metadata"]["name"]
        yield f"a change of the operator waits for the next rollout: llmservice update {name} has it now"


_ROLLOUT = (
    ("reason", "why so"),
    ("gap", "while no replica answers"),
    ("failedRevision", "failed revision"),
    ("updateWaiting", "the update waits"),
    ("updateBlocked", "the update is blocked"),
)


def _failure(failure: Json | None, now: datetime) -> Iterator[str]:
    if not failure:
        return
    where = f" in pod {failure['pod']}" if failure.get("pod") else ""
    since = f", first seen {age(failure['since'], now)} ago" if failure.get("since") else ""
    yield f"{failure.get('reason', NO_VALUE)}{where}{since}"
    yield str(failure.get("message", ""))
    yield f"what to do: {failure.get('remedy', NO_VALUE)}"
    for line in failure.get("evidence") or ():
        yield f"| {line}"


def progress_lines(progress: Json | None) -> Iterator[str]:
    """How far a pod has come that starts, of status.progress."""
    if not progress:
        return
    steps = [str(progress[key]) for key in ("phase", "artifact", "step") if progress.get(key)]
    done = share_done(progress)
    parts = [" ".join(steps), *([done] if done != NO_VALUE else [])]
    if (pace := progress.get("bytesPerSecond")) is not None:
        parts.append(f"{pace / 1e6:,.0f} MB/s" if pace >= 10e6 else f"{pace / 1e6:.1f} MB/s")
    if (left := progress.get("etaSeconds")) is not None:
        parts.append(f"about {duration(float(left))} left")
    yield f"pod {progress.get('pod', NO_VALUE)}: {', '.join(parts)}"
    if progress.get("message"):
        yield str(progress["message"])


def group_lines(groups: Sequence[Json] | None) -> Iterator[str]:
    """The pods of each replica by rank, and why vLLM last ended on all of them."""
    if not groups:
        return
    rows = [
        [str(group["name"]), str(member["rank"]), *(str(member.get(key, NO_VALUE)) for key in ("pod", "node", "step"))]
        for group in groups
        for member in group.get("members") or ()
    ]
    yield from table(["REPLICA", "RANK", "POD", "NODE", "STEP"], rows, right=frozenset({1}))
    for group in groups:
        if cause := group.get("cause"):
            times = f"{group.get('restarts', 0)} restarts in the last hour; " if group.get("restarts") else ""
            yield f"{group['name']}: {times}last end: {cause}"


def _adapters(adapters: Sequence[Json] | None) -> Iterator[str]:
    if adapters:
        rows = [[str(a["name"]), "yes" if a.get("loaded") else "no", str(a.get("message", ""))] for a in adapters]
        yield from table(["ADAPTER", "LOADED", "MESSAGE"], rows)


def _fitting(service: Json) -> Iterator[str]:
    """Changes with which it would fit, each with its command; nothing where it does."""
    metadata, plan = service["metadata"], (service.get("status") or {}).get("plan") or {}
    if plan.get("verdict") not in ("DoesNotFit", "Tight"):
        return
    for remedy in plan.get("remedies") or ():
        yield f"{remedy.get('change', NO_VALUE)} ({remedy.get('verdict', NO_VALUE)})"
        if remedy.get("patch"):
            patch = quote(str(remedy["patch"]))
            yield f"  kubectl patch llms {metadata['name']} -n {metadata['namespace']} --type merge -p {patch}"


def _compared(status: Json) -> Iterator[str]:
    rows = [[row.name, shown(row.planned), shown(row.measured), row.difference] for row in compared(status)]
    if rows:
        yield from table(["", "PLANNED", "MEASURED", "DIFFERENCE"], rows, right=frozenset({1, 2, 3}))


def measured_lines(status: Json) -> Iterator[str]:
    """What is not beside a planned figure."""
    measured = status.get("measured")
    if not measured:
        yield "nothing: the operator has not read it (status.measured is absent)"
        return
    elsewhere = {"reason", *(row.measured_as for row in compared(status))}
    for name, value in measured.items():
        if name not in elsewhere:
            yield f"{_spaced(name)}: {_figure(value)}"
    if measured.get("reason"):
        yield f"what is missing: {measured['reason']}"


def _spaced(name: str) -> str:
    """kvCacheMemoryGiB -> kv cache memory GiB."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("GiB")).lower()
    return f"{words} GiB" if name.endswith("GiB") else words


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _pods(pods: tuple[Pod, ...] | str) -> Iterator[str]:
    if isinstance(pods, str):
        yield pods
        return
    if not pods:
        yield "none"
        return
    header = ["POD", "STATE", "READY", "RESTARTS", "RUNNING", "WAITING", "KV CACHE", "PREFIX HITS", "PREEMPTIONS"]
    yield from table(header, [_pod(pod) for pod in pods], right=frozenset(range(3, 9)))
    for pod in pods:
        if isinstance(pod.figures, str):
            yield f"{pod.facts.name}: no live figures, {pod.figures}"
        else:
            yield from (f"{pod.facts.name}: {line}" for line in _more(pod.figures))


def _pod(pod: Pod) -> list[str]:
    facts, figures = pod.facts, pod.figures
    cells = [facts.name, pod.state, "yes" if facts.ready else "no", str(facts.restarts)]
    if isinstance(figures, str):
        return [*cells, *[NO_VALUE] * 5]
    return [
        *cells,
        _count(figures.running),
        _count(figures.waiting),
        _percent(figures.kv_cache_usage),
        _percent(figures.prefix_hit_rate),
        _count(figures.preemptions),
    ]


def _more(figures: Figures) -> Iterator[str]:
    """What has no column: refusals, drafts, and why a column is empty."""
    if isinstance(figures.rejections, Mapping):
        refused = {reason: count for reason, count in figures.rejections.items() if count}
        counts = ", ".join(f"{count} by {reason}" for reason, count in sorted(refused.items())) or "none"
        yield f"requests refused by a queue limit: {counts}"
    if not isinstance(figures.acceptance_rate, Absent):
        length = figures.acceptance_length
        each = "" if isinstance(length, Absent) else f", {length:.2f} tokens a pass on average"
        yield f"speculative decoding: {_percent(figures.acceptance_rate)} of the draft tokens accepted{each}"
    absent: dict[str, str] = figures.to_object().get("absent", {})
    for why in dict.fromkeys(absent.values()):
        yield f"{', '.join(name for name, reason in absent.items() if reason == why)}: {why}"


def _count(value: int | Absent) -> str:
    return NO_VALUE if isinstance(value, Absent) else str(value)


def _percent(value: float | Absent) -> str:
    return NO_VALUE if isinstance(value, Absent) else f"{100 * value:.1f} %"


def _events(events: tuple[Event, ...] | str, now: datetime) -> Iterator[Row]:
    if isinstance(events, str):
        yield ((clean(events), ""),)
        return
    rows = [
        [
            duration((now - event.last).total_seconds()),
            f"x{event.count}",
            event.kind,
            event.reason,
            event.message,
        ]
        for event in events
    ]
    if rows:
        header, *lines = table(["LAST", "COUNT", "OF", "REASON", "MESSAGE"], rows)
        yield ((header, "bold"),)
        for event, line in zip(events, lines, strict=True):
            yield ((line, "yellow" if event.is_warning else ""),)
