"""Answers in the form that was asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from llmservice_operator.planner.plan import Fit

from llmservice_cli.errors import ExitCode

from .answers import Answer, answer
from .arguments import Options
from .document import document
from .ending import Ending, worst
from .questions import Question


def present(questions: Sequence[Question], options: Options, *, is_list: bool) -> ExitCode:
    """Every plan, then warnings on standard error. `is_list`: of several LLMServices, even where one is left."""
    answers = [answer(question) for question in questions]
    if options.output in ("json", "yaml"):
        _documents([document(one, explain=options.explain) for one in answers], options.output, is_list=is_list)
    elif options.output == "markdown":
        from .markdown import markdown

        _blocks(markdown(one, explain=options.explain) for one in answers)
    else:
        from llmservice_cli import terminal

        from .screen import screen

        for index, one in enumerate(answers):
            terminal.show([*([()] if index else []), *screen(one, terminal.width(), explain=options.explain)])
    ending = Ending.by(options)
    for one in answers:
        _warn(one, ending)
    return worst(ending.code(one.plan.verdict) for one in answers)


def compared(questions: Sequence[Question], options: Options, *, is_list: bool) -> ExitCode:
    from llmservice_cli import terminal

    from . import compare

    grids = [compare.compare(question) for question in questions]
    if options.output in ("json", "yaml"):
        _documents([compare.document(grid) for grid in grids], options.output, is_list=is_list)
    elif options.output == "markdown":
        _blocks(compare.markdown(grid) for grid in grids)
    else:
        for grid in grids:
            terminal.show(compare.screen(grid, terminal.width()))
    return worst(grid.exit_code(Ending.by(options)) for grid in grids)


def _documents(found: Sequence[dict[str, Any]], output: str, *, is_list: bool) -> None:
    """One document as it is, several as a list (JSON) or one after the other (YAML)."""
    if output == "json":
        print(json.dumps(found if is_list else found[0], indent=2, ensure_ascii=False))
        return
    import yaml

    print(yaml.safe_dump_all(found, sort_keys=False, allow_unicode=True, explicit_start=is_list), end="")


def _blocks(found: Iterable[Iterable[str]]) -> None:
    print("\n\n".join("\n".join(lines) for lines in found))


def _warn(one: Answer, ending: Ending) -> None:
    name = f"{one.question.name}: " if one.question.name else ""
    if one.plan.verdict is Fit.TIGHT:
        hint = "" if ending.is_strict else "; --strict makes that an error"
        print(f"warning: {name}Tight: it may start or not{hint}", file=sys.stderr)
    elif one.plan.verdict is Fit.UNKNOWN:
        hint = "" if ending.allows_unknown else " --allow-unknown makes that a success."
        print(f"warning: {name}Unknown: {one.plan.reason}{hint}", file=sys.stderr)
