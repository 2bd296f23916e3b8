"""Answers in the form that was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from llmservice_planner.plan import Fit

from llmservice_cli.documents import tell, written
from llmservice_cli.errors import ExitCode, say

from .answers import Answer, Ending, worst
from .arguments import Options
from .document import document

if TYPE_CHECKING:
    from .compare import Grid


VERSION = 1
"""Of the documents: names are only ever added."""


def present(answers: Sequence[Answer], options: Options, *, is_list: bool) -> ExitCode:
    """Every plan, then warnings on standard error. `is_list`: of several LLMServices, even where one is left."""
    if options.output in ("json", "yaml"):
        _documents([document(one, explain=options.explain) for one in answers], options.output, is_list=is_list)
    elif options.output == "markdown":
        from .text import markdown

        _blocks(markdown(one, explain=options.explain) for one in answers)
    else:
        from llmservice_cli import terminal

        from .text import screen

        for index, one in enumerate(answers):
            terminal.show([*([()] if index else []), *screen(one, terminal.width(), explain=options.explain)])
    if options.picture is not None:
        from . import picture

        picture.of_plans(answers, options.picture)
    ending = Ending.by(options)
    for one in answers:
        _warn(one, ending)
    return worst(_code(one, ending) for one in answers)


def _code(one: Answer, ending: Ending) -> ExitCode:
    """That of the verdict; a cluster without room now is a no where it is to be strict."""
    is_full = one.placement is not None and one.placement.lacks_room and ending.is_strict
    return worst((ending.code(one.plan.verdict), ExitCode.DOES_NOT_FIT if is_full else ExitCode.DONE))


def compared(grids: Sequence[Grid], options: Options, *, is_list: bool) -> ExitCode:
    """Every grid in the form that was asked for."""
    from llmservice_cli import terminal

    from . import compare

    if options.output in ("json", "yaml"):
        _documents([compare.document(grid) for grid in grids], options.output, is_list=is_list)
    elif options.output == "markdown":
        _blocks(compare.markdown(grid) for grid in grids)
    elif options.output == "csv":
        tell(compare.csv_text(grids), end="")
    else:
        for grid in grids:
            terminal.show(compare.screen(grid, terminal.width()))
    if options.picture is not None:
        from . import picture

        picture.of_grids(grids, options.picture)
    return worst(grid.exit_code(Ending.by(options)) for grid in grids)


def _documents(found: Sequence[dict[str, Any]], output: str, *, is_list: bool) -> None:
    """One document as it is, several as a list (JSON) or one after the other (YAML)."""
    found = [{"version": VERSION, **one} for one in found]
    if output == "json":
        tell(written("json", found if is_list else found[0]), end="")
        return
    import yaml

    tell(yaml.safe_dump_all(found, sort_keys=False, allow_unicode=True, explicit_start=is_list), end="")


def _blocks(found: Iterable[Iterable[str]]) -> None:
    tell("\n\n".join("\n".join(lines) for lines in found))


def _warn(one: Answer, ending: Ending) -> None:
    name = f"{one.question.name}: " if one.question.name else ""
    if one.plan.verdict is Fit.TIGHT:
        hint = "" if ending.is_strict else "; --strict makes that an error"
        say(f"warning: {name}Tight: it may start or not{hint}")
    elif one.plan.verdict is Fit.UNKNOWN:
        hint = "" if ending.allows_unknown else " --allow-unknown makes that a success."
        say(f"warning: {name}Unknown: {one.plan.reason}{hint}")
    if one.placement is not None and one.placement.lacks_room:
        hint = "" if ending.is_strict else "; --strict makes that an error"
        say(f"warning: {name}the cluster has no room for it now{hint}")
