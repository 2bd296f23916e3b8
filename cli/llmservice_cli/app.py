"""Arguments, the command that they name, and one message for what goes wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from .errors import CliError, ExitCode

EPILOG = """\
exit codes:
  0    done; plan: it fits; wait: the condition is met
  1    failed, and the message says what to do; plan: it does not fit; wait: it cannot be met
  2    wrong arguments or input
  3    plan: not known; wait: not met within --timeout; bench, probe: some requests were not answered
  130  interrupted; bench and probe print partial results
"""
COMMANDS = ("plan", "status", "wait", "history", "rollback", "update", "bench", "probe")


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


def make_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Every command registers itself. Where `words` name one, the others, and what they import, are left alone."""
    as_plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    parser = argparse.ArgumentParser(
        prog="kubectl llmservice" if as_plugin else "llmservice",
        description="Plan LLMServices, look at them, measure them, and change what they run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    named = [name for name in COMMANDS if words[:1] == [name]]
    for name in named or COMMANDS:
        import_module(f"llmservice_cli.{name}.command").add_to(commands)
    return parser
