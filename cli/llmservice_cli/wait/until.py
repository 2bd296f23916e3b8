"""Waiting until it is known whether a condition becomes True, for every command that has --wait."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from llmservice_operator.api.conditions import ConditionType
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json
from llmservice_cli.cluster import Connection
from llmservice_cli.documents import show
from llmservice_cli.errors import ExitCode, complain, say
from llmservice_cli.services import rollout_of
from llmservice_cli.text import duration

from .assessment import Assessment, Outcome, assess
from .changes import changes


@dataclass(frozen=True, slots=True)
class Wish:
    """What is waited for, and how long: seconds, 0 to look once."""

    namespace: str
    name: str
    condition: ConditionType = ConditionType.READY
    timeout: float = 1800.0
    quiet: bool = False
    applied_update: bool = False
    """Whether what waited for a rollout has to be rolled out, too: asking for it makes no new generation."""

    def assess(self, service: Json | None, *, was_there: bool) -> Assessment:
        """One version of the object."""
        found = assess(service, self.condition, was_there=was_there)
        if found.outcome is Outcome.MET and self.applied_update and rollout_of(service or {}).get("updatePending"):
            return Assessment(Outcome.OPEN, "UpdatePending", "The operator has not begun with the update yet.")
        return found


async def until_known(connection: Connection, wish: Wish) -> Assessment | None:
    """What was seen last: an answer, or what it was like when the time was over."""
    last: Assessment | None = None
    was_there = False
    versions = changes(connection.kube, wish.namespace, wish.name, warn=_warn)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wish.timeout or None), contextlib.aclosing(versions):
            async for service in versions:
                seen = wish.assess(service, was_there=was_there)
                was_there = was_there or service is not None
                is_news = last is None or _step(seen) != _step(last)
                if seen.outcome is Outcome.OPEN and is_news and not wish.quiet:
                    say(f"{wish.name}: {seen!s}")
                last = seen
                if seen.outcome is not Outcome.OPEN or not wish.timeout:
                    break
    return last


def _step(seen: Assessment) -> tuple[str, str, int]:
    """What is worth a line: another reason or phase, or a tenth more of a phase."""
    return seen.reason, seen.phase, (seen.percent or 0) // 10


def tell(wish: Wish, found: Assessment | None, output: str = "table", *, is_beside: bool = False) -> ExitCode:
    """The answer on standard output, what stands in its way on standard error; `is_beside` another answer, which is on
    standard output already, all of it is on standard error."""
    outcome = Outcome.OPEN if found is None else found.outcome
    if is_beside and outcome is Outcome.MET:
        say(f"{wish.name} is {wish.condition}: {found!s}")
    elif outcome is Outcome.MET or output != "table":
        lines = [f"{wish.name} is {wish.condition}: {clean(str(found))}"]
        show(output, lambda: lines, lambda: document(wish, found))
    if outcome is Outcome.MET:
        return ExitCode.DONE
    if outcome is Outcome.OPEN:
        within = f"within {duration(wish.timeout)}" if wish.timeout else "now"
        is_unseen = found is not None and found.reason == "NotObserved"
        remedy = "\n  what to do: see whether the operator runs, and watches this namespace" if is_unseen else ""
        complain(f"{wish.name} is not {wish.condition} {within}. Last seen: {found or 'nothing'}{remedy}")
        return ExitCode.UNKNOWN
    remedy = f"\n  what to do: {found.remedy}" if found is not None and found.remedy else ""
    complain(f"{wish.name} cannot become {wish.condition}: {found}{remedy}")
    return ExitCode.FAILED


def document(wish: Wish, found: Assessment | None) -> Json:
    """Names are only ever added."""
    about = {"version": 1, "name": wish.name, "namespace": wish.namespace, "condition": str(wish.condition)}
    if found is None:
        return {**about, "outcome": Outcome.OPEN.value, "reason": None, "message": "", "remedy": "", "phase": ""}
    said = {"reason": found.reason, "message": found.message, "remedy": found.remedy, "phase": found.phase}
    return {**about, "outcome": found.outcome.value, **said}


def _warn(message: str) -> None:
    say(f"warning: {message}; still waiting")
