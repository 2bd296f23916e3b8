"""vLLM's own engine, started beside the tests as a process, for what it prints about its memory."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_port

_LINE = re.compile(r"KV cache size: ([\d,]+) tokens, Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
# Nothing is fetched, no processor is claimed, and nothing is compiled: the line comes before the first request.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
}


@dataclass(frozen=True, slots=True)
class Printed:
    """What an engine says of its KV cache."""

    tokens: int
    length: int
    concurrency: str
    """As it is printed: two places."""


class EngineEndedError(RuntimeError):
    """It ended, or was too slow, before it said anything; the message is the end of its output."""


def printed_kv_cache(
    model: Path, arguments: Sequence[str], environment: Mapping[str, str] = {}, *, patience: float = 240
) -> Printed:
    """The line of an engine with weights of noise, which is stopped as soon as it came."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager", "--port", str(free_port())]
    tail: list[str] = []
    with _engine([*command, *arguments], {**os.environ, **_ENVIRONMENT, **environment}, model) as process:
        for line in _lines(process, patience):
            if found := _LINE.search(line):
                return Printed(int(found[1].replace(",", "")), int(found[2].replace(",", "")), found[3])
            tail = [*tail[-400:], line]
    raise EngineEndedError("".join(tail))


@contextlib.contextmanager
def _engine(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own; all of the group is gone afterwards."""
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _lines(process: subprocess.Popen[bytes], patience: float) -> Iterator[str]:
    """Lines until it ends, or nothing has come of it in time."""
    assert process.stdout is not None
    pipe, ends, rest = process.stdout.fileno(), time.monotonic() + patience, b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, ends - time.monotonic())):
            read = os.read(pipe, 65536)
            *whole, rest = (rest + read).split(b"\n")
            yield from (line.decode(errors="replace") + "\n" for line in whole)
            if not read:
                return
