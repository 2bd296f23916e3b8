"""Arguments, the command that they name, and one message for what goes wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from . import diff, render
from .errors import CliError, ExitCode

EPILOG = """\
exit codes:
  0    done; plan: it fits; diff: no difference; wait: the condition is met
  1    failed, and the message says what to do; plan: it does not fit; render: it would not start; diff: a difference;
       wait: it cannot be met
  2    wrong arguments or input; diff, wait: the cluster could not be asked
  3    plan: not known; wait: not met within --timeout; bench, probe: some requests were not answered
  130  interrupted; bench and probe print partial results
"""
COMMANDS = {
    "plan": "does it fit, before anything runs: memory, longest request, concurrency, what would help",
    "render": render.SUMMARY,
    "diff": diff.SUMMARY,
    "status": "how a service is: conditions, remedies, start, pods, live figures",
    "wait": "until a service is Ready, or cannot become it",
    "history": "the recorded revisions of a service, and what changed with each",
    "rollback": "return a service to a recorded revision, or undo that",
    "update": "roll out what waits for a service's next rollout",
    "bench": "one load by static, dynamic and continuous batching, side by side",
    "probe": "constant load, and every request that was lost, through rollouts and whatever else happens",
}
"""Each with its line in `llmservice --help`. Its module has DESCRIPTION, EPILOG, `add_arguments` and `run`."""


def run(argv: Sequence[str] | None = None) -> int:
    """One command; what goes wrong is one message on standard error."""
    words = sys.argv[1:] if argv is None else argv
    options = make_parser(words).parse_args(words)
    try:
        answer = options.run(options)
        if isinstance(answer, ExitCode):
            return answer
        import asyncio  # `plan` answers a thousand times in a build and waits for nobody

        code: ExitCode = asyncio.run(answer)
    except CliError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    return code


def make_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Of all commands, or with the arguments of the one alone that `words` begin with: each imports what it needs."""
    as_plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    parser = argparse.ArgumentParser(
        prog="kubectl llmservice" if as_plugin else "llmservice",
        description="Plan LLMServices, look at them, measure them, and change what they run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, line in COMMANDS.items():
        command = commands.add_parser(name, help=line, formatter_class=argparse.RawDescriptionHelpFormatter)
        if words is None or name in words[:1]:
            module = import_module(f"llmservice_cli.{name}.command")
            command.description, command.epilog = module.DESCRIPTION, module.EPILOG
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
