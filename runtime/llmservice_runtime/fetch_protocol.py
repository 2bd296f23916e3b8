"""Protocol between supervisor and fetch container on a unix socket: JSON documents, one per line.

The supervisor sends one request. The response consists of transfers, fetched artifacts (name and path), possibly a
failure, and last how the fetch process ended; then the connection closes. Without that last line the response is
interrupted. Both sides parse with bounds: the server container runs a model's own code, and others may write the cache.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from llmservice_runtime.bounded_json import Reader, Refused, parse
from llmservice_runtime.contract import MAX_ADAPTERS, CacheRoom, Failure, Transfer
from llmservice_runtime.documents import Document, Field, to_line
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.processes import Ended

MAX_REQUEST = 1 << 20
"""Bytes of a request; most are vLLM's flags."""
MAX_ANSWER = 64 << 10
"""Bytes of one line of the response."""
_MAX_TEXT = 64 << 10


@dataclass(frozen=True)
class Request(Document):
    """What to fetch, each as NAME=URI, and the settings that configurations are checked against before the weights."""

    fetch: Annotated[tuple[str, ...], Field(items=MAX_ADAPTERS, longest=_MAX_TEXT)]
    weights: str = "auto"
    context_extension: Annotated[str | None, Field(unwritten=())] = None
    args: Annotated[tuple[str, ...], Field(items=2048, longest=_MAX_TEXT)] = ()
    """vLLM's flags."""

    @classmethod
    def of(cls, options: ServeOptions, args: Sequence[str]) -> Request:
        """The request for what a server needs before vLLM starts."""
        return cls(options.fetch, options.weights, options.context_extension, tuple(args))

    def to_json(self) -> str:
        """One line."""
        return to_line(self.to_document())

    @classmethod
    def from_json(cls, text: str) -> Request:
        """The inverse. Refused where the text is invalid or out of bounds."""
        request = cls.from_document(parse(text, MAX_REQUEST, max_depth=2))
        if not request.fetch:
            raise Refused("fetch is empty")
        return request


@dataclass(frozen=True)
class Fetched:
    """A complete artifact and its path."""

    artifact: str
    path: Path


def ended_line(ended: Ended) -> bytes:
    """The last line of a response, preceded by a newline in case the output before it had none."""
    return b"\n" + json.dumps({"ended": {"code": ended.code, "signal": ended.signal}}).encode() + b"\n"


def failure_line(failure: Failure) -> bytes:
    """A failure as a line of the response."""
    return json.dumps({"failure": json.loads(failure.to_json())}).encode() + b"\n"


def read_document(line: str) -> Transfer | CacheRoom | Fetched | Failure | None:
    """Parse one line of the fetch process; None for any other text."""
    try:
        given = Reader(parse(line))
        if given.has("transfer"):
            return Transfer.from_document(given.within("transfer"))
        if given.has("cache"):
            return CacheRoom.from_document(given.within("cache"))
        if given.has("artifact"):
            return Fetched(given.word("artifact"), Path(given.word("path", 4096)))
        return Failure.from_document(given.within("failure"))
    except Refused:
        return None


def read_ended(line: str) -> Ended | None:
    """How the fetch process ended; None for any line but the last."""
    try:
        given = Reader(parse(line)).within("ended")
        if given.has("signal"):
            return Ended(None, given.integer("signal", 1, 31))
        return Ended(given.integer("code", 0, 255), None)
    except Refused:
        return None
