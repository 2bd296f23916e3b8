"""The docs page that says how far off the planner is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from llmservice_planner.batching import batching, whole_item
from llmservice_planner.kv_cache import layout
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Architecture, UnsupportedModel
from llmservice_planner.overheads import load
from llmservice_planner.plan import GIB, Device, Draft, Fit, Request
from llmservice_planner.weights import weigh

from benchmarks.calibration.earlier import ALL, packed_tokens
from benchmarks.calibration.fit import VARIED
from benchmarks.calibration.judge import COVERED, Judged, quantile
from benchmarks.calibration.records import config
from benchmarks.pages import header, row

HEAD = """\
# How exact the planner is

<!-- Generated: python -m benchmarks.calibration --write -->

Start-ups that people measured on real GPUs and published (`tools/benchmarks/calibration/startups.jsonl`), each
planned with constants that were fitted **without its model** (leave one model out). Doubtful records, and those that
do not name their GPU, take part in the fit or not at all, and are listed but not counted. A Tight counts as right
only where the measured margin lies inside the band that it was given for."""

OTHERS = """\
And start-ups that **no constant was fitted to** (`tools/benchmarks/calibration/more.jsonl`), with the constants
below. What the engines do differently from version to version was in part learnt from them."""


@dataclass(frozen=True)
class Summary:
    """The figures that count."""

    starts: int
    tokens_median: float
    tokens_quantile: float
    verdicts: int
    right: int
    tight: int
    wrongly_fits: tuple[str, ...]

    @property
    def right_share(self) -> float:
        """Of the verdicts."""
        return self.right / self.verdicts

    @property
    def tight_share(self) -> float:
        """Of the verdicts."""
        return self.tight / self.verdicts


def is_counted(judged: Judged) -> bool:
    """Whether the record is one to be judged by."""
    return judged.startup.names_gpu and not judged.startup.is_doubtful


def summary(all_judged: Sequence[Judged]) -> Summary:
    """Of the records that count."""
    counted = [one for one in all_judged if is_counted(one)]
    errors = [abs(error) for one in counted if (error := one.tokens_error) is not None]
    verdicts = [one for one in counted if one.verdict_is_right is not None]
    wrongly = (one for one in verdicts if one.plan.verdict is Fit.FITS and not one.verdict_is_right)
    return Summary(
        starts=len(errors),
        tokens_median=median(errors),
        tokens_quantile=quantile(errors, COVERED),
        verdicts=len(verdicts),
        right=sum(bool(one.verdict_is_right) for one in verdicts),
        tight=sum(one.plan.verdict is Fit.TIGHT for one in verdicts),
        wrongly_fits=tuple(one.startup.id for one in wrongly),
    )


def page(left_out: Sequence[Judged], others: Sequence[Judged]) -> str:
    """Markdown."""
    lines = [HEAD, "", *_figures(summary(left_out)), "", OTHERS, "", *_figures(summary(others)), "", *_constants(), ""]
    lines += [*_known(), ""]
    lines += ["## Start-ups, each left out with its model", "", *_table(left_out), ""]
    return "\n".join([*lines, "## Other start-ups", "", *_table(others), ""])


def _figures(found: Summary) -> Iterator[str]:
    yield "| | |"
    yield "|-|-|"
    yield f"| KV tokens, median error of {found.starts} start-ups | {found.tokens_median:.1%} |"
    yield f"| KV tokens, 90th percentile of the error | {found.tokens_quantile:.1%} |"
    yield f"| verdicts that were right, of {found.verdicts} | {found.right_share:.1%} |"
    yield f"| verdicts that were Tight | {found.tight_share:.1%} |"
    yield f"| Fits, and it did not start | {', '.join(found.wrongly_fits) or 'none'} |"


def _constants() -> Iterator[str]:
    yield "## Constants"
    yield ""
    yield from header("name", "value", "±", "unit", "where from")
    for name, constant in ALL.named().items():
        mark = " (fitted)" if name in VARIED else ""
        spread = f"{constant.uncertainty:g}" if constant.uncertainty else "-"
        yield f"| `{name}` | {constant.value:g}{mark} | {spread} | {constant.unit} | {constant.source} |"


def _known() -> Iterator[str]:
    """What a published file, a count or vLLM's source says without a start-up."""
    yield "## Figures of models that nobody measured on a named GPU"
    yield ""
    yield from header("model", "what", "right", "planned", "where from")
    for model, what, right, planned, source in KNOWN:
        try:
            value = planned(config_json.read(config(model)))
        except UnsupportedModel:
            value = "Unknown: not planned"
        yield row(model, what, right, value, source)


def _bytes(made: Architecture, **settings: Any) -> float:
    """GiB that a GPU of the planner's sizes reserves for the index of sparse attention."""
    device = Device("NVIDIA-H200", 139.8, (9, 0))
    request = Request(made, device, **settings)
    return load(request, made, device, batching(request)).index_bytes / GIB


def _deepseek_v4(made: Architecture) -> str:
    """Weights of the files, and what is printed for the memory that a start-up had."""
    predicting, gib, length = Draft("mtp", 1), 7.71, 121_344
    files = weigh(Request(made, None, draft=predicting)).total - 4 * made.rotary_values
    device = Device("NVIDIA-H20", 95.0, (9, 0))
    request = Request(made, device, tensor_parallel_size=2, max_model_len=length, draft=predicting)
    today = layout(request).capacity(int(gib * GIB), length).tokens
    return f"{files / GIB:.2f}; {packed_tokens(request, int(gib * GIB)):,} by 0.26, {today:,} by 0.32"


KNOWN: tuple[tuple[str, str, str, Callable[[Architecture], str], str], ...] = (
    (
        *("BAAI/bge-m3", "parameters; GiB in 16 bit; KV cache", "566.7M; 1.06; none"),
        lambda made: (
            f"{made.counted_parameters / 1e6:.1f}M; {2 * made.counted_parameters / GIB:.2f}; "
            f"{'none' if not layout(Request(made, None)).groups else 'some'}"
        ),
        "the checkpoint's tensors; vllm/v1/engine/core.py (has_kv_cache)",
    ),
    (
        *("zai-org/GLM-5-FP8", "GiB of the index's workspace, at 202,752 tokens", "1.00"),
        lambda made: f"{_bytes(made):.2f}",
        "40 x 132 bytes a token: vllm/v1/attention/backends/mla/indexer.py",
    ),
    (
        *("Qwen/Qwen3.8-Flash-Next", "parameters on GPUs; GiB of tables in the node's memory", "125.74B; 95.4"),
        lambda made: f"{made.counted_parameters / 1e9:.2f}B; {made.table_bytes / GIB:.1f}",
        "transformers' class on the meta device",
    ),
    (
        *("google/gemma-4-26B-A4B", "tokens of one video, which a step has to hold", "2,496"),
        lambda made: f"{whole_item(made)[0]:,}",
        "vllm/model_executor/models/gemma4_mm.py",
    ),
    (
        *("deepseek-ai/DeepSeek-V4-Flash", "GiB of the files; tokens of 121,344 each in 7.71 GiB", "148.66; 150,992"),
        lambda made: _deepseek_v4(made),
        "headers of the files, with the layer for prediction; a log of two H20 (vllm-project/vllm#51041), whose 0.26 "
        "counted blocks by the bytes of their groups; from 0.28 on whole blocks count",
    ),
)


def _table(all_judged: Sequence[Judged]) -> Iterator[str]:
    yield "KV cache in GiB per GPU."
    yield ""
    yield "| start-up | engine | KV planned | measured | tokens off by | verdict | outcome | |"
    yield "|-|-|-|-|-|-|-|-|"
    for one in all_judged:
        facts = one.startup.facts
        error, measured, planned = one.tokens_error, one.startup.kv_gib, one.plan.kv_cache_gib
        marks = [] if is_counted(one) else ["not counted"]
        marks += ["**wrong**"] if one.verdict_is_right is False else []
        cells = (
            f"{one.startup.id} ({facts['source']})",
            facts.get("vllm_version", "not said"),
            "-" if planned is None else f"{planned:.2f}",
            "-" if measured is None else f"{measured:.2f}",
            "-" if error is None else f"{error:+.1%}",
            one.plan.verdict,
            one.startup.outcome or "stopped by something else",
            ", ".join(marks),
        )
        yield row(*cells)
