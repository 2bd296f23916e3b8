"""Exit codes, and the errors that commands end with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """What scripts read; `llmservice --help` lists them."""

    DONE = 0
    FAILED = 1  # nothing came of it; the message says why
    DOES_NOT_FIT = 1  # plan: the answer is no
    STALLED = 1  # render: the operator would start nothing until the spec is changed
    DIFFERS = 1  # diff: the operator would change something
    USAGE = 2  # argparse's own
    BAD_INPUT = 2  # plan, render, diff: a value, a file or a manifest cannot be used; a line for each says why
    NOT_ASKED = 2  # wait, diff: no usable kubeconfig, no answer from the cluster, or a right is missing
    UNKNOWN = 3  # plan: something is missing, and named; wait: the time is over and neither yes nor no
    REQUESTS_FAILED = 3  # bench, probe: there is a result, and requests in it that were not answered (whole)
    INTERRUPTED = 130  # bench, probe: there is a result of what was measured until Ctrl-C


class CliError(Exception):
    """One sentence on what is wrong and one on what to do about it."""

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  what to do: {self.remedy}"


class WrongUsage(CliError):
    """Arguments that argparse takes one by one, and that do not go together."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class Wrong:
    """A value that cannot be used: the option, field or key that holds it, why, and what to write instead."""

    field: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message} {self.remedy}"


class BadInput(CliError):
    """Every value that is wrong, so that all can be corrected at once; a line each."""

    exit_code = ExitCode.BAD_INPUT

    def __init__(self, wrongs: Iterable[Wrong]) -> None:
        self.wrongs = tuple(wrongs)
        super().__init__("; ".join(map(str, self.wrongs)), "")

    @classmethod
    def of(cls, field: str, message: str, remedy: str) -> Self:
        """One thing that is wrong."""
        return cls([Wrong(field, message, remedy)])

    def __str__(self) -> str:
        return "\nerror: ".join(map(str, self.wrongs))
