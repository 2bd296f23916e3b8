"""What an unknown field was meant to be: another spelling, a field of another section, a flag of vLLM, a near miss."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from llmservice_api.crd import schema
from llmservice_api.flags import TYPED

Schema = Mapping[str, Any]

CORRECT = "Correct its name, or remove it."
LONGEST = 80
"""Characters of a name that is compared: comparing takes time by the square of it."""
_FOREIGN = ("podTemplate",)
"""Sections of Kubernetes' own fields, whose names are no hint."""


def remedy(name: str, known: Mapping[str, Any]) -> str:
    """What to do about `name` beside the fields `known`: what it probably means, where that can be said."""
    found = meant(name, known)
    return CORRECT if found is None else f"Did you mean {found}? {CORRECT}"


def meant(name: str, known: Mapping[str, Any]) -> str | None:
    """A field of the same object by its name, another one by its path."""
    if len(name) > LONGEST:
        return None
    plain, beside = _plain(name), {_plain(field): field for field in known}
    if plain in beside:
        return beside[plain]
    if elsewhere := _elsewhere().get(plain) or _flags().get(plain):
        return elsewhere
    near = get_close_matches(plain, beside, n=1, cutoff=0.6)
    return beside[near[0]] if near else None


def _plain(name: str) -> str:
    """`max-model-len`, `max_model_len` and `maxModellen` alike."""
    return re.sub(r"[\s_.-]", "", name).lower()


@lru_cache(maxsize=1)
def _elsewhere() -> Mapping[str, str]:
    """Paths of the spec's fields by their names, of those that only one section has."""
    found: dict[str, set[str]] = {}
    for name, path in _fields(schema()["properties"]["spec"], "spec"):
        found.setdefault(_plain(name), set()).add(path)
    return {name: path for name, (path, *others) in found.items() if not others}


def _fields(part: Schema, path: str) -> Iterator[tuple[str, str]]:
    for name, below in (part.get("properties") or {}).items():
        yield name, f"{path}.{name}"
        if name not in _FOREIGN:
            yield from _fields(below, f"{path}.{name}")


@lru_cache(maxsize=1)
def _flags() -> Mapping[str, str]:
    """Fields by the names of vLLM's flags for them."""
    return {_plain(flag): field for flag, field in TYPED.items()}
