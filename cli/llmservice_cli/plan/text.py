"""A plan for people: rows for a terminal, Markdown for a comment on a pull request, and a picture.

matplotlib is imported only for a picture, and when one was asked for.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import yaml
from llmservice_planner.plan import Fit, Line, Plan, Remedy

from llmservice_cli.errors import BadInput
from llmservice_cli.plan import flags_of
from llmservice_cli.terminal import Row, Span

from .answers import Answer, options_of, patch, words_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDEST = 100
NARROWEST = 30
_INDENT = "  "
_LONGEST_NAME = 24
END = "|"
"""Where the GPU's memory ends, in a bar of something that is larger."""
_BAR_WIDTH = 60
"""Characters of a bar in Markdown."""
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")
VERDICT_STYLES = {Fit.FITS: "bold green", Fit.TIGHT: "bold yellow", Fit.DOES_NOT_FIT: "bold red", Fit.UNKNOWN: "bold"}


def screen(answer: Answer, width: int, *, explain: bool = False) -> Iterator[Row]:
    """Everything about one plan; no row is wider than `width` where words allow it."""
    plan, width = answer.plan, max(NARROWEST, min(width, WIDEST))
    yield _headline(answer)
    yield from _prose(plan.reason, width)
    yield from _memory(plan, width)
    yield from _facts(plan, width)
    for passed in answer.passed_over:
        yield from _prose(f"passed over {passed.gpu}: {passed.reason}", width)
    for note in answer.question.notes:
        yield from _prose(f"note: {note}", width)
    if answer.placement is not None:
        yield ()
        yield (("in the cluster now", "bold"),)
        for line in answer.placement.lines():
            yield from _prose(line, width)
    if plan.remedies:
        yield ()
        yield (("what would make it fit", "bold"),)
        for index, remedy in enumerate(plan.remedies, 1):
            yield from _remedy(index, remedy, width, is_manifest=answer.question.is_manifest)
    if explain and plan.explanation:
        yield ()
        yield (("the arithmetic, per GPU", "bold"),)
        yield from _explained(plan.explanation, width)
        if scores := attention(plan):
            yield from _prose(scores, width)


def headline(answer: Answer) -> tuple[str, str]:
    """Of which service, and on what."""
    question, plan = answer.question, answer.plan
    where = f" in {question.namespace}" if question.namespace else ""
    on = f" on {plan.gpus} x {plan.gpu}" if plan.gpu else f" on {plan.gpus} GPUs" if plan.gpus > 1 else ""
    return (f"{question.name}{where}: " if question.name else "", on)


def facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """What the memory comes to, in words."""
    if plan.kv_cache_tokens is not None and plan.block_size is not None:
        yield "KV cache", plan.kv_cache_text
    if plan.max_model_len is not None:
        asked = plan.requested_max_model_len
        wanted = "" if asked is None or asked == plan.max_model_len else f"{asked:,} tokens wanted; "
        yield "longest request", f"{wanted}{plan.max_model_len:,} tokens fit for sure"
    if plan.max_concurrency is not None and plan.requested_max_model_len:
        yield "max concurrency", f"{plan.max_concurrency:.2f} requests of {plan.requested_max_model_len:,} tokens"
    if plan.recommended_max_num_seqs is not None and plan.verdict is not Fit.DOES_NOT_FIT:
        yield "recommended", f"maxNumSeqs {plan.recommended_max_num_seqs}"
    if plan.error_band_gib is not None and plan.margin_gib is not None:
        spare = f"{plan.margin_gib:.2f} GiB to spare" if plan.margin_gib >= 0 else f"{-plan.margin_gib:.2f} GiB short"
        yield "error band", f"± {plan.error_band_gib:.2f} GiB; {spare} beside one such request"
    if plan.gpus > 1 and plan.weights_total_gib is not None and plan.kv_cache_total_gib is not None:
        all_gpus = f"{plan.weights_total_gib:.2f} GiB of weights, {plan.kv_cache_total_gib:.2f} GiB of KV cache"
        yield f"on all {plan.gpus} GPUs", all_gpus
    if plan.host_memory_gib is not None:
        yield "node memory", f"{plan.host_memory_gib:.2f} GiB that vLLM pins, in the pod's request for memory"
    if plan.missing:
        yield "not known", ", ".join(plan.missing)


def memory_title(plan: Plan) -> str:
    """Above the bar."""
    which = "memory" if plan.gpus == 1 else f"memory of each of {plan.gpus} GPUs (the fullest)"
    of = "" if plan.budget_gib is None else f", of which vLLM may take {plan.budget_gib:.2f}"
    return f"{which}: {plan.memory_gib:.2f} GiB{of}"


def change(remedy: Remedy, *, is_manifest: bool) -> str:
    """What to write: YAML for a manifest, else options. Empty where another checkpoint is the change."""
    if not is_manifest:
        return flags_of(options_of(remedy))
    merged = patch(remedy)
    return str(yaml.safe_dump(merged, sort_keys=False)).rstrip() if merged else ""


def outcome(remedy: Remedy) -> str:
    parts = [str(remedy.verdict)]
    if remedy.max_model_len:
        parts.append(f"up to {remedy.max_model_len:,} tokens a request")
    if remedy.kv_cache_tokens:
        parts.append(f"{remedy.kv_cache_tokens:,} KV tokens")
    return ", ".join(parts)


def attention(plan: Plan) -> str | None:
    """Why nobody stores all scores any more."""
    if plan.naive_attention_gib is None or plan.flash_attention_gib is None:
        return None
    return (
        f"attention over one request of {plan.requested_max_model_len or 0:,} tokens: "
        f"{plan.naive_attention_gib:,.2f} GiB if all scores were stored, "
        f"{plan.flash_attention_gib:,.3f} GiB with FlashAttention"
    )


def _headline(answer: Answer) -> Row:
    name, on = headline(answer)
    verdict = answer.plan.verdict
    return ((name, "bold"), (str(verdict), VERDICT_STYLES[verdict]), (on, ""))


def _memory(plan: Plan, width: int) -> Iterator[Row]:
    parts = segments(plan)
    if not parts or plan.memory_gib is None:
        return
    yield ()
    yield from _prose(memory_title(plan), width, indent="")
    drawn = cells(parts, width - 4, plan.memory_gib)
    spans = [(END, "bold red") if part is None else (part.letter, f"reverse {part.style}") for part in drawn]
    yield ((f"{_INDENT}[", ""), *_joined(spans), ("]", ""))
    for part in parts:
        share = f"{100 * part.gib / plan.memory_gib:5.1f} %"
        figure = f"  {part.label:<15} {part.gib:8.2f} GiB {share}"
        yield ((f"{_INDENT}", ""), (part.letter, f"reverse {part.style}"), (figure, ""))
    if plan.kv_cache_gib is not None and plan.kv_cache_gib < 0:
        yield from _prose(f"{-plan.kv_cache_gib:.2f} GiB are missing before there is any KV cache", width)


def _facts(plan: Plan, width: int) -> Iterator[Row]:
    rows = list(facts(plan))
    if rows:
        yield ()
    for name, value in rows:
        first, *more = wrap(value, max(10, width - 20), break_on_hyphens=False) or [""]
        yield ((f"{_INDENT}{name:<16}  ", "bold"), (first, ""))
        for line in more:
            yield ((f"{' ' * 20}{line}", ""),)


def _remedy(index: int, remedy: Remedy, width: int, *, is_manifest: bool) -> Iterator[Row]:
    words = words_of(remedy, is_manifest=is_manifest)
    first, *more = wrap(f"{index}. {words}", width - 2, subsequent_indent="   ", break_on_hyphens=False)
    yield ((f"{_INDENT}{first}", ""),)
    for line in more:
        yield ((f"{_INDENT}{line}", ""),)
    yield ((f"{_INDENT}   {outcome(remedy)}", VERDICT_STYLES[remedy.verdict]),)
    for line in change(remedy, is_manifest=is_manifest).splitlines():
        yield ((f"{_INDENT}     {line}", "dim"),)


def _explained(lines: Sequence[Line], width: int) -> Iterator[Row]:
    """Names, figures, and how they come about; sources below."""
    label = max((len(line.name) for line in lines if len(line.name) <= _LONGEST_NAME), default=0)
    left = len(_INDENT) + label + 2 + len("00000.000 GiB") + 2
    room = max(24, width - left)
    for line in lines:
        figure = f"{line.gib:9.3f} GiB" if line.gib is not None else " " * 13
        first, *more = wrap(line.formula, room, break_on_hyphens=False) or [""]
        name = line.name
        if len(name) > label:
            yield ((f"{_INDENT}{name}", "bold"),)
            name = ""
        yield ((f"{_INDENT}{name:<{label}}  ", "bold"), (f"{figure}  {first}", ""))
        yield from (((f"{' ' * left}{text}", ""),) for text in more)
        yield from (((f"{' ' * left}{text}", "dim"),) for text in wrap(line.source, room, break_on_hyphens=False))


def _prose(text: str, width: int, indent: str = _INDENT) -> Iterator[Row]:
    lines = wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    yield from (((line, ""),) for line in lines)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Neighbours of one style as one span."""
    result: list[Span] = []
    for text, style in spans:
        if result and result[-1][1] == style:
            result[-1] = (result[-1][0] + text, style)
        else:
            result.append((text, style))
    return result


@dataclass(frozen=True, slots=True)
class Segment:
    letter: str
    label: str
    gib: float
    style: str


def segments(plan: Plan) -> tuple[Segment, ...]:
    """What the memory is for, in the engine's order; empty where too little is known for a picture."""
    if plan.memory_gib is None or plan.weights_gib is None:
        return ()
    parts = [
        Segment("W", "weights", plan.weights_gib, "blue"),
        Segment("N", "non-torch", plan.non_torch_gib or 0.0, "magenta"),
        Segment("A", "activation peak", plan.activation_gib or 0.0, "yellow"),
        Segment("G", "CUDA graphs", plan.graph_gib or 0.0, "cyan"),
        Segment("K", "KV cache", max(0.0, plan.kv_cache_gib or 0.0), "green"),
    ]
    rest = plan.memory_gib - sum(part.gib for part in parts)
    if plan.kv_cache_gib is None:
        parts = [part for part in parts if part.gib > 0]
        left = Segment("?", "not known", max(0.0, rest), "dim")
    else:
        left = Segment(".", "left to others", max(0.0, rest), "dim")
    return tuple(part for part in (*parts, left) if part.gib > 0 or part.letter == "K")


def cells(parts: Sequence[Segment], width: int, memory_gib: float) -> list[Segment | None]:
    """`width` cells, each of a segment; None marks the end of the memory where the parts are more than it has."""
    total = sum(part.gib for part in parts)
    is_over = total > memory_gib * 1.0005
    room = width - 1 if is_over else width
    result: list[Segment | None] = []
    for part, count in zip(parts, _shares([part.gib for part in parts], room), strict=True):
        result += [part] * count
    if is_over:
        result.insert(round(room * memory_gib / total), None)
    return result


def bar(parts: Sequence[Segment], width: int, memory_gib: float) -> str:
    return "".join(END if part is None else part.letter for part in cells(parts, width, memory_gib))


def _shares(amounts: Sequence[float], room: int) -> list[int]:
    """Whole cells in proportion; what there is, however little, gets one where there is room for all."""
    total = sum(amounts)
    if total <= 0:
        return [0] * len(amounts)
    exact = [amount * room / total for amount in amounts]
    least = [1 if amount > 0 and room >= len(amounts) else 0 for amount in amounts]
    counts = [max(low, int(share)) for low, share in zip(least, exact, strict=True)]
    while sum(counts) < room:
        counts[max(range(len(counts)), key=lambda i: exact[i] - counts[i])] += 1
    while sum(counts) > room:
        counts[max(range(len(counts)), key=lambda i: counts[i] - exact[i] if counts[i] > least[i] else -1.0)] -= 1
    return counts


def markdown(answer: Answer, *, explain: bool = False) -> Iterator[str]:
    """Lines of one plan; the arithmetic folds away, unless it was asked for."""
    name, on = headline(answer)
    plan = answer.plan
    yield f"### {escaped(name)}{plan.verdict}{escaped(on)}"
    yield from ("", escaped(plan.reason), "")
    yield from _memory_table(plan)
    yield from table(("", ""), ((f"**{label}**", escaped(value)) for label, value in facts(plan)))
    for passed in answer.passed_over:
        yield from ("", f"Passed over {escaped(str(passed.gpu))}: {escaped(passed.reason)}")
    for note in answer.question.notes:
        yield from ("", f"Note: {escaped(note)}")
    if answer.placement is not None:
        yield from ("", "**In the cluster now**", "")
        yield from (f"- {escaped(line)}" for line in answer.placement.lines())
    if plan.remedies:
        yield from ("", "**What would make it fit**")
        for index, remedy in enumerate(plan.remedies, 1):
            yield from _change(index, remedy, is_manifest=answer.question.is_manifest)
    if plan.explanation:
        yield from _arithmetic(plan, is_open=explain)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: frozenset[int] = frozenset()) -> Iterator[str]:
    """A table; cells are Markdown already."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'|'.join('-:' if index in right else '-' for index in range(len(header)))}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def escaped(text: str) -> str:
    """A text as it is: no formatting, no HTML, no cell's end, one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split(" ")).replace("\n", " "))


def _memory_table(plan: Plan) -> Iterator[str]:
    parts = segments(plan)
    if not parts or plan.memory_gib is None:
        return
    yield from (escaped(memory_title(plan)), "", "```text")
    yield f"[{bar(parts, _BAR_WIDTH, plan.memory_gib)}]"
    yield from ("```", "")
    rows = (
        (f"`{part.letter}`", part.label, f"{part.gib:.2f}", f"{100 * part.gib / plan.memory_gib:.1f} %")
        for part in parts
    )
    yield from table(("", "per GPU", "GiB", "share"), rows, frozenset({2, 3}))
    yield ""


def _change(index: int, remedy: Remedy, *, is_manifest: bool) -> Iterator[str]:
    words = words_of(remedy, is_manifest=is_manifest)
    yield from ("", f"{index}. {escaped(words)}: {escaped(outcome(remedy))}")
    written = change(remedy, is_manifest=is_manifest)
    if written:
        yield from ("", f"   ```{'yaml' if is_manifest else 'sh'}")
        yield from (f"   {line}" for line in written.splitlines())
        yield "   ```"


def _arithmetic(plan: Plan, *, is_open: bool) -> Iterator[str]:
    yield from ("", f"<details{' open' if is_open else ''}><summary>The arithmetic, per GPU</summary>", "")
    rows = (
        (escaped(line.name), "" if line.gib is None else f"{line.gib:.3f}", escaped(line.formula), escaped(line.source))
        for line in plan.explanation
    )
    yield from table(("", "GiB", "how", "source"), rows, frozenset({1}))
    if scores := attention(plan):
        yield from ("", escaped(scores))
    yield from ("", "</details>")


OPTION = "--picture"
SUFFIXES = (".svg", ".png")
# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = dict(
    zip("WNAGK.?", ("#0072B2", "#CC79A7", "#E69F00", "#56B4E9", "#009E73", "#EEEEEE", "#BBBBBB"), strict=True)
)
"""By the letter of a segment."""
WIDTH, PLAN = 10.0, 2.6
"""Inches: of a picture, and the height of a plan in it."""


def check_picture(path: Path) -> None:
    """Before anything is planned: BadInput where no picture can be made."""
    if path.suffix not in SUFFIXES:
        raise BadInput.of(
            OPTION, f"{path} is no kind of picture that is known here.", f"Write {' or '.join(SUFFIXES)}."
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput.of(OPTION, "a picture needs matplotlib.", "Install it, or leave the picture out.")


def draw(answers: Sequence[Answer], path: Path) -> None:
    """The memory of one GPU for each plan, as a bar with its legend."""
    with saved(path, PLAN * len(answers)) as figure:
        all_axes = figure.subplots(len(answers), 1, squeeze=False)[:, 0]
        for axes, one in zip(all_axes, answers, strict=True):
            _draw_bar(axes, one)


@contextmanager
def saved(path: Path, height: float) -> Iterator[Figure]:
    """A figure that is written at the end. Text as text, and names made from the content: small files that do not
    change without a reason."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "llmservice",
            "font.size": 9,
            "font.sans-serif": ["DejaVu Sans"],
            "text.parse_math": False,
        }
    ):
        figure = Figure(figsize=(WIDTH, max(1.5, height)), layout="constrained")
        yield figure
        try:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror or error}."
            raise BadInput.of(OPTION, message, "Name a file in a folder that you may write to.") from None


def _draw_bar(axes: Axes, answer: Answer) -> None:
    plan, (name, on) = answer.plan, headline(answer)
    axes.set_title(f"{name}{plan.verdict}{on}", loc="left", fontsize=10, fontweight="bold")
    axes.set_yticks([])
    parts, begin = segments(plan), 0.0
    if not parts or plan.memory_gib is None:
        axes.set_axis_off()
        axes.text(0, 0.5, plan.reason, wrap=True, transform=axes.transAxes)
        return
    for part in parts:
        label = f"{part.label}: {part.gib:.2f} GiB"
        axes.barh(0, part.gib, 0.6, left=begin, color=COLOURS[part.letter], label=label, edgecolor="white")
        begin += part.gib
    for moment, style in ((plan.budget_gib, "--"), (plan.memory_gib, "-")):
        if moment is not None:
            axes.axvline(moment, ymax=0.68, color="#333333", linestyle=style, linewidth=1)
    axes.set_xlim(0, max(begin, plan.memory_gib) * 1.01)
    rows = "\n".join(f"{name}: {value}" for name, value in facts(plan))
    axes.set_xlabel(f"{memory_title(plan)} (dashed)\n{rows}", loc="left", fontsize=8)
    narrow = {"handlelength": 1.0, "columnspacing": 1.2, "borderpad": 0.0, "fontsize": 7.0}
    axes.legend(loc="upper left", ncols=len(parts), frameon=False, **narrow)
    axes.set_ylim(-0.35, 0.75)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
