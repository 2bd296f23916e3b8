"""What a bad way to the API server does to a request. Pure: a request, a weather and its chance make a fault."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any


class Kind(StrEnum):
    """Each has been seen from a real API server, or from what stands before it."""

    CONFLICT = "conflict"  # 409: somebody else wrote first
    EXPIRED = "expired"  # 410: a watch, or the next page of a list, whose version etcd has forgotten
    THROTTLED = "throttled"  # 429 with Retry-After
    SERVER_ERROR = "server-error"  # 500, 502, 503, 504
    DROPPED = "dropped"  # the connection ends before the request arrives
    LOST_ANSWER = "lost-answer"  # it was carried out, and nobody says so
    DELAYED = "delayed"
    CUT_WATCH = "cut-watch"  # a watch that ends in the middle of a line
    SILENT_WATCH = "silent-watch"  # one that tells nothing any more, and ends later


WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
OF_WATCHES = frozenset(
    {Kind.EXPIRED, Kind.THROTTLED, Kind.SERVER_ERROR, Kind.DROPPED, Kind.CUT_WATCH, Kind.SILENT_WATCH}
)
OF_WRITES = frozenset({Kind.CONFLICT, Kind.THROTTLED, Kind.SERVER_ERROR, Kind.DROPPED, Kind.LOST_ANSWER, Kind.DELAYED})
OF_READS = frozenset({Kind.THROTTLED, Kind.SERVER_ERROR, Kind.DROPPED, Kind.DELAYED})
ONLY_OF_WATCHES = OF_WATCHES - OF_READS
# A watch is asked for once in ten minutes; so that these meet any, the ones that run are hung up on first.
HANGS_UP = ONLY_OF_WATCHES | {Kind.DROPPED}


@dataclass(frozen=True)
class Asked:
    """What matters of a request."""

    method: str
    query: Mapping[str, str]
    path: str = "/"

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in ("true", "1")

    @property
    def possible(self) -> frozenset[Kind]:
        if self.is_watch:
            return OF_WATCHES
        if self.method in WRITES:
            return OF_WRITES
        return OF_READS | ({Kind.EXPIRED} if "continue" in self.query else frozenset())


@dataclass(frozen=True)
class Fault:
    """`seconds`: until it comes, in a watch; how long it lasts, for a delay."""

    kind: Kind
    seconds: float = 0.0
    code: int = 0

    @property
    def is_at_once(self) -> bool:
        """Of a watch: it never begins."""
        refuses = self.kind in (Kind.THROTTLED, Kind.SERVER_ERROR, Kind.DROPPED)
        return refuses or (self.kind is Kind.EXPIRED and self.seconds < 1)


@dataclass(frozen=True)
class Weather:
    """The shares of requests that meet each fault, of those that can."""

    shares: Mapping[Kind, float]

    @property
    def hangs_up(self) -> bool:
        """Whether it begins with the end of all watches."""
        return not HANGS_UP.isdisjoint(self.shares)

    def strike(self, asked: Asked, chance: Random, due: Collection[Kind] = ()) -> Fault | None:
        """At most one fault; one that is due comes whatever its share."""
        drawn, part, code = chance.random(), chance.random(), chance.choice((500, 502, 503, 504))
        # What can meet the fewest requests first, so that the others do not take these from it.
        for kind in sorted(due, key=lambda kind: (kind not in ONLY_OF_WATCHES, kind)):
            if kind in asked.possible:
                return Fault(kind, seconds_of(kind, part), code)
        for kind in sorted(self.shares):
            if kind not in asked.possible:
                continue
            if drawn < self.shares[kind]:
                return Fault(kind, seconds_of(kind, part), code)
            drawn -= self.shares[kind]
        return None


def chance_of(seed: int, asked: Asked, number: int) -> Random:
    """Of this request alone, the `number`th of its method and path: so the others' order shifts nothing."""
    return Random(f"{seed} {asked.method} {asked.path} {'watch ' if asked.is_watch else ''}{number}")


def seconds_of(kind: Kind, part: float) -> float:
    """Where in its range a fault lies that takes time."""
    longest = {Kind.DELAYED: 3.0, Kind.CUT_WATCH: 6.0, Kind.SILENT_WATCH: 8.0, Kind.EXPIRED: 5.0}
    return part * longest.get(kind, 0.0)


CODES = {Kind.CONFLICT: (409, "Conflict"), Kind.EXPIRED: (410, "Expired"), Kind.THROTTLED: (429, "TooManyRequests")}
REASONS = {500: "InternalError", 502: "BadGateway", 503: "ServiceUnavailable", 504: "Timeout"}


def status(fault: Fault) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Code, headers and body of a refusal, in the API server's words."""
    code, reason = CODES.get(fault.kind, (fault.code, REASONS.get(fault.code, "")))
    headers = {"Retry-After": "1"} if fault.kind is Kind.THROTTLED else {}
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"made by a test: {fault.kind}",
        "reason": reason,
        "code": code,
    }
    return code, headers, body


def expired_event() -> bytes:
    """How a watch says it in the middle: an event, since its answer was 200 long ago."""
    _, _, body = status(Fault(Kind.EXPIRED))
    return json.dumps({"type": "ERROR", "object": body}).encode() + b"\n"
