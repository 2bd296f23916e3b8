"""The known versions of vLLM and their facts, from `versions/MAJOR.MINOR.json`.

`python -m llmservice_vllm.extract` writes these files. The oldest one is complete; each later one has additions and
changes from the version before, and names removed from it under `gone`. A flag is named by its first spelling; an entry
without `values` takes one, without `kind` a text. Other sections are lists of words.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from llmservice_vllm.flags import Flag, FlagTable

FOLDER = Path(__file__).with_name("versions")
DEFAULT = "0.32"
"""Version of services that name none. It changes once a server of a newer one answered through the supervisor."""


class UnknownVersion(LookupError):
    """This version of vLLM is unknown."""


def known_versions() -> tuple[str, ...]:
    """MAJOR.MINOR of each, newest first."""
    return _files()


@functools.cache
def _files() -> tuple[str, ...]:
    return tuple(sorted((path.stem for path in FOLDER.glob("*.json")), key=order, reverse=True))


def default_version() -> str:
    """MAJOR.MINOR.PATCH of the version for defaults, examples and rules without a version."""
    return stated_version(DEFAULT)


def stated_version(known: str) -> str:
    """MAJOR.MINOR.PATCH of the version from which a series' file was read."""
    return str(_document(known)["version"])


def series(version: str) -> str | None:
    """MAJOR.MINOR of a version such as 0.32.0, v0.32.1 or 0.32.0+cpu; None for other text."""
    match = re.match(r"v?(\d+\.\d+)(?:$|[.+-])", version)
    return match[1] if match else None


def order(version: str) -> tuple[int, ...]:
    """MAJOR.MINOR as numbers, for comparisons."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def flag_table(version: str) -> FlagTable:
    """The flags of a version's series; UnknownVersion without one."""
    wanted = series(version)
    if wanted is None or wanted not in known_versions():
        raise UnknownVersion(f"no flag table for vLLM {version}; known: {', '.join(known_versions())}")
    return _flags(wanted)


def known_or_default(version: str | None) -> str:
    """MAJOR.MINOR of a version; of the default one without a version, or for an unknown one."""
    found = series(version or "")
    return found if found in known_versions() else DEFAULT


def flag_table_or_default(version: str | None) -> FlagTable:
    return _flags(known_or_default(version))


@functools.cache
def _flags(wanted: str) -> FlagTable:
    entries = section(wanted, "flags")
    return FlagTable(stated_version(wanted), tuple(_flag(name, entries[name]) for name in sorted(entries)))


def words(version: str, name: str) -> frozenset[str]:
    """A list of words of a version's series, such as `speculativeMethods`; UnknownVersion without one."""
    wanted = series(version)
    if wanted is None or wanted not in known_versions():
        raise UnknownVersion(f"nothing is known of vLLM {version}; known: {', '.join(known_versions())}")
    return _words(wanted, name)


def words_of_all(name: str) -> frozenset[str]:
    """A word list over all known versions."""
    return frozenset().union(*(_words(known, name) for known in known_versions()))


@functools.cache
def _words(wanted: str, name: str) -> frozenset[str]:
    return frozenset(section(wanted, name))


def section(wanted: str, name: str) -> dict[str, Any]:
    """One section of a version, with everything from earlier files."""
    entries: dict[str, Any] = {}
    for known in reversed(_files()):
        document = _document(known)
        gone = document.get("gone", {}).get(name, ())
        more = document.get(name, {})
        entries = {one: entry for one, entry in entries.items() if one not in gone}
        entries |= more if isinstance(more, dict) else dict.fromkeys(more)
        if known == wanted:
            break
    return entries


def _flag(name: str, entry: dict[str, Any]) -> Flag:
    values, negated = entry.get("values", 1), tuple(entry.get("negated", ()))
    kind = "none" if values == 0 else entry.get("kind", "text")
    return Flag((name, *entry.get("also", ()), *negated), negated, values, kind, tuple(entry.get("choices", ())))


@functools.cache
def _document(known: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / f"{known}.json").read_bytes())
    return document
