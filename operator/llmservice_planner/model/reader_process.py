"""Reads configurations of models for the operator, in a process that may be killed at any time.

`python -m llmservice_planner.model.reader_process SECONDS BYTES` reads frames on stdin and answers each on stdout: a
four-byte length, then a config.json, or the answer of `reading.read`. A configuration that takes more than SECONDS of
CPU ends the process by SIGPROF; one that needs more than BYTES of memory ends it with OUT_OF_MEMORY. It ends when stdin
does.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
from typing import BinaryIO

from llmservice_planner.model.reading import read

HEAD = struct.Struct(">I")
LARGEST_FRAME = 2**20
OUT_OF_MEMORY = 3
NICE = 10
"""The operator's event loop has priority."""


def main() -> int:
    """Serve until stdin ends."""
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    import re2  # noqa: F401 - before the limits hold

    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while (document := _frame(source)) is not None:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            answer = read(document)
        except MemoryError:
            return OUT_OF_MEMORY
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.write(HEAD.pack(len(answer)) + answer)
        sink.flush()
    return 0


def _frame(source: BinaryIO) -> str | None:
    head = source.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (length,) = HEAD.unpack(head)
    return source.read(length).decode(errors="surrogatepass")


if __name__ == "__main__":
    sys.exit(main())
