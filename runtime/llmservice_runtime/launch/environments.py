"""The environments that vLLM's processes were started with, as differences from their parents': one file a process.

They are a record of an earlier start of the same command line, image and device. A next start prepares processes with
these environments; they are used only where vLLM then asks for exactly the same, so a wrong record costs time only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmservice_runtime import atomic_file
from llmservice_runtime.bounded_json import Reader, Refused, read
from llmservice_runtime.fetching.credentials import is_credential

MAX_PROCESSES = 64
"""Children of one process that are recorded; a node has at most 16 GPUs."""
_MAX_VARIABLES = 128
_MAX_TEXT = 4096
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True)
class Change:
    """The difference between two environments."""

    set: Mapping[str, str]
    unset: tuple[str, ...] = ()

    @classmethod
    def between(cls, before: Mapping[str, str], after: Mapping[str, str]) -> Change:
        """What makes `after` of `before`. Credentials are left out: the record is a file."""
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        return cls(
            {name: value for name, value in sorted(changed.items()) if not is_credential(name)},
            tuple(sorted(before.keys() - after.keys())),
        )

    def applied_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment after the change."""
        kept = {name: value for name, value in environment.items() if name not in self.unset}
        return kept | dict(self.set)

    @classmethod
    def from_document(cls, document: object) -> Change:
        """Refused where it is not what `to_document` writes."""
        given = Reader(document, "environment")
        values: dict[str, str] = {}
        for item in given.items("set", _MAX_VARIABLES):
            variable = Reader(item, "set")
            values[_name(variable.word("name"))] = variable.word("value", _MAX_TEXT)
        return cls(values, tuple(map(_name, given.words("unset", _MAX_VARIABLES, _MAX_TEXT))))

    def to_document(self) -> dict[str, Any]:
        """As JSON."""
        return {"set": [{"name": name, "value": self.set[name]} for name in self.set], "unset": list(self.unset)}


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise Refused("set and unset hold names of environment variables")
    return text


def children(folder: Path, parent: str) -> dict[int, Change]:
    """Recorded children of a process by their order; empty without a record. A damaged file is left out."""
    found: dict[int, Change] = {}
    for number in range(MAX_PROCESSES):
        try:
            found[number] = Change.from_document(read(_file(folder, parent, number)))
        except FileNotFoundError:
            break
        except (Refused, OSError):
            continue
    return found


def record(folder: Path, parent: str, number: int, change: Change) -> None:
    """Write the file of a child. OSError where that fails."""
    if number < MAX_PROCESSES:
        atomic_file.write_json(_file(folder, parent, number), change.to_document())


def name_of(parent: str, number: int) -> str:
    """A process by the order in which it and its parents were started: "0-1" is the second child of the first."""
    return f"{parent}-{number}" if parent else str(number)


def _file(folder: Path, parent: str, number: int) -> Path:
    return folder / f"{name_of(parent, number)}.json"
