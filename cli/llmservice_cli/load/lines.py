"""Cuts a streamed answer into lines, with bounds: the server is not trusted. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from llmservice_runtime.bounded_json import Refused

LONGEST_EVENT = 2**20
"""Bytes of a line."""


@dataclass
class Lines:
    """Lines of a stream of at most `most` bytes. Refused where one, or all of them, are too long."""

    most: int
    taken: int = 0
    """Bytes."""
    _rest: bytearray = field(default_factory=bytearray)

    def take(self, data: bytes) -> Iterator[str]:
        """Those that end in it. An end without a newline is no line: the events of a stream end with an empty one."""
        self.taken += len(data)
        if self.taken > self.most:
            raise Refused(f"it is longer than {self.most} bytes")
        self._rest += data
        *whole, self._rest = self._rest.split(b"\n") if b"\n" in data else (self._rest,)  # looked through once
        for line in (*whole, self._rest):
            if len(line) > LONGEST_EVENT:
                raise Refused(f"an event is longer than {LONGEST_EVENT} bytes")
        for line in whole:
            yield line.rstrip(b"\r").decode(errors="replace")
