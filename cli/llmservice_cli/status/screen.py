"""The screen of `llmservice status`: lines of text from what was read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from llmservice_operator.api.conditions import ConditionType

from llmservice_cli.api import Json
from llmservice_cli.services import conditions_of, is_outdated
from llmservice_cli.text import age, duration, table

from .document import remedies
from .figures import Absent, Figures
from .held import Held
from .snapshot import Pod, Snapshot

NO_VALUE = "-"
IDLE = "Idle"
"""Reason of Available while no replica runs because no requests come."""


def overview(services: Sequence[Json], *, with_namespace: bool) -> list[str]:
    header = ["NAME", "READY", "REASON", "PROGRESS", "MODEL", "URL"]
    rows = []
    for service in services:
        status, metadata = service.get("status") or {}, service["metadata"]
        row = [
            metadata["name"],
            status.get("ready", NO_VALUE),
            next((c.reason for c in conditions_of(service) if c.type == "Ready"), "not reconciled yet"),
            _share_done(status.get("progress") or {}),
            service["spec"]["model"]["uri"],
            (status.get("endpoint") or {}).get("url", NO_VALUE),
        ]
        rows.append([metadata["namespace"], *row] if with_namespace else row)
    return table(["NAMESPACE", *header] if with_namespace else header, rows)


def screen(snapshot: Snapshot, now: datetime) -> list[str]:
    """Everything about one service, the most urgent first."""
    service = snapshot.service
    status = service.get("status") or {}
    lines = [*_head(service, snapshot.held, now), ""]
    lines += [*_conditions(service, now)]
    for title, part in (
        ("failure", _failure(status.get("failure"), now)),
        ("progress", _progress(status.get("progress"))),
        ("adapters", _adapters(status.get("adapters"))),
        ("measured by vLLM at its start", _measured(status)),
        ("pods, and what vLLM counts in each since its start", _pods(snapshot.pods)),
    ):
        if rows := list(part):
            lines += ["", title, *(f"  {row}" for row in rows)]
    return lines


def _head(service: Json, held: Held | str | None, now: datetime) -> Iterator[str]:
    metadata, spec, status = service["metadata"], service["spec"], service.get("status") or {}
    ready = next((c for c in conditions_of(service) if c.type == "Ready"), None)
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
        f" {status.get('availableReplicas', 0)} available; {status.get('gpus', 0)} GPUs in all"
    )
    yield from _scaling(spec, status)
    yield from _at_zero(service, now)
    yield from _held(held)
    details = [f"{key} {rollout[key]}" for key in ("strategy", "reason", "gap", "failedRevision") if rollout.get(key)]
    if rollout.get("updatePending"):
        details.append("a change of the operator waits for the next rollout")
    yield f"  revision    {', '.join([rollout.get('revision', NO_VALUE), *details])}"


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
    available = next((c for c in conditions_of(service) if c.type == ConditionType.AVAILABLE), None)
    if available is None or available.reason != IDLE:
        return
    port = ((service.get("status") or {}).get("holding") or {}).get("port", NO_VALUE)
    since = age(available.last_transition_time, now)
    yield f"  idle        for {since}: the next request is held at port {port} of the activators and starts a replica"


def _held(held: Held | str | None) -> Iterator[str]:
    """Requests that wait at the activators for a replica."""
    if held is None:
        return
    if isinstance(held, str):
        yield f"  held        not readable: {held}"
        return
    count = f"at least {held.requests}" if held.unread else str(held.requests or "none")
    oldest = f", the oldest for {duration(held.oldest_seconds)}" if held.requests else ""
    yield f"  held        {count}{oldest} (activators: {held.activators})"
    yield from (f"              pod {name} is not readable: {why}" for name, why in held.unread.items())


def _conditions(service: Json, now: datetime) -> Iterator[str]:
    found = conditions_of(service)
    rows = [[c.type, c.status, age(c.last_transition_time, now), c.reason, c.message] for c in found]
    if not rows:
        yield "no conditions: is the operator running, and does it watch this namespace?"
        return
    yield from table(["CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"], rows)
    failed = ((service.get("status") or {}).get("failure") or {}).get("reason")
    for reason, remedy in remedies(service).items():
        if reason != failed:
            yield f"what to do about {reason}: {remedy}"


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


def _progress(progress: Json | None) -> Iterator[str]:
    if not progress:
        return
    steps = [str(progress[key]) for key in ("phase", "artifact", "step") if progress.get(key)]
    done = _share_done(progress)
    parts = [" ".join(steps), *([done] if done != NO_VALUE else [])]
    if (pace := progress.get("bytesPerSecond")) is not None:
        parts.append(f"{pace / 1e6:,.0f} MB/s" if pace >= 10e6 else f"{pace / 1e6:.1f} MB/s")
    if (left := progress.get("etaSeconds")) is not None:
        parts.append(f"about {duration(float(left))} left")
    yield f"pod {progress.get('pod', NO_VALUE)}: {', '.join(parts)}"
    if progress.get("message"):
        yield str(progress["message"])


def _share_done(progress: Json) -> str:
    percent = progress.get("percent")
    if percent is not None:
        return f"{percent} %"
    return str(progress.get("phase") or NO_VALUE)


def _adapters(adapters: Sequence[Json] | None) -> Iterator[str]:
    if adapters:
        rows = [[str(a["name"]), "yes" if a.get("loaded") else "no", str(a.get("message", ""))] for a in adapters]
        yield from table(["ADAPTER", "LOADED", "MESSAGE"], rows)


def _measured(status: Json) -> Iterator[str]:
    measured = status.get("measured")
    if not measured:
        yield "nothing: the operator has not read it (status.measured is absent)"
        return
    names = [name for name in measured if name != "reason"]
    for name in names:
        yield f"{_spaced(name)}: {_plain(measured[name])}"
    if measured.get("reason"):
        yield f"what is missing: {measured['reason']}"


def _spaced(name: str) -> str:
    """kvCacheMemoryGiB -> kv cache memory GiB."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("GiB")).lower()
    return f"{words} GiB" if name.endswith("GiB") else words


def _plain(value: Any) -> str:
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
