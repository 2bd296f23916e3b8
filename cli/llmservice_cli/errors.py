"""What a command that cannot do what it was asked ends with."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What scripts read; `llmservice --help` lists them."""

    DONE = 0
    FAILED = 1  # nothing came of it; the message says why
    USAGE = 2  # argparse's own
    REQUESTS_FAILED = 3  # bench: there is a result, and requests in it that were not answered
    INTERRUPTED = 130  # bench: there is a result of what was measured until Ctrl-C


class CliError(Exception):
    """One sentence on what is wrong and one on what to do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  what to do: {self.remedy}"
