"""Flags that fields stand for, against the flags of an older vLLM: what it does not have is said before any pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmservice_runtime.flags.render import KEYED, TYPED
from llmservice_runtime.flags.table import Flag, flag_table, known_versions


@dataclass(frozen=True)
class Missing:
    """A flag, or one of its values, that this version does not have, and the versions that do, newest first."""

    field: str
    what: str
    versions: tuple[str, ...]


def missing(arguments: Sequence[str], version: str) -> tuple[Missing, ...]:
    """Whatever a rendered command line says for fields and this version of vLLM would refuse.

    Other flags in it are passed over: the operator's own are in every table, extraArgs have checks of their own.
    UnknownVersion without a table.
    """
    return tuple(_missing(arguments, version))


def _missing(arguments: Sequence[str], version: str) -> Iterator[Missing]:
    table = flag_table(version).by_spelling
    for index, token in enumerate(arguments):
        field = _field(token)
        if field is None:
            continue
        value = arguments[index + 1] if index + 1 < len(arguments) else ""
        flag = table.get(token)
        if flag is None:
            yield Missing(field, token, _having(token, None))
        elif not _takes(flag, value):
            yield Missing(field, f"{token} {value}", _having(token, value))


def _takes(flag: Flag, value: str) -> bool:
    return not flag.choices or flag.values != 1 or value in flag.choices


def _having(spelling: str, value: str | None) -> tuple[str, ...]:
    flags = {version: flag_table(version).by_spelling.get(spelling) for version in known_versions()}
    return tuple(v for v, flag in flags.items() if flag is not None and (value is None or _takes(flag, value)))


def _field(token: str) -> str | None:
    """Where users say what a flag says; --no-X is said where --X is. None for what no field stands for."""
    flag = f"--{token.removeprefix('--no-')}" if token.startswith("--no-") else token
    if flag in KEYED:
        return " or ".join(KEYED[flag].values())
    return TYPED.get(flag)
