"""Arguments, the command that they name, and one message for what goes wrong."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .bench import command as bench
from .errors import CliError, ExitCode
from .status import command as status

EPILOG = """\
exit codes: 0 done, 1 failed (the message says what to do), 2 wrong arguments,
            3 bench: some requests were not answered, 130 bench: interrupted, with partial results
"""


def run(argv: Sequence[str] | None = None) -> int:
    """One command; what goes wrong is one message on standard error."""
    options = make_parser().parse_args(argv)
    try:
        code: ExitCode = asyncio.run(options.run(options))
    except CliError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    return code


def make_parser() -> argparse.ArgumentParser:
    """Every command registers itself."""
    as_plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    parser = argparse.ArgumentParser(
        prog="kubectl llmservice" if as_plugin else "llmservice",
        description="Look at LLMServices, and measure them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    status.add_to(commands)
    bench.add_to(commands)
    return parser
