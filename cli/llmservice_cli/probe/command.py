"""`llmservice probe`: the order of things."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from llmservice_cli.cluster import connect
from llmservice_cli.documents import show
from llmservice_cli.errors import CliError, ExitCode, say
from llmservice_cli.load.pace import Pace
from llmservice_cli.load.server import base_of, direct, http_client, inspect

from .arguments import Options
from .options import check, load_options, words_for_pod
from .remote import Remote, Wanted, in_cluster
from .report import Gathered, Report, mark_by_lines, shown, to_document, to_lines
from .sender import CONNECT_SECONDS, NONE_KEPT, POOL, Load, Question, Sender

# A probe that sends its requests from this process.

WAY = "from here"


@dataclass
class Local:
    """`follow` sends the load; `stop` ends the sending."""

    target: str
    model: str
    load: Load
    way: str = WAY

    async def follow(self, gathered: Gathered) -> None:
        """Until the last request has ended."""
        gathered.begin(self.load.pace.clock())
        await self.load.run(gathered.take)
        gathered.end()

    async def stop(self) -> None:
        self.load.pace.stop()


@asynccontextmanager
async def opened(options: Options, url: str) -> AsyncIterator[Local]:
    """By the flags of the command; CliError where the server does not answer at all."""
    async with (
        http_client(options, POOL, CONNECT_SECONDS) as pooled,
        http_client(options, NONE_KEPT, CONNECT_SECONDS) as fresh,
    ):
        model = options.model or (await inspect(direct(url, fresh), None)).model
        clock = steady_clock()
        question = Question(model, options.prompt, options.api == "chat")
        sender = Sender(pooled, fresh, question, options.timeout, options.retries, clock, asyncio.sleep, Random())
        yield Local(base_of(url), model, Load(load_options(options), sender, Pace(clock)))


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 that never step back, whatever happens to the machine's time."""
    began, offset = time.monotonic(), time.time()
    return lambda: offset + time.monotonic() - began


POD_SPARE_SECONDS = 300.0  # beyond its load, to start and to end


async def run(options: Options) -> ExitCode:
    """Send, gather, report. Lost requests change the exit code; they are no error of the command."""
    check(options)
    rows = sys.stdout if options.rows else None
    gathered = Gathered(None if options.quiet else sys.stderr, rows)
    async with _probe(options) as probe:
        if options.marks:
            mark_by_lines(gathered, asyncio.get_running_loop())
        gathered.write_line(f"probing {probe.target} {probe.way}, model {probe.model}")
        try:
            is_partial = await _followed(probe, gathered)
        except CliError as error:
            if not gathered.rows:
                raise
            say(f"error: {error}")  # and still: what was gathered until then
            is_partial = True
    if options.rows:
        return ExitCode.DONE
    report = Report(
        target=probe.target,
        way=probe.way,
        model=probe.model,
        load=load_options(options),
        retries=options.retries,
        timeout=options.timeout,
        rows=sorted(gathered.rows.values(), key=lambda row: row.index),
        marks=gathered.marks,
        is_partial=is_partial,
    )
    show(options.output, lambda: to_lines(report), lambda: to_document(report))
    if report.lost:
        return ExitCode.REQUESTS_FAILED
    return ExitCode.INTERRUPTED if is_partial else ExitCode.DONE


@asynccontextmanager
async def _probe(options: Options) -> AsyncIterator[Local | Remote]:
    if options.url:
        async with opened(options, options.url) as local:
            yield local
        return
    seconds = options.duration + options.timeout * (options.retries + 1) + POD_SPARE_SECONDS
    wanted = Wanted(tuple(words_for_pod(options)), options.image, options.model, seconds)
    async with connect(options) as connection, in_cluster(connection, options.name or "", wanted) as remote:
        yield remote


@dataclass
class _Patience:
    """The first signal stops, the second ends."""

    probe: Local | Remote
    gathered: Gathered
    following: asyncio.Task[None]
    is_stopped: bool = False
    _stopping: asyncio.Task[None] | None = field(default=None, init=False)

    def on_signal(self) -> None:
        if self.is_stopped:
            self.following.cancel()
            return
        self.is_stopped = True
        self.gathered.write_line("stopping; waiting for requests in flight (once more: end at once)")
        self._stopping = asyncio.create_task(self.probe.stop())

    async def wait(self) -> bool:
        """Until the end; whether that came before its time."""
        try:
            await self.following
        except asyncio.CancelledError:
            if not self.is_stopped:
                raise
        return self.is_stopped


async def _followed(probe: Local | Remote, gathered: Gathered) -> bool:
    loop = asyncio.get_running_loop()
    patience = _Patience(probe, gathered, asyncio.create_task(probe.follow(gathered)))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, patience.on_signal)
    try:
        async with shown(gathered):
            return await patience.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
