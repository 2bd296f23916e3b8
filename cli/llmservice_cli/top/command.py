"""`llmservice top`: samples, one after the other, and what happened between two."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from datetime import UTC, datetime

from llmservice_cli.cluster import connect
from llmservice_cli.documents import show
from llmservice_cli.errors import ExitCode, WrongUsage, say

from .arguments import Options
from .sample import Metered, Sample, Sampler
from .view import View, document, lines, live, notes, view


async def run(options: Options) -> ExitCode:
    """Once, or until Ctrl-C."""
    if options.name and options.all_namespaces:
        raise WrongUsage("a name goes with one namespace, not with all", "leave out either NAME or --all-namespaces")
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    async with connect(options) as connection, Metered(connection.credentials) as transport:
        sampler = Sampler(transport, None if options.all_namespaces else connection.namespace, options.name)
        before = await sampler.read()
        if options.once or options.output != "table" or not is_terminal:
            _print(options, view(before, await _next(sampler, before, options.interval), options.sort))
            return ExitCode.DONE
        with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C is how it is ended
            await _shown(options, sampler, before)
    return ExitCode.DONE


async def _next(sampler: Sampler, before: Sample, interval: float) -> Sample:
    """The next sample, an interval after the one before."""
    await asyncio.sleep(max(0.0, before.at + interval - sampler.clock()))
    return await sampler.read()


def _print(options: Options, seen: View) -> None:
    read_at = datetime.now(UTC).isoformat(timespec="seconds")
    show(options.output, lambda: _lines(options, seen), lambda: document(seen, read_at))
    if options.output == "table":
        for note in notes(seen):
            say(note)


def _lines(options: Options, seen: View) -> list[str]:
    return lines(seen, with_namespace=options.all_namespaces, with_pods=options.name is not None)


async def _shown(options: Options, sampler: Sampler, before: Sample) -> None:
    """On a terminal, until it is cancelled."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def text(*parts: tuple[str, str]) -> Text:
        return Text("\n", no_wrap=True, overflow="crop").join(Text(line, style) for line, style in parts)

    console = Console(highlight=False, markup=False, emoji=False)
    with Live(text((f"measuring for {options.interval:g} s", "dim")), console=console, auto_refresh=False) as screen:
        while True:
            after = await _next(sampler, before, options.interval)
            seen = view(before, after, options.sort)
            screen.update(text(*live(seen, _lines(options, seen))), refresh=True)
            before = after
