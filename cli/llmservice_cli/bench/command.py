"""`llmservice bench`: which of the two things is asked for, and where the results go."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from llmservice_cli.documents import show
from llmservice_cli.errors import CliError, ExitCode, WrongUsage
from llmservice_cli.load.server import check_server
from llmservice_cli.terminal import width

from . import picture, unused
from .arguments import COMPARE, Options
from .compare import command as comparison
from .lines import to_lines
from .measure import measure
from .picture import page
from .result import Result, to_document
from .run import points_of
from .slo import slo_of
from .traffic import LoadOptions, Planned, make_load


async def run(options: Options) -> ExitCode:
    """Measure, and write the results; or compare files."""
    if options.files:
        if options.name != COMPARE:
            raise WrongUsage(
                f"one LLMService is measured, not {options.name} and {options.files[0]}",
                f"give one name; result files are compared by: llmservice bench {COMPARE} FILE FILE",
            )
        return comparison.run(options, options.files)
    check_server(options, "bench")
    if options.max_regression is not None:
        raise WrongUsage("--max-regression compares files", f"llmservice bench {COMPARE} FILE FILE --max-regression 5%")
    unused.check(options)
    _check_outputs(options)
    slo = slo_of(options.slo or (), options.slo_share)
    load = LoadOptions(
        options.requests, points_of(options)[0].rate, options.seed, options.prompt_words, options.output_tokens
    )
    if options.save_load is not None:
        _save(options.save_load, lambda path: path.write_text(lines_of(make_load(load))))
    result = await measure(options, load, slo)
    _write(result, options)
    if result.is_partial:
        return ExitCode.INTERRUPTED
    return ExitCode.REQUESTS_FAILED if result.has_failures else ExitCode.DONE


def _check_outputs(options: Options) -> None:
    """Before the load: a result that cannot be written would be lost."""
    for path in (options.out, options.picture, options.html, options.save_load):
        if path is not None and not path.parent.is_dir():
            raise CliError(f"there is no folder {path.parent}", "make it, or choose another place for the file")
    picture.check(options.picture, options.html)


def lines_of(load: Sequence[Planned]) -> str:
    """As vLLM's custom data set has it."""
    return "".join(f"{json.dumps({'prompt': one.prompt, 'output_tokens': one.output_tokens})}\n" for one in load)


def _write(result: Result, options: Options) -> None:
    show(options.output, lambda: to_lines(result, width()), lambda: to_document(result))
    _save(options.out, lambda path: path.write_text(json.dumps(to_document(result), indent=1) + "\n"))
    _save(options.picture, lambda path: picture.draw(result, path))
    _save(options.html, lambda path: path.write_text(page(result), encoding="utf-8"))


def _save(path: Path | None, write: Callable[[Path], object]) -> None:
    if path is not None:
        try:
            write(path)
        except OSError as error:
            raise CliError(f"cannot write {path}: {error}", "choose another place for the file") from error
