"""What a check says, and what all checks have in common. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from llmservice_cli.text import listed

from .facts import Facts

MOST_NAMES = 5
LONGEST = 400
"""Characters of what is quoted of an object."""


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, and what to do about it; nothing is to be done about what is ok."""

    level: Level
    evidence: str
    remedy: str = ""


def ok(evidence: str, remedy: str = "") -> Finding:
    return Finding(Level.OK, evidence, remedy)


def warning(evidence: str, remedy: str) -> Finding:
    return Finding(Level.WARNING, evidence, remedy)


def problem(evidence: str, remedy: str) -> Finding:
    return Finding(Level.PROBLEM, evidence, remedy)


def not_known(evidence: str, remedy: str) -> Finding:
    return Finding(Level.NOT_KNOWN, evidence, remedy)


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table: `of` gives at least one finding, from facts of which all that it `needs` were read."""

    name: str
    about: str
    """What is checked, for the documentation."""
    needs: tuple[str, ...]
    """Fields of Facts."""
    of: Callable[[Facts], Iterable[Finding]]
    is_of_installed: bool = False
    """Whether only a cluster with the operator has what it checks."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finding of a check."""

    check: str
    finding: Finding


def results(checks: Iterable[Check], facts: Facts, *, is_installed: bool) -> Iterator[Result]:
    """The findings of all checks that apply, in the order of the table."""
    for check in checks:
        if check.is_of_installed and not is_installed:
            continue
        unread = [facts.unread[need] for need in check.needs if need in facts.unread]
        if unread:
            yield Result(check.name, not_known("; ".join(dict.fromkeys(each.why for each in unread)), unread[0].remedy))
            continue
        yield from (Result(check.name, finding) for finding in check.of(facts))
        if cut := [need for need in check.needs if need in facts.cut]:
            missing = not_known(f"there are more {', '.join(cut)} than were read", "see the others with kubectl")
            yield Result(check.name, missing)


def names(found: Iterable[str]) -> str:
    """The first of them, and how many more there are."""
    return listed(found, MOST_NAMES)
