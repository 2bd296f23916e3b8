"""`llmservice plan`: arguments, and which way of asking and of answering they mean."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from llmservice_operator.api.errors import Problem

from llmservice_cli.errors import BadInput, ExitCode, print_problems

from . import options as inputs

DESCRIPTION = """\
Does it fit, and what does it come to: weights, activations, CUDA graphs, KV cache, longest request, concurrency. The
same arithmetic as the operator's, before anything runs; what does not fit comes with changes that would.
"""
EPILOG = """\
examples:
  llmservice plan -f llmservice.yaml                         as the operator would plan it
  llmservice plan -f llmservice.yaml --gpu NVIDIA-L4 --config config.json -o markdown
  llmservice plan --config config.json --gpu NVIDIA-L4 --max-model-len 32K --kv-cache-dtype fp8 --explain
  llmservice plan --model hf://Qwen/Qwen2.5-7B-Instruct --gpu A100-80 -tp 2
  llmservice plan --parameters 70B --gpu H100 -tp 4          without a config.json: what the weights alone say
  llmservice plan --compare --config config.json --gpu L4 --gpu L40S
  llmservice plan --batch cases.jsonl > plans.jsonl

Options beside -f stand for the manifest's values. A config.json (--config) needs no network; of hubs' and buckets'
models config.json and the headers of the safetensors are read, never the weights (HF_TOKEN, HF_ENDPOINT, AWS_...,
GOOGLE_... and AZURE_... as usual).
-f does so for spec.model.uri too, unless the spec or --config says enough, or --offline is given.

A line of a batch holds options under their names with underscores, config (config.json's content), gpu and an id.

exit codes:
  0  it fits; also for Tight (inside the planner's error), with a warning; --compare: one cell does
  1  it does not fit; with --strict also for Tight; --compare: no cell does
  2  bad input: a line on standard error for everything that is wrong
  3  not known: something is missing, and named; 0 with --allow-unknown
Of several LLMServices, and of the lines of a batch, the worst counts: 2, then 1, then 3.
"""
USAGE = "%(prog)s (-f FILE | --config PATH | --model URI | --batch FILE) [--gpu NAME] [option ...]"
NOTHING = "Give a manifest with -f, or the model with --config, --model, --parameters or --weights-gib."
OUTPUTS = ("table", "json", "yaml", "markdown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = USAGE
    what = parser.add_argument_group("what to plan")
    what.add_argument("-f", "--file", metavar="FILE", help="manifest with LLMServices; - for stdin")
    what.add_argument("--config", metavar="PATH", help="the model's config.json, a folder with it, or - for stdin")
    what.add_argument(
        "--model", metavar="URI", help="hf://ORG/NAME[@REVISION], s3://, gs:// or az://BUCKET/PREFIX, or a folder"
    )
    what.add_argument(
        "--gpu",
        action="append",
        metavar="NAME",
        help="GPU: a node's nvidia.com/gpu.product, or as people write it; repeat it: the first that fits",
    )
    what.add_argument("--batch", metavar="FILE", help="JSON lines of cases; - for stdin")
    what.add_argument("--compare", action="store_true", help="a grid of GPUs and precisions")
    what.add_argument("--offline", action="store_true", help="read no model over the network")
    shown = parser.add_argument_group("the answer")
    shown.add_argument("-o", "--output", choices=OUTPUTS, default="table", help="default: table")
    shown.add_argument("--explain", action="store_true", help="the arithmetic line by line")
    shown.add_argument("--strict", action="store_true", help="end with 1 for Tight too")
    shown.add_argument("--allow-unknown", action="store_true", help="end with 0, not 3, where something is not known")
    inputs.add_to(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Print the plans; the exit code says whether they fit."""
    if options.batch is not None:
        return _batch(options)
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


def _batch(options: argparse.Namespace) -> ExitCode:
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
    return batch(options.batch, sys.stdout, explain=options.explain, is_offline=options.offline, ending=ending)
