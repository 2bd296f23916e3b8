"""The last Events of a service and its pods, those of one kind and reason taken together.

Anybody who may write Events can write one about any object: what is read is bounded and cleaned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from kubeloop.errors import KubeError
from kubeloop.resources import EVENT
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Api, Json
from llmservice_cli.cluster import why

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
