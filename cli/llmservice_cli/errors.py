"""Exit codes, and the errors that commands end with."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable
from contextlib import suppress
from enum import IntEnum
from json import JSONDecodeError
from pathlib import Path
from typing import Self

from llmservice_api.errors import Problem

STDIN = "-"
_STANDARD_INPUT = "standard input"
MOST_CHARACTERS = 16 * 2**20
"""Of a file: the API server takes objects of 1.5 MiB."""


class ExitCode(IntEnum):
    """What scripts read; `llmservice --help` lists them."""

    DONE = 0
    FAILED = 1  # nothing came of it; the message says why
    DOES_NOT_FIT = 1  # plan: the answer is no
    STALLED = 1  # render: the operator would start nothing until the spec is changed
    DIFFERS = 1  # diff: the operator would change something, or hold the edit
    USAGE = 2  # a line that cannot be read
    BAD_INPUT = 2  # plan, init, render, diff: a value, a file or a manifest cannot be used; a line for each says why
    NOT_ASKED = 2  # wait, diff, plan, doctor: no usable kubeconfig, no answer from the cluster, or a right is missing
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
    """Arguments that are right one by one, and that do not go together."""

    exit_code = ExitCode.USAGE


class BadInput(CliError):
    """Every value that cannot be used, so that all can be corrected at once; a line each.

    The `field` of a Problem is the option, the field or the key that holds the value.
    """

    exit_code = ExitCode.BAD_INPUT

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)), "")

    @classmethod
    def of(cls, field: str, message: str, remedy: str) -> Self:
        return cls([Problem(field, message, remedy)])

    def __str__(self) -> str:
        return "\nerror: ".join(map(str, self.problems))


class Refused(ValueError):
    """A value that stands for nothing: why, and what to write."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message} {remedy}")
        self.message = message
        self.remedy = remedy


def quoted(raw: object) -> str:
    """A value as it was written, cut to what a line bears."""
    whole = repr(raw)
    return whole if len(whole) <= 60 else f"{whole[:57]}..."


def read_text(place: str, field: str, remedy: str, errors: str = "strict", most: int = MOST_CHARACTERS) -> str:
    """The text of a file (`-`: stdin); BadInput about `field` where it cannot be read, or is too long."""
    shown = _STANDARD_INPUT if place == STDIN else place
    try:
        if place == STDIN:
            text = sys.stdin.read(most + 1)
        else:
            with Path(place).open(encoding="utf-8-sig", errors=errors) as file:
                text = file.read(most + 1)
    except OSError as error:
        raise unreadable(error, field, remedy, shown) from None
    except UnicodeDecodeError:
        raise BadInput.of(field, f"{shown} cannot be read: it is not UTF-8 text.", remedy) from None
    if len(text) > most:
        raise BadInput.of(field, f"{shown} has more than {most:,} characters.", remedy)
    return text


def is_folder(place: str) -> bool:
    """False also for what cannot be looked at, such as a name that is too long: reading it says why."""
    with suppress(OSError):
        return Path(place).is_dir()
    return False


def is_file(place: str) -> bool:
    """As `is_folder`."""
    with suppress(OSError):
        return Path(place).is_file()
    return False


def unreadable(error: OSError, field: str, remedy: str, shown: str = _STANDARD_INPUT) -> BadInput:
    """What is shown as a name cannot be read."""
    why = "it is closed" if error.errno == errno.EBADF else error.strerror or error
    return BadInput.of(field, f"{shown} cannot be read: {why}.", remedy)


def syntax(error: Exception) -> str:
    """What a parser of JSON says, in one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, ValueError) and not isinstance(error, JSONDecodeError):  # Python's, of one value
        return "a number in it cannot be read"
    return " ".join(str(error).split())


def complain(text: str) -> None:
    """An error on standard error; it may quote what others wrote."""
    say(f"error: {text}")


def say(text: str) -> None:
    """On standard error at once, without what a terminal would obey."""
    from llmservice_runtime.bounded_json import clean

    print(clean(text), file=sys.stderr, flush=True)


def print_problems(problems: Iterable[Problem], notes: Iterable[str] = ()) -> None:
    """On standard error, a line each."""
    for note in notes:
        say(f"note: {note}")
    for problem in problems:
        complain(str(problem))
