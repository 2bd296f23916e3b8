"""`llmservice probe`: follows the load, from here or from a pod, until it is over or stopped, and reports."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llmservice_cli.cluster import connect
from llmservice_cli.documents import show
from llmservice_cli.errors import CliError, ExitCode, WrongUsage, say
from llmservice_cli.load.options import check_server
from llmservice_cli.probe import Options
from llmservice_cli.progress import IN_A_LOG, repeated

from .remote import Remote, in_cluster
from .report import Gathered, Report, clock, mark_by_lines, to_document, to_lines
from .sender import Local, opened


def check(options: Options) -> None:
    """WrongUsage for options that exclude each other, or that would have no effect."""
    check_server(options, "probe")
    if options.url and options.image:
        raise WrongUsage("--image is of the pod, and with --url there is none", "leave it out, or name the LLMService")
    if options.name and options.api_key_env:
        remedy = "leave it out: by NAME the key is that of spec.endpoint.apiKeySecretRef"
        raise WrongUsage("--api-key-env goes with --url", remedy)
    if options.rate is not None and options.concurrency is not None:
        raise WrongUsage("--rate and --concurrency are two ways to pace the load", "give one of them")
    if options.output != "table" and options.rows:
        raise WrongUsage("-o is the form of a report, and --rows is instead of one", "give one of them")


async def run(options: Options) -> ExitCode:
    """Send, gather, report. Lost requests change the exit code; they are no error of the command."""
    check(options)
    gathered = Gathered(None if options.quiet else sys.stderr, sys.stdout if options.rows else None)
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
    rows = sorted(gathered.rows.values(), key=lambda row: row.index)
    report = Report(probe.target, probe.way, probe.model, options, rows, gathered.marks, is_partial)
    show(options.output, lambda: to_lines(report), lambda: to_document(report))
    if report.lost:
        return ExitCode.REQUESTS_FAILED
    return ExitCode.INTERRUPTED if is_partial else ExitCode.DONE


@asynccontextmanager
async def _probe(options: Options) -> AsyncIterator[Local | Remote]:
    if options.url:
        async with opened(options, options.url) as local:
            yield local
    else:
        async with connect(options) as connection, in_cluster(connection, options) as remote:
            yield remote


async def _followed(probe: Local | Remote, gathered: Gathered) -> bool:
    """Until the end; whether that came before its time: the first signal stops, the second ends."""
    loop, following = asyncio.get_running_loop(), asyncio.create_task(probe.follow(gathered))
    stopping: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        if stopping:
            following.cancel()
            return
        gathered.write_line("stopping; waiting for requests in flight (once more: end at once)")
        stopping.append(asyncio.create_task(probe.stop()))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        async with repeated(lambda: gathered.write_line(f"{clock(gathered.now())} {gathered}"), IN_A_LOG):
            await following
    except asyncio.CancelledError:
        if not stopping:
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return bool(stopping)
