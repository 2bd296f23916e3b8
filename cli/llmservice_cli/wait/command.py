"""`llmservice wait`: ends as soon as the answer is known, and not only when it is yes."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from llmservice_operator.api.conditions import ConditionType

from llmservice_cli.cluster import Connection, connect
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.text import duration

from .arguments import Options
from .assessment import Assessment, Outcome, assess
from .changes import changes


async def run(options: Options) -> ExitCode:
    """Print the last word on standard output, or what stands in the way on standard error."""
    try:
        async with connect(options) as connection:
            found = await _until_known(connection, options)
    except CliError as error:
        # Of the service nothing is known, and 1 would say that it cannot become what was asked for.
        error.exit_code = ExitCode.NOT_ASKED
        raise
    name, condition = options.name, options.condition
    if found is None or found.outcome is Outcome.OPEN:
        within = f"within {duration(options.timeout)}" if options.timeout else "now"
        print(f"error: {name} is not {condition} {within}. Last seen: {found or 'nothing'}", file=sys.stderr)
        if found is not None and found.reason == "NotObserved":
            print("  what to do: see whether the operator runs, and watches this namespace", file=sys.stderr)
        return ExitCode.UNKNOWN
    if found.outcome is Outcome.MET:
        print(f"{name} is {condition}: {found}")
        return ExitCode.DONE
    print(f"error: {name} cannot become {condition}: {found}", file=sys.stderr)
    if found.remedy:
        print(f"  what to do: {found.remedy}", file=sys.stderr)
    return ExitCode.FAILED


async def _until_known(connection: Connection, options: Options) -> Assessment | None:
    """What was seen last: an answer, or what it was like when the time was over."""
    last: Assessment | None = None
    was_there = False
    wanted = ConditionType(options.condition)
    versions = changes(connection.kube, connection.namespace, options.name, warn=_warn)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(options.timeout or None), contextlib.aclosing(versions):
            async for service in versions:
                seen = assess(service, wanted, was_there=was_there)
                was_there = was_there or service is not None
                if seen.outcome is Outcome.OPEN and (last is None or _phase(seen) != _phase(last)):
                    print(f"{options.name}: {seen}", file=sys.stderr)
                last = seen
                if seen.outcome is not Outcome.OPEN or not options.timeout:
                    break
    return last


def _phase(seen: Assessment) -> tuple[str, str]:
    return seen.reason, seen.phase


def _warn(message: str) -> None:
    print(f"warning: {message}; still waiting", file=sys.stderr)
