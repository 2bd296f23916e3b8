"""`llmservice doctor`: reads the facts, runs the checks, and prints what they found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import wrap

from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json
from llmservice_cli.cluster import connect
from llmservice_cli.doctor import Options
from llmservice_cli.documents import answer
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.progress import Steps, shown
from llmservice_cli.terminal import Row, width

from . import access, dns, namespace, nodes, operator, pickers
from .facts import Check, Facts, Level, Result, results
from .gather import gather

CHECKS: tuple[Check, ...] = (
    *access.CHECKS,
    *operator.CHECKS,
    *nodes.CHECKS,
    *namespace.CHECKS,
    *pickers.CHECKS,
    *dns.CHECKS,
)
"""In the order in which they are reported. Another one is a row in its module."""
STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red", Level.NOT_KNOWN: "cyan"}
_BY_WEIGHT = (Level.PROBLEM, Level.WARNING, Level.NOT_KNOWN, Level.OK)
WIDEST = 120


async def run(options: Options) -> ExitCode:
    """Print them. A check that is not known is no failure."""
    try:
        async with connect(options) as connection:
            steps = Steps("reading the cluster's objects")
            async with shown(steps):
                facts = await gather(connection.kube, connection.namespace, steps)
    except CliError as error:
        error.exit_code = ExitCode.NOT_ASKED
        raise
    is_installed = facts.is_installed and not options.before_install
    found = tuple(results(CHECKS, facts, is_installed=is_installed))
    answer(
        options.output,
        lambda: rows(found, facts, is_installed=is_installed),
        lambda: document(found, facts, is_installed=is_installed),
    )
    bad = {Level.PROBLEM, Level.WARNING} if options.strict else {Level.PROBLEM}
    return ExitCode.FAILED if any(each.finding.level in bad for each in found) else ExitCode.DONE


def document(found: Sequence[Result], facts: Facts, *, is_installed: bool) -> Json:
    """Names are only ever added."""
    return {
        "version": 1,
        "kubernetes": facts.kubernetes,
        "program": facts.program,
        "namespace": facts.namespace,
        "isInstalled": is_installed,
        "findings": [
            {
                "check": each.check,
                "level": str(each.finding.level),
                "evidence": clean(each.finding.evidence),
                "remedy": clean(each.finding.remedy),
            }
            for each in found
        ],
    }


def rows(found: Sequence[Result], facts: Facts, *, is_installed: bool) -> Iterator[Row]:
    """A line for each finding and its remedy, and how many there are of each level."""
    columns = min(width(), WIDEST)
    levels, checks = (max(map(len, texts)) for texts in (Level, [each.check for each in found]))
    indent = levels + checks + 4
    if not is_installed:
        yield ((f"before installing: what only an installed operator has is skipped; namespace {facts.namespace}", ""),)
    for each in found:
        finding = each.finding
        first, *rest = _lines(finding.evidence, columns - indent)
        style = STYLES[finding.level]
        yield (finding.level.ljust(levels + 2), style), (each.check.ljust(checks + 2), "bold"), (first, "")
        yield from (((" " * indent + line, ""),) for line in rest)
        if finding.remedy:
            label = "what to do: " if finding.level is not Level.OK else "note: "
            remedy = _lines(label + finding.remedy, columns - indent)
            yield from (((" " * indent + line, "dim"),) for line in remedy)
    counts = Counter(each.finding.level for each in found)
    yield ()
    yield ((", ".join(f"{level}: {counts[level]}" for level in _BY_WEIGHT), ""),)


def _lines(text: str, columns: int) -> list[str]:
    return wrap(" ".join(clean(text).split()), max(columns, 30), break_on_hyphens=False, break_long_words=False) or [""]
