"""`llmservice wait`: ends as soon as the answer is known, and not only when it is yes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

from llmservice_operator.api.conditions import ConditionType

from llmservice_cli.cluster import Connection, add_scope, connect
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.numbers import seconds_or_none
from llmservice_cli.text import duration

from .assessment import AWAITED, Assessment, Outcome, assess
from .changes import changes

DESCRIPTION = "Wait for a condition of a service, and end at once where it cannot become True."
EPILOG = """\
examples:
  llmservice wait chat                              until it is Ready, for 30 minutes at most
  llmservice wait chat --for Available -n team-a    until one replica answers
  llmservice wait chat --timeout 0                  what is known now

exit codes:
  0    the condition is True for the current generation
  1    it cannot become True: Stalled (the message says why, and what to do), paused, scaled to zero, or deleted
  2    wrong arguments, or the cluster could not be asked: kubeconfig, address, rights
  3    neither within --timeout
  130  interrupted

A service that does not exist yet is waited for. Progress goes to standard error.
rights: list and watch on llmservices
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_scope(parser)
    parser.add_argument("name", help="the LLMService")
    parser.add_argument(
        "--for",
        dest="condition",
        choices=[str(each) for each in AWAITED],
        default=str(ConditionType.READY),
        help="default: Ready",
    )
    parser.add_argument(
        "--timeout", type=seconds_or_none, default=1800.0, help="such as 90s, 5m, 2h; 0: look once (default: 30m)"
    )


async def run(options: argparse.Namespace) -> ExitCode:
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


async def _until_known(connection: Connection, options: argparse.Namespace) -> Assessment | None:
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
