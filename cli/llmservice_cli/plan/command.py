"""`llmservice plan`: which way of asking the options mean, and the answers in the form that was asked for."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from llmservice_api.errors import Problem
from llmservice_planner.plan import Fit

from llmservice_cli import terminal
from llmservice_cli.documents import tell, written
from llmservice_cli.errors import BadInput, ExitCode, print_problems, say
from llmservice_cli.models import Sources
from llmservice_cli.plan import OPTIONS, Options

from .answers import Answer, Json, answer, code_of, document, only_served, worst
from .questions import Asked, for_a_cluster, given, of_file, of_options

if TYPE_CHECKING:
    from .compare import Grid

NOTHING = "Give a manifest with -f, or the model with --config, --model, --parameters or --weights-gib."
_ALONE = ("file", "config", "model", "gpu", "compare", "cluster", "context", "kubeconfig", "namespace", "picture")
VERSION = 1
"""Of the documents: names are only ever added."""


def run(options: Options) -> ExitCode | Coroutine[Any, Any, ExitCode]:
    """Print the plans; the exit code says whether they fit."""
    if options.batch is not None:
        return _batch(options.batch, options)
    _check(options)
    asked = _asked(options)
    if not asked.questions:
        return _ended(asked, ExitCode.DONE)
    if asks_a_cluster(options):
        return _in_cluster(asked, options)
    if options.compare:
        from .compare import compare

        return _ended(asked, _compared([*map(compare, asked.questions)], options, is_list=asked.is_list))
    return _ended(asked, _present([*map(answer, asked.questions)], options, is_list=asked.is_list))


def asks_a_cluster(options: Options) -> bool:
    return options.cluster or options.context is not None or options.kubeconfig is not None


def _check(options: Options) -> None:
    """What goes wrong whatever is planned."""
    if options.picture is not None:
        from .text import check_picture

        check_picture(options.picture)
    if options.output == "csv" and not options.compare:
        raise BadInput.of("-o", "csv has the cells of a grid.", "Add --compare, or take json.")
    if options.namespace is not None and not asks_a_cluster(options):
        raise BadInput.of("-n", "it has no effect where no cluster is asked.", "Add --cluster, or leave it out.")


def _asked(options: Options) -> Asked:
    """BadInput for what cannot be planned at all."""
    said = given(options)
    if options.file is not None:
        return of_file(options.file, said, Sources(is_offline=options.offline))
    if said.model is None and not {"parameters", "weights_gib"} & said.values.keys():
        raise BadInput.of("-f", "there is nothing to plan.", NOTHING)
    question = only_served(of_options(said), is_grid=options.compare)
    return Asked((for_a_cluster(question) if asks_a_cluster(options) else question,))


def _batch(place: str, options: Options) -> ExitCode:
    beside = [f"--{name}" for name in _ALONE if getattr(options, name)]
    beside += [one.flag for one in OPTIONS.values() if getattr(options, one.name) is not None]
    if beside:
        message, remedy = "it has no effect beside --batch.", "Write it into the lines."
        raise BadInput(Problem(flag, message, remedy) for flag in beside)
    if options.output not in ("table", "json"):
        raise BadInput.of("-o", f"a batch is answered in JSON lines, not {options.output}.", "Leave it out.")
    from .batch import batch

    return batch(place, sys.stdout, options)


async def _in_cluster(asked: Asked, options: Options) -> ExitCode:
    """CliError where the cluster does not answer or a right is missing."""
    from .cluster import answered, look, on_offer

    found = await look(asked.questions, options)
    if options.compare:
        from .compare import compare

        grids = [compare(on_offer(*each)) for each in found]
        return _ended(asked, _compared(grids, options, is_list=asked.is_list))
    return _ended(asked, _present([answered(*each) for each in found], options, is_list=asked.is_list))


def _ended(asked: Asked, code: ExitCode) -> ExitCode:
    """Print the problems after the answers; the worst counts."""
    print_problems(asked.problems)
    return worst((code, ExitCode.BAD_INPUT)) if asked.problems else code


def _present(answers: Sequence[Answer], options: Options, *, is_list: bool) -> ExitCode:
    """Every plan, then warnings on standard error."""
    if options.output in ("json", "yaml"):
        _documents([document(one, explain=options.explain) for one in answers], options.output, is_list=is_list)
    elif options.output == "markdown":
        from .text import markdown

        _blocks(markdown(one, explain=options.explain) for one in answers)
    else:
        from .text import screen

        for index, one in enumerate(answers):
            terminal.show([*([()] if index else []), *screen(one, terminal.width(), explain=options.explain)])
    if options.picture is not None:
        from .text import draw

        draw(answers, options.picture)
    return worst(_warned(one, options) for one in answers)


def _warned(one: Answer, options: Options) -> ExitCode:
    """That of the verdict; a cluster without room now is a no where it is to be strict."""
    name = f"{one.question.name}: " if one.question.name else ""
    strict = "" if options.strict else "; --strict makes that an error"
    if one.plan.verdict is Fit.TIGHT:
        say(f"warning: {name}Tight: it may start or not{strict}")
    elif one.plan.verdict is Fit.UNKNOWN:
        hint = "" if options.allow_unknown else " --allow-unknown makes that a success."
        say(f"warning: {name}Unknown: {one.plan.reason}{hint}")
    code = code_of(one.plan.verdict, options)
    if one.placement is None or not one.placement.lacks_room:
        return code
    say(f"warning: {name}the cluster has no room for it now{strict}")
    return worst((code, ExitCode.DOES_NOT_FIT if options.strict else ExitCode.DONE))


def _compared(grids: Sequence[Grid], options: Options, *, is_list: bool) -> ExitCode:
    """Every grid."""
    from . import compare

    if options.output in ("json", "yaml"):
        _documents([compare.document(grid) for grid in grids], options.output, is_list=is_list)
    elif options.output == "markdown":
        _blocks(map(compare.markdown, grids))
    elif options.output == "csv":
        tell(compare.csv_text(grids), end="")
    else:
        for grid in grids:
            terminal.show(compare.screen(grid, terminal.width()))
    if options.picture is not None:
        compare.draw(grids, options.picture)
    return worst(grid.exit_code(options) for grid in grids)


def _documents(found: Sequence[Json], output: str, *, is_list: bool) -> None:
    """One document as it is, several as a list (JSON) or one after the other (YAML)."""
    found = [{"version": VERSION, **one} for one in found]
    if output == "json":
        tell(written("json", found if is_list else found[0]), end="")
        return
    import yaml

    tell(yaml.safe_dump_all(found, sort_keys=False, allow_unicode=True, explicit_start=is_list), end="")


def _blocks(found: Iterable[Iterable[str]]) -> None:
    tell("\n\n".join("\n".join(lines) for lines in found))
