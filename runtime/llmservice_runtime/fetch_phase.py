"""The supervisor's side of a fetch: the process that does it, and what that one says."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmservice_runtime import handover
from llmservice_runtime.bounded_json import Reader, Refused, parse
from llmservice_runtime.contract import CacheRoom, Failure, FailureReason, Phase, State, Transfer
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.processes import Child, Reaper
from llmservice_runtime.waiting import end


@dataclass(frozen=True)
class Fetched:
    """An artifact that is whole now, and where it lies."""

    artifact: str
    path: Path


def command(base: Sequence[str], options: ServeOptions, args: Sequence[str]) -> tuple[str, ...]:
    """The process that fetches what a server needs."""
    extension = () if options.context_extension is None else (f"--context-extension={options.context_extension}",)
    wanted = (f"--fetch={text}" for text in options.fetch)
    return (*base, handover.OPTION, *wanted, f"--weights={options.weights}", *extension, "--", *args)


def read_document(line: str) -> Transfer | CacheRoom | Fetched | Failure | None:
    """One line of its standard output; None for what is none of its documents."""
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


def noted(state: State, news: Transfer | CacheRoom) -> State:
    """The state with what a fetch says of itself."""
    if isinstance(news, CacheRoom):
        return replace(state, cache=news)
    percent = "" if news.percent is None else f" {news.percent}%"
    return replace(state, transfer=news, progress=f"{news.artifact}: {news.step}{percent}")


async def run(
    reaper: Reaper,
    command: Sequence[str],
    environment: Mapping[str, str],
    on_news: Callable[[Transfer | CacheRoom], None],
) -> Failure | None:
    """One fetch from start to end; its failure, if it ended with one. Cancelled, the process ends as well."""
    plain, secret = handover.parts(environment)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = reaper.start(command, plain, merge_stderr=False, stdin=theirs.fileno())
        giving = asyncio.ensure_future(handover.give(ours, secret))
        try:
            return await follow(child, on_news)
        finally:
            child.kill_group()
            await end(giving)


async def follow(child: Child, on_news: Callable[[Transfer | CacheRoom], None]) -> Failure | None:
    """Read what it says until it ends; its failure, if it ended with one."""
    failure: Failure | None = None
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(child.output, "rb")
    )
    try:
        while line := await reader.readline():
            said = read_document(line.decode(errors="replace"))
            if isinstance(said, Transfer | CacheRoom):
                on_news(said)
            elif isinstance(said, Failure):
                failure = said
    finally:
        transport.close()
    ended = await child.ended
    if failure is None and ended.code != 0:
        failure = Failure(
            FailureReason.MODEL_DOWNLOAD_FAILED,
            f"The process that fetches the model ended with {ended} and did not say why.",
            "See the container's log. Where it was killed, raise the memory limit in spec.runtime.resources; what was "
            "fetched is kept, and the next start goes on from there.",
            phase=Phase.FETCHING,
        )
    return failure
