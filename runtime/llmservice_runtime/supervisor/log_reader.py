"""Copies vLLM's log to the container's log, keeps its tail and extracts measurements and progress."""

from __future__ import annotations

import os
import re
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from llmservice_runtime.bounded_json import LARGEST
from llmservice_runtime.contract import Measured

# Eight workers that fail together write eight tracebacks before the line with the cause.
TAIL_LINES = 2000
LINE_LIMIT = 4000
# (APIServer pid=12) INFO 11-21 02:28:44 [file.py:347] text; with ANSI colours if enabled
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(
    r"^(?:\([\w-]+(?: [\w.-]+)* pid=\d+\) ?)*"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?|:\s+))?"
)


@dataclass(frozen=True)
class Line:
    """A line of the log without its prefix."""

    level: str
    text: str


def parse_line(raw: str) -> Line:
    """Level ("" where no logger wrote the line) and text without prefix and colours."""
    plain = _COLOURS.sub("", raw)
    match = _PREFIX.match(plain)
    if match is None:
        return Line("", plain)
    return Line(match["level"] or "", plain[match.end() :].rstrip())


def _number(text: str) -> float:
    """ValueError for text that is not a number or exceeds LARGEST."""
    number = float(text.replace(",", ""))
    if not number < LARGEST:
        raise ValueError(f"{number} is out of range")
    return number


_Update = Callable[[Measured, "re.Match[str]"], Measured]
_MEASURES: tuple[tuple[re.Pattern[str], _Update], ...] = (
    (
        re.compile(r"KV cache size: ([\d,]+) tokens, Maximum concurrency for ([\d,]+) tokens per request: ([\d.,]+)x"),
        lambda m, found: replace(
            m,
            kv_cache_tokens=int(_number(found[1])),
            max_model_len=int(_number(found[2])),
            max_concurrency=_number(found[3]),
        ),
    ),
    (
        re.compile(r"Model loading took ([\d.]+) GiB memory and ([\d.]+) seconds"),
        lambda m, found: replace(m, model_memory_gib=_number(found[1]), model_load_seconds=_number(found[2])),
    ),
    (
        re.compile(r"Loading weights took ([\d.]+) seconds"),
        lambda m, found: replace(m, model_load_seconds=_number(found[1])),
    ),
    (
        # The second where vLLM did not measure it again (vllm/v1/worker/gpu_worker.py).
        re.compile(r"(?:Available KV cache memory:|GiB, reserved) ([\d.]+) GiB"),
        lambda m, found: replace(m, kv_cache_memory_gib=_number(found[1])),
    ),
    (
        re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s"),
        lambda m, found: replace(m, engine_init_seconds=_number(found[1])),
    ),
    (re.compile(r"\bversion (\d+\.\d+\.\d\S*)$"), lambda m, found: replace(m, vllm_version=found[1])),
)

_PROGRESS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Loading \S* ?checkpoint shards:\s+(\d+%)"), "loading the weights: {0}"),
    (re.compile(r"Starting to load model"), "loading the weights"),
    (re.compile(r"Fetching \d+ files:\s+(\d+%)"), "downloading the model: {0}"),
    (re.compile(r"Model loading took ([\d.]+) GiB memory"), "weights loaded, preparing the engine"),
    (re.compile(r"Dynamo bytecode transform time|Compiling a graph|torch\.compile takes"), "compiling the model"),
    (re.compile(r"Capturing CUDA graphs.*?:\s+(\d+%)"), "capturing CUDA graphs: {0}"),
    (re.compile(r"KV cache size: ([\d,]+) tokens"), "cache ready, warming up"),
    (re.compile(r"init engine .* took"), "engine ready, starting the server"),
)


def measure(measured: Measured, text: str) -> Measured:
    """`measured` updated with what one line of the log reports."""
    for pattern, update in _MEASURES:
        if found := pattern.search(text):
            # A model's own code may write lines of the same form without a valid number.
            with suppress(ValueError):
                return update(measured, found)
    return measured


def progress(text: str) -> str | None:
    """Progress of the start in plain words; None for most lines."""
    for pattern, words in _PROGRESS:
        if found := pattern.search(text):
            return words.format(*found.groups())
    return None


_STAGES = (
    *("starting vLLM", "downloading the model", "loading the weights", "weights loaded", "compiling the model"),
    *("cache ready", "capturing CUDA graphs", "engine ready"),
)
"""What `progress` begins with, in the order of a start."""


def position(words: str) -> tuple[int, int] | None:
    """How far a start is by its progress, to compare those of several ranks; None where that does not say it."""
    stage = re.split("[:,]", words, maxsplit=1)[0]
    percent = re.search(r": (\d{1,3})%$", words, re.ASCII)
    return (_STAGES.index(stage), int(percent[1]) if percent else 0) if stage in _STAGES else None


class LogReader:
    """Copies a pipe to a descriptor in a thread: a blocked log must not block the probes.

    `on_line` is called in that thread with each line, at most LINE_LIMIT characters; `tail` holds the last ones.
    """

    def __init__(self, source: int, target: int, on_line: Callable[[str], None]) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._source, self._target, self._on_line = source, target, on_line
        self._thread = threading.Thread(target=self._run, name="vllm-log", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _run(self) -> None:
        rest = unwritten = b""
        while chunk := os.read(self._source, 65536):
            unwritten = _write_lines(self._target, unwritten + chunk)
            *lines, rest = re.split(rb"[\r\n]", rest[-LINE_LIMIT:] + chunk)
            self._take(lines)
        _write_all(self._target, unwritten)
        self._take([rest])
        os.close(self._source)

    def _take(self, lines: list[bytes]) -> None:
        for raw in lines:
            if text := raw.decode(errors="replace").rstrip():
                self.tail.append(text[:LINE_LIMIT])
                self._on_line(text[:LINE_LIMIT])


def _write_lines(descriptor: int, data: bytes) -> bytes:
    """Write whole lines, and longer data in pieces of PIPE_BUF; return the incomplete rest.

    The supervisor writes its own lines to the same pipe, and writes of up to PIPE_BUF bytes are atomic. Python prints
    a line's text and its newline in two writes, so passing chunks on as they come would mix lines.
    """
    while data:
        ends = data.rfind(b"\n", 0, select.PIPE_BUF) + 1
        if not ends and len(data) < select.PIPE_BUF:
            break
        ends = ends or select.PIPE_BUF
        _write_all(descriptor, data[:ends])
        data = data[ends:]
    return data


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`. Errors are ignored: a log that nobody reads must not end the server."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return


def messages(tail: list[str]) -> Iterator[Line]:
    """The lines of a tail without argparse's usage text."""
    in_usage = False
    for raw in tail:
        if raw.startswith("usage: "):
            in_usage = True
        elif in_usage and raw.startswith("      "):
            continue
        else:
            in_usage = False
            yield parse_line(raw)
