"""Lines of a container's log: cut out of its bytes, and read. Whatever a pod prints is bounded and cleaned. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from llmservice_runtime.bounded_json import clean
from llmservice_runtime.contract import SERVER_CONTAINER
from llmservice_runtime.failures.reasons import FailureReason
from llmservice_runtime.supervisor.log_reader import LINE_LIMIT, parse_line

SUPERVISOR, VLLM = "supervisor", "vllm"
OWN = "[llmservice] "
"""Before each line of the supervisor and of what else is the operator's."""
MOST_BYTES = 4 * LINE_LIMIT
"""Of a line; what is beyond them is dropped."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FAILURES = tuple(f"{word}: " for word in ("Failed", *FailureReason))

Moment = tuple[int, str]
"""Seconds since 1970, and nine digits of their fraction."""
NEVER: Moment = (0, "")


@dataclass(frozen=True, slots=True)
class Origin:
    """A container of a pod."""

    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `level` is empty where its writer gave none."""

    origin: Origin
    time: str
    moment: Moment
    source: str
    """SUPERVISOR or VLLM in the server's container, else the container."""
    level: str
    text: str

    def is_at_least(self, level: str) -> bool:
        """Whether it is as serious as `level`, or of no known level."""
        return not self.level or LEVELS.index(self.level) >= LEVELS.index(level)


class Splitter:
    """Cuts bytes into lines. Of a longer line the first MOST_BYTES are kept."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that end in this chunk."""
        first, *others = chunk.split(b"\n")
        self._rest += first[: MOST_BYTES - len(self._rest)]
        for other in others:
            yield self._rest
            self._rest = other[:MOST_BYTES]

    def end(self) -> Iterator[bytes]:
        """The last line, where it has no newline."""
        if self._rest:
            yield self._rest
        self._rest = b""


def read(raw: bytes, origin: Origin) -> Line:
    """A line as the API server sends it with `timestamps`."""
    time, moment, rest = _stamped(raw)
    text = _COLOURS.sub("", rest.decode(errors="replace")).rstrip()[:LINE_LIMIT]
    source, level = origin.container, parse_line(text).level
    if text.startswith(OWN):
        text = text.removeprefix(OWN)
        level = "ERROR" if text.startswith(_FAILURES) else "INFO"
        source = SUPERVISOR if origin.container == SERVER_CONTAINER else source
    elif origin.container == SERVER_CONTAINER:
        source = VLLM
    return Line(origin, time, moment, source, level, " ".join(clean(text).splitlines()))


def _stamped(raw: bytes) -> tuple[str, Moment, bytes]:
    """The time, which is empty for a line without one, and what follows it."""
    found = _STAMP.match(raw)
    if found is None:
        return "", NEVER, raw
    base, fraction, offset = (part.decode() for part in found.groups(b""))
    try:
        seconds = int(datetime.fromisoformat(base + offset).timestamp())
    except (ValueError, OverflowError):
        return "", NEVER, raw
    return found[0].decode().rstrip(), (seconds, fraction.ljust(9, "0")), raw[found.end() :]
