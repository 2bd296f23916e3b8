"""What crosses the socket between the supervisor and the fetch container: JSON documents, one a line.

The supervisor sends one request. The answers are transfers, what is there (artifact and path), a failure, and last
how the fetch ended; then the connection closes. One that closes without the last line was cut. Both sides read with
bounds: the server container runs a model's own code, and a cache holds what others wrote.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmservice_runtime.bounded_json import Reader, Refused, parse
from llmservice_runtime.contract import MAX_ADAPTERS, CacheRoom, Failure, Transfer
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.processes import Ended

MAX_REQUEST = 1 << 20
"""Bytes of a request, most of them vLLM's flags."""
MAX_ANSWER = 64 << 10
"""Bytes of one line of the answer."""
_MAX_ARGS = 2048
_MAX_TEXT = 64 << 10


@dataclass(frozen=True)
class Request:
    """What to fetch, each as NAME=URI, and what it is checked against before weights are fetched."""

    fetch: tuple[str, ...]
    weights: str = "auto"
    context_extension: str | None = None
    args: tuple[str, ...] = ()
    """vLLM's flags."""

    @classmethod
    def of(cls, options: ServeOptions, args: Sequence[str]) -> Request:
        """What a server needs before vLLM starts."""
        return cls(options.fetch, options.weights, options.context_extension, tuple(args))

    def to_json(self) -> str:
        """One line."""
        document = {
            "fetch": list(self.fetch),
            "weights": self.weights,
            "contextExtension": self.context_extension,
            "args": list(self.args),
        }
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Request:
        """The reverse. Refused where the text is none, or out of bounds."""
        given = Reader(parse(text, MAX_REQUEST, max_depth=2))
        fetch = given.words("fetch", MAX_ADAPTERS, _MAX_TEXT)
        if not fetch:
            raise Refused("fetch is empty")
        extension = given.word("contextExtension") if given.has("contextExtension") else None
        return cls(fetch, given.word("weights", default="auto"), extension, given.words("args", _MAX_ARGS, _MAX_TEXT))


@dataclass(frozen=True)
class Fetched:
    """An artifact that is whole now, and where it lies."""

    artifact: str
    path: Path


def ended_line(ended: Ended) -> bytes:
    """The last line of an answer; on a line of its own, whatever was written before."""
    return b"\n" + json.dumps({"ended": {"code": ended.code, "signal": ended.signal}}).encode() + b"\n"


def failure_line(failure: Failure) -> bytes:
    """A failure as a line of the answer."""
    return json.dumps({"failure": json.loads(failure.to_json())}).encode() + b"\n"


def read_document(line: str) -> Transfer | CacheRoom | Fetched | Failure | None:
    """One line of the process that fetches; None for what is none of its documents."""
    try:
        given = Reader(parse(line))
        if given.has("transfer"):
            return Transfer.from_document(given.value("transfer"))
        if given.has("cache"):
            return CacheRoom.from_document(given.value("cache"))
        if given.has("artifact"):
            return Fetched(given.word("artifact"), Path(given.word("path", 4096)))
        return Failure.from_document(given.value("failure"))
    except Refused:
        return None


def read_ended(line: str) -> Ended | None:
    """How that process ended; None for any line but the last."""
    try:
        given = Reader(parse(line)).within("ended")
        if given.has("signal"):
            return Ended(None, given.integer("signal", 1, 31))
        return Ended(given.integer("code", 0, 255), None)
    except Refused:
        return None
