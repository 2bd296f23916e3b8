"""Commands of pages and of the chart's notes, tried with the programs' own parsers; nothing is changed by it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.patience import PATIENCE

NOBODY = ("--as=reader-of-the-docs", "--as-group=system:authenticated")
"""A user without rights, so that the API server refuses every request that comes after parsing and discovery."""
_REFUSED = re.compile(r"\(Forbidden\)|is forbidden|cannot (?:get|list|watch|create|patch|delete) ")
_FILE_OPTIONS = ("-f", "--filename", "--from-file", "--values", "--env-file")
_HEREDOC = re.compile(r"<<-?\s*'?(?P<end>\w+)'?\s*$")


def statements(block: str) -> Iterator[tuple[str, str]]:
    """(line, what a here-document gives it) of each line of a shell block; continued lines are one, comments none."""
    lines = iter(block.replace("\\\n", " ").splitlines())
    for line in lines:
        if not (bare := line.strip()) or bare.startswith("#"):
            continue
        given: list[str] = []
        if opened := _HEREDOC.search(bare):
            for inner in lines:
                if inner.strip() == opened["end"]:
                    break
                given.append(inner)
        yield bare, "\n".join(given)


def files_of(words: Sequence[str]) -> list[str]:
    """The files that a command of kubectl or helm reads, as it names them."""
    named = []
    for place, word in enumerate(words):
        option, _, value = word.partition("=")
        if option in _FILE_OPTIONS:
            value = value or (words[place + 1] if place + 1 < len(words) else "")
            named.append(value.partition("=")[2] if option == "--from-file" and "=" in value else value)
    return [name for name in named if name not in ("", "-") and "://" not in name]


def kubectl_refuses(
    program: Sequence[str], words: Sequence[str], folder: Path, environment: Mapping[str, str], given: str = ""
) -> str:
    """What kubectl does not understand of a command; empty where only the missing rights of its user end it.

    `folder` has the files that the command reads.
    """
    command = (*program, *NOBODY, *words[1:])
    done = subprocess.run(
        command, cwd=folder, env=environment, input=given, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    said = f"{done.stderr}{done.stdout}".strip()
    return "" if done.returncode == 0 or _REFUSED.search(said) else said
