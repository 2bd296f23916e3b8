"""`llmservice bench`: arguments, and the order of things."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from llmservice_cli.documents import show
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.load.server import Served, Target, check_server, inspect, open_target

from . import picture
from .arguments import Options
from .arrivals import LoadOptions, Planned, make_load
from .progress import shown
from .result import Result, to_document, to_lines
from .run import Batching, Gathered, Player
from .schedule import Discipline
from .traffic import Completions


async def run(options: Options) -> ExitCode:
    """Inspect the server, warm it up, play the load by each discipline, write the results."""
    check_server(options, "bench")
    _check_outputs(options)
    load_options = LoadOptions(
        options.requests, options.rate, options.seed, options.prompt_words, options.output_tokens
    )
    load = make_load(load_options)
    async with open_target(options) as target:
        served = await inspect(target, options.model)
        started = datetime.now(UTC)
        gathered, is_partial = await _measure(options, target, served, load)
    result = Result(
        started=started,
        target=target.name,
        way=target.way,
        model=served.model,
        server_version=served.version,
        load=load_options,
        batching=Batching(options.batch, options.window),
        warmup=options.warmup,
        timeout=options.timeout,
        is_partial=is_partial,
        gathered=gathered,
    )
    _write(result, options)
    if is_partial:
        return ExitCode.INTERRUPTED
    return ExitCode.REQUESTS_FAILED if result.has_failures else ExitCode.DONE


def _check_outputs(options: Options) -> None:
    """Before the load: a result that cannot be written would be lost."""
    for path in (options.out, options.picture):
        if path is not None and not path.parent.is_dir():
            raise CliError(f"there is no folder {path.parent}", "make it, or choose another place for the file")
    if options.picture is not None:
        picture.check(options.picture)


async def _measure(
    options: Options, target: Target, served: Served, load: Sequence[Planned]
) -> tuple[list[Gathered], bool]:
    """Everything that was gathered, and whether Ctrl-C ended it early."""
    run_id = secrets.token_hex(4)  # a later run of the same load must not find its prompts in the prefix cache
    progress = None if options.quiet else sys.stderr

    def player(salt: str) -> Player:
        completions = Completions(target.http, served.model, options.timeout, time.monotonic, f"{run_id}-{salt}")
        return Player(completions, Batching(options.batch, options.window))

    chosen = list(Discipline) if options.discipline == "all" else [Discipline(options.discipline)]
    gathered: list[Gathered] = []
    try:
        await _warm_up(player("warmup"), load[: options.warmup], target, progress)
        for discipline in chosen:
            gathered.append(Gathered(discipline, len(load)))
            async with shown(gathered[-1], progress):
                await player(str(discipline)).play(load, gathered[-1])
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
    gathered = Gathered(Discipline.CONTINUOUS, len(at_once))
    await player.play(at_once, gathered)
    failed = next((row for row in gathered.rows if not row.is_answered), None)
    if failed is not None:
        raise CliError(
            f"{target.name} does not answer the warm-up requests: {failed.outcome}: {failed.error}", target.advice
        )


def _write(result: Result, options: Options) -> None:
    show(options.output, lambda: to_lines(result), lambda: to_document(result))
    writers: list[tuple[Path | None, Callable[[Path], object]]] = [
        (options.out, lambda path: path.write_text(json.dumps(to_document(result), indent=1) + "\n")),
        (options.picture, lambda path: picture.draw(result, path)),
    ]
    for path, write in writers:
        if path is not None:
            try:
                write(path)
            except OSError as error:
                raise CliError(f"cannot write {path}: {error}", "choose another place for the file") from error
