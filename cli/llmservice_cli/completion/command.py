"""`llmservice completion`: typer's own script, by the variable with which that script asks."""

from __future__ import annotations

import os

from llmservice_cli.app import COMPLETE, parse
from llmservice_cli.errors import ExitCode

from .arguments import Options


def run(options: Options) -> ExitCode:
    """Print it."""
    os.environ[COMPLETE] = f"source_{options.shell}"
    try:
        parse([])
    except SystemExit as ended:
        return ExitCode(int(ended.code or 0))
    finally:
        del os.environ[COMPLETE]
    return ExitCode.FAILED
