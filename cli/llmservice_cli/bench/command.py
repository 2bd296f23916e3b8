"""`llmservice bench`: measures a server, shows how far that is, and puts the result where it is wanted."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from llmservice_runtime.bounded_json import clean

from llmservice_cli.bench import COMPARE, Options
from llmservice_cli.documents import show
from llmservice_cli.errors import CliError, ExitCode, WrongUsage, say
from llmservice_cli.load.options import check_server
from llmservice_cli.load.server import Destination, inspect, open_target
from llmservice_cli.progress import IN_A_LOG, ON_A_TERMINAL, repeated
from llmservice_cli.terminal import width
from llmservice_cli.text import duration

from . import compare, picture
from .lines import to_lines
from .result import Result, Slo, slo_of, to_document
from .traffic import Batching, Discipline, Gathered, LoadOptions, Planned, Player, Point, make_load, points_of

LONGEST_NAME = 200


async def run(options: Options) -> ExitCode:
    """Measure, and write the results; or compare files."""
    if options.files:
        if options.name != COMPARE:
            raise WrongUsage(
                f"one LLMService is measured, not {options.name} and {options.files[0]}",
                f"give one name; result files are compared by: llmservice bench {COMPARE} FILE FILE",
            )
        return compare.run(options, options.files)
    check_server(options, "bench")
    if options.max_regression is not None:
        raise WrongUsage("--max-regression compares files", f"llmservice bench {COMPARE} FILE FILE --max-regression 5%")
    if "slo_share" in options.given and not options.slo:
        raise WrongUsage("--slo-share is of an objective, and there is none", "give one, such as --slo ttft:500ms")
    for path in (options.out, options.picture, options.html, options.save_load):
        if path is not None and not path.parent.is_dir():  # a result that cannot be written would be lost
            raise CliError(f"there is no folder {path.parent}", "make it, or choose another place for the file")
    picture.check(options.picture, options.html)
    slo, points = slo_of(options.slo or (), options.slo_share), points_of(options)
    load = LoadOptions(options.requests, points[0].rate, options.seed, options.prompt_words, options.output_tokens)
    _save(options.save_load, lambda path: path.write_text(lines_of(make_load(load))))
    result = await measure(options, load, points, slo)
    show(options.output, lambda: to_lines(result, width()), lambda: to_document(result))
    _save(options.out, lambda path: path.write_text(json.dumps(to_document(result), indent=1) + "\n"))
    _save(options.picture, lambda path: picture.draw(result, path))
    _save(options.html, lambda path: path.write_text(picture.page(result), encoding="utf-8"))
    if result.is_partial:
        return ExitCode.INTERRUPTED
    return ExitCode.REQUESTS_FAILED if result.has_failures else ExitCode.DONE


def lines_of(load: Sequence[Planned]) -> str:
    """As vLLM's custom data set has it."""
    return "".join(f"{json.dumps({'prompt': one.prompt, 'output_tokens': one.output_tokens})}\n" for one in load)


def _save(path: Path | None, write: Callable[[Path], object]) -> None:
    if path is not None:
        try:
            write(path)
        except OSError as error:
            raise CliError(f"cannot write {path}: {error}", "choose another place for the file") from error


async def measure(options: Options, load: LoadOptions, points: Sequence[Point], slo: Slo | None) -> Result:
    """Everything that was asked for, or, after Ctrl-C, what there is of it."""
    gathered: list[Gathered] = []
    is_partial, batching = False, Batching(options.batch, options.window)
    async with open_target(options, None if options.quiet else say) as target:
        served = await inspect(target, options.model)
        started = datetime.now(UTC)
        asked = (target.http, served.model, options.timeout, time.monotonic, secrets.token_hex(4), batching)
        player = Player(*asked, target.is_chunked, target.describe)
        try:
            await _play(player, load, points, gathered, target, options)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not gathered:
                raise
            task.uncancel()  # Ctrl-C: what was measured is still reported
            is_partial = True
    return Result(
        started=started,
        target=target.name,
        way=target.way,
        notes=tuple(map(clean, target.notes)),
        model=clean(served.model[:LONGEST_NAME]),
        server_version=None if served.version is None else clean(served.version[:LONGEST_NAME]),
        load=load,
        points=points,
        batching=batching,
        warmup=options.warmup,
        timeout=options.timeout,
        is_partial=is_partial,
        gathered=gathered,
        slo=slo,
    )


async def _play(
    player: Player,
    load: LoadOptions,
    points: Sequence[Point],
    gathered: list[Gathered],
    target: Destination,
    options: Options,
) -> None:
    """Warm the server up, and play the load at each point: `gathered` grows. No run may find the prompts of another in
    the prefix cache, nor those of an earlier bench."""
    out = None if options.quiet else sys.stderr
    beforehand = [replace(planned, arrival=0.0) for planned in make_load(load)[: options.warmup]]
    if out is not None:
        out.write(f"warming {target.name} up with {len(beforehand)} requests\n")
    # The longest way through the server once, all at the same time; nothing is measured if that does not work.
    warmed = Gathered(Point(Discipline.CONTINUOUS), len(beforehand))
    await replace(player, salt=f"{player.salt}-warmup").play(beforehand, warmed)
    for row in warmed.rows:
        if not row.is_answered:
            why = f"does not answer the warm-up requests: {row.outcome}: {row.error}"
            raise CliError(f"{target.name} {why}", target.advice)
    for number, point in enumerate(points):
        planned = make_load(replace(load, rate=point.rate))
        gathered.append(Gathered(point, len(planned)))
        async with _shown(gathered[-1], points, out):
            await replace(player, salt=f"{player.salt}-{point.discipline}{number}").play(planned, gathered[-1])


@asynccontextmanager
async def _shown(gathered: Gathered, points: Sequence[Point], out: TextIO | None) -> AsyncIterator[None]:
    """How far the block is: a line that renews itself on a terminal, one every ten seconds elsewhere; nothing without
    `out`. `points` are all of the bench, that of `gathered` among them."""
    if out is None:
        yield
        return
    began, live = time.monotonic(), out.isatty()
    start = "\r" if live else ""

    def write(end: str) -> None:
        out.write(f"{start}{progress(gathered, points, time.monotonic() - began)}{end}")
        out.flush()

    try:
        async with repeated(lambda: write("" if live else "\n"), ON_A_TERMINAL if live else IN_A_LOG):
            yield
    finally:
        write("\n")


def progress(gathered: Gathered, points: Sequence[Point], seconds: float) -> str:
    """A line as wide whatever the numbers are, so that it covers the one before."""
    left, point = time_left(gathered, points, seconds), gathered.point
    place = f"{points.index(point) + 1}/{len(points)} {point.discipline} {point.load}"
    return (
        f"{place:<28}  {len(gathered.rows):>5} of {gathered.planned} ended, {gathered.under_way:>4} under way,"
        f" {gathered.failed:>4} failed, {seconds:6.1f} s"
        f"{'' if left is None or left < 1 else f', about {duration(left)} left':<20}"
    )


def time_left(gathered: Gathered, points: Sequence[Point], seconds: float) -> float | None:
    """Seconds that this run and those after it still take, by what this one has done so far; None: nothing is known.

    A rate gives the time of its arrivals. A later number of clients is taken to need as long as this one does, and
    more where there are fewer clients.
    """
    ended, point = len(gathered.rows), gathered.point
    whole = seconds * gathered.planned / ended if ended else None
    if point.rate is not None:
        whole = max(whole or 0.0, gathered.planned / point.rate)
    if whole is None:
        return None
    later = points[points.index(point) + 1 :]
    rest = sum(
        whole * max(1.0, (point.concurrency or 1) / other.concurrency)
        if other.concurrency is not None
        else gathered.planned / (other.rate or 1.0)
        for other in later
    )
    return max(0.0, whole - seconds) + rest
