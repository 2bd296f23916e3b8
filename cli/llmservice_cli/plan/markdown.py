"""A plan as a comment on a pull request: GitHub's Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from llmservice_operator.planner.plan import Plan, Remedy

from . import bar
from .answers import Answer
from .document import words_of
from .screen import attention, change, facts, headline, memory_title, outcome

BAR_WIDTH = 60
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def markdown(answer: Answer, *, explain: bool = False) -> Iterator[str]:
    """Lines of one plan; the arithmetic folds away, unless it was asked for."""
    name, on = headline(answer)
    plan = answer.plan
    yield f"### {escaped(name)}{plan.verdict}{escaped(on)}"
    yield from ("", escaped(plan.reason), "")
    yield from _memory(plan)
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
            yield from _remedy(index, remedy, is_manifest=answer.question.is_manifest)
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


def _memory(plan: Plan) -> Iterator[str]:
    parts = bar.segments(plan)
    if not parts or plan.memory_gib is None:
        return
    yield from (escaped(memory_title(plan)), "", "```text")
    yield f"[{bar.text(parts, BAR_WIDTH, plan.memory_gib)}]"
    yield from ("```", "")
    rows = (
        (f"`{part.letter}`", part.label, f"{part.gib:.2f}", f"{100 * part.gib / plan.memory_gib:.1f} %")
        for part in parts
    )
    yield from table(("", "per GPU", "GiB", "share"), rows, frozenset({2, 3}))
    yield ""


def _remedy(index: int, remedy: Remedy, *, is_manifest: bool) -> Iterator[str]:
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
