"""What fits where: `llmservice plan --compare` for a config.json that somebody pasted, or a model of a hub.

A configuration may be made to keep its reader busy. It is read and planned with in a process of its own, which has the
operator's planner, limits of processor time, memory and output, none of this process's variables, and no token; it is
killed where it takes too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llmservice_runtime.bounded_json import Reader, Refused, clean, parse

MOST_CONFIG = 512 * 1024
"""Bytes of a config.json; those of hubs have up to some ten thousand."""
MOST_ANSWER = 2 * 2**20
WALL_SECONDS = 30.0
AT_ONCE = 2
MOST_ASKED = 8
"""Plans that are computed or wait for their turn; one of each viewer."""
LIMITED = "llmservice_ui.limited_plan"
PASSED_ON = ("PATH", "PYTHONPATH", "LANG", "PYTHONPYCACHEPREFIX")
FOR_THE_HUB = ("HF_ENDPOINT", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")
ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]{1,100})?", re.ASCII)
BAD_INPUT = 2
_WORD = re.compile(r"[\w .,:+-]{1,400}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Asked:
    """The form."""

    config: str = ""
    model: str = ""
    gpus: str = ""
    tensor_parallel: str = ""
    max_model_len: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Asked:
        return cls(
            given.get("config", "").strip(),
            *(given.get(name, "").strip()[:400] for name in ("model", "gpus", "tp", "length")),
        )

    def problems(self, *, can_reach_hub: bool) -> Sequence[str]:
        """Why nothing is planned; what is in the values the planner says itself."""
        found = []
        if bool(self.config) == bool(self.model):
            found.append("Paste a config.json" + (", or name a model: one of both." if can_reach_hub else "."))
        if self.model and not can_reach_hub:
            found.append("This page reads no hub (the chart's value ui.hub.enabled): paste the model's config.json.")
        elif self.model and not ON_THE_HUB.fullmatch(self.model):
            found.append("The model is not written as ORG/NAME or ORG/NAME@REVISION.")
        for label, value in (("GPUs", self.gpus), ("GPUs for each replica", self.tensor_parallel),
                             ("Longest request", self.max_model_len)):  # fmt: skip
            if value and not _WORD.fullmatch(value):
                found.append(f"{label}: use names and numbers, with commas between them.")
        return found

    @property
    def words(self) -> Sequence[str]:
        """Of `llmservice plan`. Each value is one word with its option, so that none is taken for an option."""
        source = f"--model=hf://{self.model}" if self.model else "--config=-"
        named = (("--gpu", self.gpus), ("--tensor-parallel-size", self.tensor_parallel),
                 ("--max-model-len", self.max_model_len))  # fmt: skip
        return ["plan", "--compare", "-o", "json", source, *(f"{name}={value}" for name, value in named if value)]


@dataclass(frozen=True, slots=True)
class Cell:
    """One GPU with one precision."""

    verdict: str
    """Empty: it is not served."""
    reason: str
    longest: int | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Grid:
    """A row for each GPU."""

    columns: Sequence[tuple[str, str]]
    """What weights and KV cache are held in."""
    rows: Sequence[tuple[str, Sequence[Cell], int | None]]
    """The GPU, its cells, and how many of them are needed, where one does not do and it is known."""
    has_needed: bool


@dataclass(frozen=True, slots=True)
class Sized:
    """The answer: a grid, or why there is none."""

    grid: Grid | None = None
    problems: Sequence[str] = ()
    is_bad_input: bool = False


@dataclass
class Sizer:
    """Plans, a few at a time."""

    environment: Mapping[str, str]
    """Of this process."""
    can_reach_hub: bool = False
    seconds: float = WALL_SECONDS
    command: Sequence[str] = (sys.executable, "-B", "-m", LIMITED)
    _limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _viewers: set[str] = field(default_factory=set)
    """Whose plans are computed or wait."""

    async def plan_for(self, viewer: str, asked: Asked) -> Sized:
        """The same, unless the viewer has a plan already, in whichever session, or too many have."""
        if viewer in self._viewers:
            return Sized(problems=["Another plan of yours is being computed; wait for its answer."])
        if len(self._viewers) >= MOST_ASKED:
            return Sized(problems=["Others are planning now: try again in a minute."])
        self._viewers.add(viewer)
        try:
            return await self.plan(asked)
        finally:
            self._viewers.discard(viewer)

    async def plan(self, asked: Asked) -> Sized:
        """The grid of what was asked; the form has no problems of its own."""
        async with self._limit:
            code, out, err = await self._run(asked)
        if code is None:
            return Sized(problems=[f"Planning took more than {self.seconds:g} s, and was stopped."])
        if code < 0:
            return Sized(
                problems=["Planning took more processor time, or wrote more, than is allowed, and was stopped."]
            )
        lines = [line.removeprefix("error: ") for line in clean(err).splitlines() if line.strip()]
        if code == BAD_INPUT:
            return Sized(problems=lines[:20], is_bad_input=True)
        if not out.strip():
            return Sized(problems=[f"The planner failed: {lines[-1] if lines else 'it says nothing'}"])
        try:
            return Sized(grid_of(parse(out, MOST_ANSWER)))
        except Refused as refused:
            return Sized(problems=[f"The planner's answer is not understood: {refused}"])

    async def _run(self, asked: Asked) -> tuple[int | None, str, str]:
        names = (*PASSED_ON, *(FOR_THE_HUB if self.can_reach_hub else ()))
        environment = {name: self.environment[name] for name in names if name in self.environment}
        process = await asyncio.create_subprocess_exec(
            *self.command, *asked.words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**environment, "HOME": "/nonexistent", "NO_COLOR": "1"}, cwd="/",
        )  # fmt: skip
        assert process.stdin is not None
        try:
            async with asyncio.timeout(self.seconds):
                out, err, _ = await asyncio.gather(
                    _read(process, process.stdout),
                    _read(process, process.stderr),
                    _written(process.stdin, asked.config),
                )
                return await process.wait(), out, err
        except TimeoutError:
            return None, "", ""
        finally:
            _kill(process)
            await process.communicate()  # to asyncio a process ends with its pipes


async def _read(process: asyncio.subprocess.Process, stream: asyncio.StreamReader | None) -> str:
    """To its end. A process that writes more than an answer has is killed."""
    assert stream is not None
    parts, left = [], MOST_ANSWER
    while part := await stream.read(2**16):
        left -= len(part)
        if left >= 0:
            parts.append(part)
        else:
            _kill(process)
    return b"".join(parts).decode(errors="replace")


def _kill(process: asyncio.subprocess.Process) -> None:
    """Not by `process.kill`, which would take a process that has just ended away from asyncio, and its exit code."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


async def _written(stream: asyncio.StreamWriter, text: str) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it ended early, and says why
        stream.write(text.encode(errors="replace"))
        await stream.drain()
    stream.close()


def grid_of(document: object) -> Grid:
    """The document of `llmservice plan --compare -o json`. Refused where it is none."""
    read = Reader(document)
    needed = read.within("gpusNeeded") if read.has("gpusNeeded") else None
    cells: dict[str, dict[tuple[str, str], Cell]] = {}
    for item in read.items("cells", 10_000):
        one = Reader(item, "cells")
        column = one.word("weights", 64), one.word("kvCacheDtype", 64)
        cells.setdefault(one.word("gpu", 128), {})[column] = Cell(
            one.text("verdict", 64, ""),
            one.text("reason", default=""),
            one.integer("maxModelLen") if one.has("maxModelLen") else None,
            one.integer("kvCacheTokens", -(2**53)) if one.has("kvCacheTokens") else None,
        )
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    nothing = Cell("", "", None, None)
    rows = [
        (
            gpu,
            [row.get(column, nothing) for column in columns],
            needed.integer(gpu) if needed is not None and needed.has(gpu) else None,
        )
        for gpu, row in cells.items()
    ]
    return Grid(columns, rows, needed is not None)


def of_this_process(*, can_reach_hub: bool) -> Sizer:
    return Sizer(dict(os.environ), can_reach_hub)
