"""`llmservice completion`: the script of a shell."""

from __future__ import annotations

from llmservice_cli.completion import Options
from llmservice_cli.errors import ExitCode
from llmservice_cli.shell_completion import answer


def run(options: Options) -> ExitCode:
    """Print it."""
    return answer(f"source_{options.shell}")
