"""The pages of the plans: docs/reference/sizing.md, and the rows of it that docs/choose-a-gpu.md has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from llmservice_planner.plan import Plan

from benchmarks.pages import header, row
from benchmarks.sizing.plans import GPUS, LONG, SHORT, Model, Size, sizes

PAGE = "docs/reference/sizing.md"
CHOOSE = "docs/choose-a-gpu.md"
BEGIN, END = "<!-- rows: begin (generated: python -m benchmarks.sizing) -->", "<!-- rows: end -->"
TOP = (
    "meta-llama/Llama-3.2-3B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct",
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-14B",
    "openai/gpt-oss-20b",
    "mistralai/Mistral-Small-24B-Instruct-2501",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-32B",
    "meta-llama/Llama-3.3-70B-Instruct",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-235B-A22B",
    "deepseek-ai/DeepSeek-R1-0528",
)
"""What people ask for most, for the page that explains."""

HEAD = """\
# Sizes of known models

<!-- Generated: python -m benchmarks.sizing -->

What the planner answers for {count} published models on the usual GPUs, for vLLM's defaults (92% of the memory, CUDA
graphs, a KV cache in the model's type). Nothing here was measured: [how exact the planner is](planner-accuracy.md)
says how far it is off where somebody has measured, and [choose a GPU](../choose-a-gpu.md) how to read this page. For
your own model, GPU or request length: [`llmservice plan --compare`](../cli/plan.md#grid-of-gpus-and-precisions)."""
NEEDED = f"""\
## GPUs needed

The fewest GPUs of one node with which a request of {LONG:,} tokens surely fits, that is: beyond the planner's error
band; and the longest request that surely fits them. `4: 55K (2?)`: 4 GPUs, for requests of up to 55 x 1,024 tokens;
with 2 the margin lies inside the band, and it may start or not. `-`: more than a node has (8; A100 40 GB: 16). All of
them are tensor-parallel, as far as the heads of the model and the groups of its quantization can be shared.

- `bf16`, `mxfp4`, and `fp8` where it is a model's only row: the checkpoint as it is published.
- `fp8` below `bf16`: vLLM converts the weights while it loads them, with
  [`spec.precision.weights: fp8`](../serving/precision.md); answers may get worse.
- `int4`: another checkpoint of the model, quantized by AWQ or GPTQ.
"""
EACH = f"""\
## Context and requests

For the number of GPUs above. A cell has: GPUs; the longest request that surely fits; requests of {SHORT:,} / {LONG:,}
tokens that the KV cache holds at once; the error band of these figures, as a share of the KV cache. Requests beyond
`maxNumSeqs` (vLLM's default: 256; from 70 GiB on, A100s excepted, 1,024) wait, whatever the KV cache has room for. In
one step vLLM computes 2,048 tokens by default, from 70 GiB on (A100s excepted) 8,192 and from 160 GiB on 16,384. A
sliding window's blocks cover the tokens of a step too, so that models with windows (Gemma, gpt-oss) hold fewer requests
on an H100 than on an A100 of 80 GB."""
SOURCES = """\
## Where the models' sizes are from

From published config.json files, by way of what is named here; the parameters that the planner counts from them are
those that the authors publish, within 1.5%. (r): sizes from reports, not from the model's own files."""


def generated(root: Path) -> dict[str, str]:
    """Both pages by their paths; the second keeps what is outside of its rows."""
    found = list(sizes())
    return {PAGE: page(found), CHOOSE: with_rows((root / CHOOSE).read_text("utf-8"), found)}


def page(found: Sequence[Size]) -> str:
    models = list(dict.fromkeys(size.model for size in found))
    lines = [HEAD.format(count=len(models)), "", NEEDED]
    lines += [*needed(found), "", EACH, ""]
    for model in models:
        lines += [f"### {model.name}", "", *_figures([size for size in found if size.model == model]), ""]
    lines += [SOURCES, "", *_sources(models)]
    return "\n".join([*lines, ""])


def with_rows(text: str, found: Sequence[Size]) -> str:
    """The text with the rows of TOP between its markers; ValueError where it has none."""
    before, _, rest = text.partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise ValueError(f"{CHOOSE} has no line {BEGIN!r} before a line {END!r}")
    rows = needed([size for size in found if size.model.name in TOP])
    return "\n".join([f"{before}{BEGIN}", "", *rows, "", f"{END}{after}"])


def needed(found: Sequence[Size]) -> Iterator[str]:
    """A row for each model and precision."""
    yield from header("model", "precision", "weights, GiB", *GPUS.values())
    for (model, precision), group in groupby(found, lambda size: (size.model, size.precision)):
        row_of = list(group)
        yield row(_short(model), precision, _weights(row_of), *map(_count, row_of))


def _figures(found: Sequence[Size]) -> Iterator[str]:
    precisions = list(dict.fromkeys(size.precision for size in found))
    yield from header("GPU", *precisions)
    for product, name in GPUS.items():
        yield row(name, *(_cell(size) for size in found if size.device.name == product))


def _sources(models: Sequence[Model]) -> Iterator[str]:
    yield from header("model", "parameters, billions", "read in")
    for model in models:
        mark = "" if model.is_certain else " (r)"
        yield row(f"{model.name}{mark}", f"{model.billions:g}", f"`{model.source}`")


def _short(model: Model) -> str:
    return model.name.partition("/")[2]


def _weights(found: Sequence[Size]) -> str:
    """Over all GPUs of the replica with the fewest; "-": it fits nowhere."""
    plans = [size.plan for size in found if size.plan is not None]
    fewest = min(plans, key=lambda plan: plan.gpus, default=None)
    return "-" if fewest is None or fewest.weights_total_gib is None else f"{fewest.weights_total_gib:.1f}"


def _count(size: Size) -> str:
    if size.refused is not None:
        return "not served"
    maybe = "" if size.maybe is None else f" ({size.maybe}?)"
    return f"-{maybe}" if size.plan is None else f"{size.gpus}: {_tokens(size.plan.max_model_len)}{maybe}"


def _cell(size: Size) -> str:
    if size.plan is None or size.short is None:
        return _count(size)
    requests = f"{_requests(size.short)} / {_requests(size.plan)}"
    return f"{size.gpus}; {_tokens(size.plan.max_model_len)}; {requests}; ±{100 * (size.plan.error_band or 0):.0f}%"


def _requests(plan: Plan) -> str:
    return f"{int(plan.max_concurrency or 0):,}"


def _tokens(tokens: int | None) -> str:
    """Thousands of 1,024, rounded down, as models' lengths are written."""
    return "?" if tokens is None else f"{tokens // 1024:,}K" if tokens >= 1024 else str(tokens)
