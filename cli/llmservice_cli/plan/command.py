"""`llmservice plan`: arguments, and which way of asking and of answering they mean."""

from __future__ import annotations

import sys
from dataclasses import replace

from llmservice_operator.api.errors import Problem

from llmservice_cli.errors import BadInput, ExitCode, print_problems

from . import options as inputs
from .arguments import Options

NOTHING = "Give a manifest with -f, or the model with --config, --model, --parameters or --weights-gib."


def run(options: Options) -> ExitCode:
    """Print the plans; the exit code says whether they fit."""
    if options.batch is not None:
        return _batch(options.batch, options)
    from .ending import worst
    from .given import given
    from .models import Model, named
    from .present import compared, present
    from .questions import device, from_values
    from .refusals import only_served

    asked = given(options)
    model = named(asked.config, asked.model)
    if options.file is not None:
        from .manifest import ask
        from .sources import Sources

        found = ask(options.file, asked, model, Sources(is_offline=options.offline))
        questions, problems, is_list = found.questions, found.problems, found.services > 1
        print_problems((), found.notes)
    else:
        if model is None and not {"parameters", "weights_gib"} & asked.values.keys():
            raise BadInput.of("-f", "there is nothing to plan.", NOTHING)
        nameless = device(None, asked.values.get("gpu_memory_gib"))
        devices = asked.devices or (() if nameless is None else (nameless,))
        question = from_values(asked.values, model or Model(), devices, inputs.label)
        question = replace(question, notes=(*asked.notes, *question.notes))
        questions, problems, is_list = (only_served(question, inputs.label, is_grid=options.compare),), (), False
    show = compared if options.compare else present
    code = show(questions, options, is_list=is_list) if questions else ExitCode.DONE
    print_problems(problems)
    return worst((code, ExitCode.BAD_INPUT)) if problems else code


def _batch(place: str, options: Options) -> ExitCode:
    beside = [f"--{name}" for name in ("file", "config", "model", "gpu", "compare") if getattr(options, name)]
    beside += [one.flag for one in inputs.OPTIONS.values() if getattr(options, one.name) is not None]
    if beside:
        message, remedy = "it has no effect beside --batch.", "Write it into the lines."
        raise BadInput(Problem(flag, message, remedy) for flag in beside)
    if options.output not in ("table", "json"):
        raise BadInput.of("-o", f"a batch is answered in JSON lines, not {options.output}.", "Leave it out.")
    from .batch import batch
    from .ending import Ending

    ending = Ending.by(options)
    return batch(place, sys.stdout, explain=options.explain, is_offline=options.offline, ending=ending)
