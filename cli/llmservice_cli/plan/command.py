"""`llmservice plan`: arguments, and which way of asking and of answering they mean."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from llmservice_api.errors import Problem

from llmservice_cli.errors import BadInput, ExitCode

from . import options as inputs
from .answers import Asked, Ending, answer, only_served
from .arguments import Options
from .models import Model, named
from .questions import device, from_values, given

NOTHING = "Give a manifest with -f, or the model with --config, --model, --parameters or --weights-gib."
_ALONE = ("file", "config", "model", "gpu", "compare", "cluster", "context", "kubeconfig", "namespace", "picture")


def run(options: Options) -> ExitCode | Coroutine[Any, Any, ExitCode]:
    """Print the plans; the exit code says whether they fit."""
    if options.batch is not None:
        return _batch(options.batch, options)
    _check(options)
    asked = _asked(options)
    if asks_a_cluster(options) and asked.questions:
        from .cluster import run as in_cluster

        return in_cluster(asked, options)
    from .output import compared, present

    if not asked.questions:
        return asked.ended(ExitCode.DONE)
    if options.compare:
        from .compare import compare

        return asked.ended(compared([*map(compare, asked.questions)], options, is_list=asked.is_list))
    return asked.ended(present([*map(answer, asked.questions)], options, is_list=asked.is_list))


def asks_a_cluster(options: Options) -> bool:
    return options.cluster or options.context is not None or options.kubeconfig is not None


def _check(options: Options) -> None:
    """What goes wrong whatever is planned."""
    if options.picture is not None:
        from .picture import check

        check(options.picture)
    if options.output == "csv" and not options.compare:
        raise BadInput.of("-o", "csv has the cells of a grid.", "Add --compare, or take json.")
    if options.namespace is not None and not asks_a_cluster(options):
        raise BadInput.of("-n", "it has no effect where no cluster is asked.", "Add --cluster, or leave it out.")


def _asked(options: Options) -> Asked:
    """BadInput for what cannot be planned at all."""
    said = given(options)
    model = named(said.config, said.model)
    if options.file is not None:
        from .manifest import Sources, ask

        return ask(options.file, said, model, Sources(is_offline=options.offline))
    if model is None and not {"parameters", "weights_gib"} & said.values.keys():
        raise BadInput.of("-f", "there is nothing to plan.", NOTHING)
    nameless = device(None, said.values.get("gpu_memory_gib"))
    devices = said.devices or (() if nameless is None else (nameless,))
    question = from_values(said.values, model or Model(), devices, inputs.label)
    question = replace(question, notes=(*said.notes, *question.notes))
    return Asked(said, (only_served(question, inputs.label, is_grid=options.compare),))


def _batch(place: str, options: Options) -> ExitCode:
    beside = [f"--{name}" for name in _ALONE if getattr(options, name)]
    beside += [one.flag for one in inputs.OPTIONS.values() if getattr(options, one.name) is not None]
    if beside:
        message, remedy = "it has no effect beside --batch.", "Write it into the lines."
        raise BadInput(Problem(flag, message, remedy) for flag in beside)
    if options.output not in ("table", "json"):
        raise BadInput.of("-o", f"a batch is answered in JSON lines, not {options.output}.", "Leave it out.")
    from .batch import batch

    ending = Ending.by(options)
    return batch(place, sys.stdout, explain=options.explain, is_offline=options.offline, ending=ending)
