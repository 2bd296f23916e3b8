"""`llmservice wait`, and waiting for every command that has --wait.

It ends as soon as the answer is known, and not only when it is yes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum

from llmservice_api.conditions import Condition, ConditionStatus, ConditionType
from llmservice_api.constants import LLMSERVICE
from llmservice_api.reasons import Reason
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Api, Json, versions
from llmservice_cli.cluster import Connection, connect
from llmservice_cli.documents import show
from llmservice_cli.errors import CliError, ExitCode, complain, say
from llmservice_cli.services import conditions_of, is_outdated, rollout_of
from llmservice_cli.text import duration
from llmservice_cli.wait import Options


async def run(options: Options) -> ExitCode:
    """Print the last word on standard output, or what stands in the way on standard error."""
    condition = ConditionType(options.condition)
    try:
        async with connect(options) as connection:
            wish = Wish(connection.namespace, options.name, condition, options.timeout, options.quiet)
            found = await until_known(connection, wish)
    except CliError as error:
        # Of the service nothing is known, and 1 would say that it cannot become what was asked for.
        error.exit_code = ExitCode.NOT_ASKED
        raise
    return tell(wish, found, options.output)


# One LLMService, now and at each change.


async def changes(api: Api, namespace: str, name: str, *, warn: Callable[[str], None]) -> AsyncGenerator[Json | None]:
    """The object, or None while there is none, for ever. An API server that answered once may fail for a while."""
    selector = {"fieldSelector": f"metadata.name={name}"}
    async with aclosing(versions(api, LLMSERVICE, namespace, selector, warn)) as found:
        async for objects in found:
            yield next(iter(objects.values()), None)


# Whether a condition is met, cannot be met, or may yet be: one LLMService as the API server has it, judged.


class Outcome(Enum):
    """What is known of the condition."""

    MET = "met"
    IMPOSSIBLE = "impossible"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Assessment:
    """What one version of the object says about the condition."""

    outcome: Outcome
    reason: str
    message: str = ""
    remedy: str = ""
    phase: str = ""
    """Of a pod that starts; empty where none does."""
    percent: int | None = None
    """How much of the phase is done, where that is known."""
    left: float | None = None
    """Seconds that the rest of it will take."""

    def __str__(self) -> str:
        share = "" if self.percent is None else f"{self.percent} %"
        left = "" if self.left is None else f"about {duration(self.left)} left"
        details = ", ".join(filter(None, (self.phase, share, left)))
        where = f"{self.reason} ({details})" if details else self.reason
        return f"{where}: {self.message}" if self.message else where


def assess(service: Json | None, wanted: ConditionType, *, was_there: bool) -> Assessment:
    """Only what the operator says of the current generation counts; `service` is None where there is none."""
    if service is None:
        if was_there:
            return Assessment(Outcome.IMPOSSIBLE, "Deleted", "It was deleted.", "Apply it again.")
        return Assessment(Outcome.OPEN, "NotFound", "There is no such LLMService yet.")
    if service["metadata"].get("deletionTimestamp") is not None:
        return Assessment(Outcome.IMPOSSIBLE, "Deleting", "It is being deleted.", "Apply it again when it is gone.")
    if is_outdated(service):
        return Assessment(Outcome.OPEN, "NotObserved", "The operator has not reconciled the latest change yet.")
    found = {condition.type: condition for condition in conditions_of(service)}
    condition = found.get(wanted)
    if condition is not None and condition.status == ConditionStatus.TRUE and _is_of_now(condition, service):
        return Assessment(Outcome.MET, condition.reason, condition.message)
    return _unmet(service, found, condition)


def _is_of_now(condition: Condition, service: Json) -> bool:
    """Where evaluating an edit failed, the conditions that were not evaluated stay those of the generation before."""
    return condition.observed_generation >= int(service["metadata"].get("generation", 0))


def _unmet(service: Json, found: Mapping[str, Condition], condition: Condition | None) -> Assessment:
    stalled, ready = found.get(ConditionType.STALLED), found.get(ConditionType.READY)
    if stalled is not None and stalled.status == ConditionStatus.TRUE:
        return _impossible(service, stalled)
    if ready is not None and ready.reason == Reason.PAUSED:
        return _impossible(service, ready)
    if condition is not None and condition.reason in (Reason.SCALED_TO_ZERO, Reason.IDLE):
        return _impossible(service, condition)
    shown = found.get(ConditionType.RECONCILING) or ready or condition
    if shown is None:
        return Assessment(Outcome.OPEN, "NotObserved", "The operator has not written its conditions yet.")
    progress = (service.get("status") or {}).get("progress") or {}
    percent, left = progress.get("percent"), progress.get("etaSeconds")
    phase = str(progress.get("phase") or "")
    return Assessment(Outcome.OPEN, shown.reason, shown.message, phase=phase, percent=percent, left=left)


def _impossible(service: Json, why: Condition) -> Assessment:
    """With the remedy of the failure itself, where one is recorded; else that of the reason."""
    failure = (service.get("status") or {}).get("failure") or {}
    remedy = str(failure.get("remedy") or "") if failure.get("reason") == why.reason else ""
    if not remedy and why.reason in set(Reason):
        remedy = Reason(why.reason).remedy
    return Assessment(Outcome.IMPOSSIBLE, why.reason, why.message, "" if remedy in why.message else remedy)


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
