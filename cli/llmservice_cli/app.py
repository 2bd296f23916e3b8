"""Arguments, the command that they name, and one message for an error.

A command is a folder: `SUMMARY` in its __init__.py is its line in `llmservice --help`, and its command.py has
DESCRIPTION, EPILOG, `add_arguments(parser)` and `run(options)`, which gives an exit code or a coroutine of one.
"""

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
  0    done, or the answer is yes
  1    failed, and the message says what to do; or the answer is no
  2    wrong arguments or input
  3    not known, or not every request was answered
  130  interrupted

llmservice COMMAND --help says more.
"""
COMMANDS = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/command.py")))


def run(argv: Sequence[str] | None = None) -> int:
    """One command; an error is one message on standard error."""
    words = sys.argv[1:] if argv is None else argv
    options = make_parser(words).parse_args(words)
    try:
        answer = options.run(options)
        if isinstance(answer, ExitCode):
            return answer
        import asyncio  # a command that waits for nobody starts sooner without it

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
        description="Check LLMServices before they run, see how they are, measure them, and change what they run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        summary = import_module(f"{__package__}.{name}").SUMMARY
        command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if words is None or name in words[:1]:
            module = import_module(f"{__package__}.{name}.command")
            command.description, command.epilog = module.DESCRIPTION, module.EPILOG
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
