"""The options of `llmservice plan`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from llmservice_cli.options import ANSWER, CLUSTER, OUTPUT, Scope
from llmservice_cli.parameters import Option

from .options import TypedValues

DESCRIPTION = """\
Does it fit, and what does it come to: weights, activations, CUDA graphs, KV cache, longest request, concurrency. The
same arithmetic as the operator's, before anything runs; what does not fit comes with changes that would.
"""
EPILOG = """\
examples:
  llmservice plan -f llmservice.yaml                         as the operator would plan it
  llmservice plan -f llmservice.yaml --gpu NVIDIA-L4 --config config.json -o markdown
  llmservice plan --config config.json --gpu NVIDIA-L4 --max-model-len 32K --kv-cache-dtype fp8 --explain
  llmservice plan --model Qwen/Qwen2.5-7B-Instruct --gpu A100-80 -tp 2
  llmservice plan -f manifests/ --cluster                    on which nodes it fits now, and how many replicas of it
  llmservice plan --parameters 70B --gpu H100 -tp 4          without a config.json: what the weights alone say
  llmservice plan --compare --config config.json --gpu L4,L40S --picture grid.svg
  llmservice plan --batch cases.jsonl > plans.jsonl

Options beside -f stand for the manifest's values. A config.json (--config) needs no network; of hubs' and buckets'
models config.json and the headers of the safetensors are read, never the weights (HF_TOKEN, HF_ENDPOINT, AWS_...,
GOOGLE_... and AZURE_... as usual).
-f does so for spec.model.uri too, unless the spec or --config says enough, or --offline is given.

--cluster asks the cluster of the kubeconfig for its GPUs and what is free of them (rights: list on nodes, and on pods
of all namespaces; resourcequotas of the namespace where there are some).

A line of a batch holds options under their names with underscores, config (config.json's content), gpu and an id.

exit codes:
  0  it fits; also for Tight (inside the planner's error), with a warning; --compare: one cell does
  1  it does not fit; with --strict also for Tight, and where the cluster has no room now; --compare: no cell does
  2  bad input, or the cluster cannot be asked: a line on standard error for everything that is wrong
  3  not known: something is missing, and named; 0 with --allow-unknown
Of several LLMServices, and of the lines of a batch, the worst counts: 2, then 1, then 3.
"""
USAGE = "(-f FILE | --config PATH | --model URI | --batch FILE) [--gpu NAME] [option ...]"
WHAT = "what to plan"


@dataclass(frozen=True, kw_only=True)
class Options(TypedValues, Scope):  # type: ignore[misc]
    """What was typed."""

    file: Annotated[
        str | None,
        Option("--file", "-f", metavar="FILE", help="manifests, a folder of them, or - for stdin", group=WHAT),
    ] = None
    config: Annotated[
        str | None,
        Option(
            "--config",
            metavar="PATH",
            help="the model's config.json, a folder with it, or - for stdin",
            group=WHAT,
        ),
    ] = None
    model: Annotated[
        str | None,
        Option(
            "--model",
            metavar="URI",
            help="hf://ORG/NAME[@REVISION], ORG/NAME, s3://, gs:// or az://BUCKET/PREFIX, or a folder",
            group=WHAT,
        ),
    ] = None
    gpu: Annotated[
        list[str] | None,
        Option(
            "--gpu",
            metavar="NAME[,NAME]",
            help="a node's nvidia.com/gpu.product, or as people write it; of several the first that fits",
            group=WHAT,
        ),
    ] = None
    batch: Annotated[
        str | None, Option("--batch", metavar="FILE", help="JSON lines of cases; - for stdin", group=WHAT)
    ] = None
    compare: Annotated[bool, Option("--compare", help="a grid of GPUs and precisions", group=WHAT)] = False
    offline: Annotated[bool, Option("--offline", help="read no model over the network", group=WHAT)] = False
    cluster: Annotated[
        bool,
        Option(
            "--cluster",
            help="plan for the nodes of the cluster, as the operator would; --context and --kubeconfig imply it",
            group=CLUSTER,
        ),
    ] = False
    output: Annotated[Literal["table", "json", "yaml", "markdown", "csv"], OUTPUT] = "table"
    picture: Annotated[
        Path | None,
        Option("--picture", metavar="FILE.svg", help="draw the memory, or the grid (also .png)", group=ANSWER),
    ] = None
    explain: Annotated[bool, Option("--explain", help="the arithmetic line by line", group=ANSWER)] = False
    strict: Annotated[bool, Option("--strict", help="end with 1 for Tight too", group=ANSWER)] = False
    allow_unknown: Annotated[
        bool,
        Option("--allow-unknown", help="end with 0, not 3, where something is not known", group=ANSWER),
    ] = False
