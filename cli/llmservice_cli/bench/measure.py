"""Measures a server: warms it up and plays the load at each point."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TextIO

from llmservice_runtime.bounded_json import clean

from llmservice_cli.errors import CliError, say
from llmservice_cli.load.routes import open_target
from llmservice_cli.load.server import Served, Target, inspect

from .arguments import Options
from .lines import shown
from .result import Result
from .run import Batching, Gathered, Player, Point, points_of
from .slo import Slo
from .traffic import Completions, Discipline, LoadOptions, Planned, make_load

LONGEST_NAME = 200


async def measure(options: Options, load: LoadOptions, slo: Slo | None) -> Result:
    """Everything that was asked for, or, after Ctrl-C, what there is of it."""
    points = points_of(options)
    async with open_target(options, None if options.quiet else say) as target:
        served = await inspect(target, options.model)
        started = datetime.now(UTC)
        gathered, is_partial = await _play(options, target, served, load, points)
    return Result(
        started=started,
        target=target.name,
        way=target.way,
        notes=tuple(map(clean, target.notes)),
        model=clean(served.model[:LONGEST_NAME]),
        server_version=None if served.version is None else clean(served.version[:LONGEST_NAME]),
        load=load,
        points=points,
        batching=Batching(options.batch, options.window),
        warmup=options.warmup,
        timeout=options.timeout,
        is_partial=is_partial,
        gathered=gathered,
        slo=slo,
    )


async def _play(
    options: Options, target: Target, served: Served, load: LoadOptions, points: Sequence[Point]
) -> tuple[list[Gathered], bool]:
    """Everything that was gathered, and whether Ctrl-C ended it early."""
    run_id = secrets.token_hex(4)  # a later run of the same load must not find its prompts in the prefix cache
    progress = None if options.quiet else sys.stderr

    def player(salt: str) -> Player:
        completions = Completions(
            target.http,
            served.model,
            options.timeout,
            time.monotonic,
            f"{run_id}-{salt}",
            target.is_chunked,
            target.describe,
        )
        return Player(completions, Batching(options.batch, options.window))

    gathered: list[Gathered] = []
    try:
        await _warm_up(player("warmup"), make_load(load)[: options.warmup], target, progress)
        for number, point in enumerate(points):
            planned = make_load(replace(load, rate=point.rate))
            gathered.append(Gathered(point, len(planned)))
            async with shown(gathered[-1], points, progress):
                await player(f"{point.discipline}{number}").play(planned, gathered[-1])
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or not gathered:
            raise
        task.uncancel()  # Ctrl-C: what was measured is still reported
        return gathered, True
    return gathered, False


async def _warm_up(player: Player, load: Sequence[Planned], target: Target, progress: TextIO | None) -> None:
    """The longest way through the server once, all at the same time; nothing is measured if that does not work."""
    if progress is not None:
        progress.write(f"warming {target.name} up with {len(load)} requests\n")
    at_once = [Planned(planned.index, 0.0, planned.prompt, planned.output_tokens) for planned in load]
    gathered = Gathered(Point(Discipline.CONTINUOUS), len(at_once))
    await player.play(at_once, gathered)
    failed = next((row for row in gathered.rows if not row.is_answered), None)
    if failed is not None:
        raise CliError(
            f"{target.name} does not answer the warm-up requests: {failed.outcome}: {failed.error}", target.advice
        )
