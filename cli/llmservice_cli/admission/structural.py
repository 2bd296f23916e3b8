"""A value held against a structural schema: types, enums, bounds, patterns, unknown fields, lists without duplicates.

As the API server does with strict field validation: nulls are dropped, defaults are filled in, and every problem is
named by its path.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Any

import re2
from llmservice_api import crd
from llmservice_api.errors import Problem
from llmservice_api.flags import TYPED

from llmservice_cli.options import LABEL, is_namespace

# What Kubernetes asks of every object's metadata: names, labels, annotations.

_FIELDS = frozenset(
    (
        *("annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers"),
        *("generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences"),
        *("resourceVersion", "selfLink", "uid"),
    )
)
_SUBDOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = re.compile(rf"({LABEL}(\.{LABEL})*/)?{_WORD}")
_LABEL_VALUE = re.compile(rf"({_WORD})?")
_LETTERS = "Write lowercase letters, digits and -, with a letter or digit at both ends."
_MOST_NAME = 253
_MOST_ANNOTATIONS = 256 * 1024


def problems(metadata: Any) -> Iterator[Problem]:
    """Everything that is wrong with an object's metadata."""
    if not isinstance(metadata, Mapping):
        yield Problem("metadata.name", "is required.", "Give the LLMService a name.")
        return
    for name in metadata:
        if name not in _FIELDS:
            yield Problem(f"metadata.{name}", "is an unknown field.", remedy(str(name), dict.fromkeys(_FIELDS)))
    name = metadata.get("name")
    if name is None:
        yield Problem("metadata.name", "is required.", "Give the LLMService a name.")
    elif not _is(_SUBDOMAIN, name, _MOST_NAME):
        yield Problem("metadata.name", f"{name!r} is not a name.", _LETTERS)
    namespace = metadata.get("namespace")
    if namespace is not None and not is_namespace(namespace):
        yield Problem("metadata.namespace", f"{namespace!r} is not a namespace's name.", _LETTERS)
    for field, check in (("labels", _labels), ("annotations", _annotations)):
        given = metadata.get(field)
        if isinstance(given, Mapping):
            yield from check(given)
        elif given is not None:
            yield Problem(f"metadata.{field}", "must be an object.", "Write names and texts.")


def _labels(labels: Mapping[Any, Any]) -> Iterator[Problem]:
    for key, value in labels.items():
        if not _is(_LABEL_KEY, key, _MOST_NAME + 64) or not _is(_LABEL_VALUE, value, 63):
            yield Problem(
                "metadata.labels",
                f"{key}: {value!r} is not a label.",
                "Write NAME or DOMAIN/NAME and a text of at most 63 letters, digits, - _ and .",
            )


def _annotations(annotations: Mapping[Any, Any]) -> Iterator[Problem]:
    for key, value in annotations.items():
        if not _is(_LABEL_KEY, key.lower(), _MOST_NAME + 64) or not isinstance(value, str):
            yield Problem("metadata.annotations", f"{key}: {value!r} is not an annotation.", "Write text, in quotes.")
    if sum(len(str(part).encode()) for pair in annotations.items() for part in pair) > _MOST_ANNOTATIONS:
        yield Problem("metadata.annotations", "are more than 256 KiB.", "Shorten them.")


def _is(form: re.Pattern[str], value: Any, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most and form.fullmatch(value) is not None


Schema = Mapping[str, Any]

MOST_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and whether rules across fields are not evaluated beside it."""

    problem: Problem
    is_blocking: bool = False


def as_stored(value: Any, schema: Schema) -> Any:
    """The value without nulls where fields may have none, and with the schema's defaults."""
    if isinstance(value, Mapping):
        known: Schema = schema.get("properties") or {}
        beside = schema.get("additionalProperties")
        found = {key: as_stored(one, known.get(key) or beside or {}) for key, one in value.items() if one is not None}
        for key, part in known.items():
            if key not in found and "default" in part:
                found[key] = as_stored(copy.deepcopy(part["default"]), part)
        return found
    if isinstance(value, list):
        return [as_stored(one, schema.get("items") or {}) for one in value]
    return value


def findings(value: Any, schema: Schema, path: str) -> Iterator[Finding]:
    """Everything that the schema does not allow; a value of the wrong type is not read further."""
    if "x-kubernetes-int-or-string" in schema:
        kind = "integer" if _is_integer(value) else "string"
        is_right, expected = _is_integer(value) or isinstance(value, str), "integer or string"
    else:
        kind = expected = schema.get("type", "")
        is_right = kind not in _TYPES or _TYPES[kind](value)
    if not is_right:
        yield _blocking(path, f"must be of type {expected}, not {_shown(value)}.", "Correct the value.")
    elif "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(str(one) for one in schema["enum"])
        yield _blocking(path, f"{_shown(value)} is not supported.", f"Write one of {allowed}.")
    elif kind in _INSIDE:
        yield from _INSIDE[kind](value, schema, path)


def _blocking(path: str, message: str, remedy: str) -> Finding:
    return Finding(Problem(path, message, remedy), is_blocking=True)


def _passing(path: str, message: str, remedy: str) -> Finding:
    return Finding(Problem(path, message, remedy))


def _number(value: Any, schema: Schema, path: str) -> Iterator[Finding]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if abs(value) > MOST_INT64 if isinstance(value, int) else not isfinite(value):
        yield _blocking(path, f"{_shown(value)} is not a 64-bit number.", "Correct the value.")
    elif least is not None and value < least:
        yield _passing(path, f"must be greater than or equal to {least}, not {value}.", "Raise it.")
    elif most is not None and value > most:
        yield _passing(path, f"must be less than or equal to {most}, not {value}.", "Lower it.")


def _string(value: str, schema: Schema, path: str) -> Iterator[Finding]:
    least, most, form = schema.get("minLength", 0), schema.get("maxLength"), schema.get("pattern")
    if len(value) < least:
        yield _passing(path, f"must have at least {least} characters.", "Give a value.")
    elif most is not None and len(value) > most:
        yield _blocking(path, f"may not have more than {most} characters; it has {len(value)}.", "Shorten it.")
    elif form is not None and re2.search(form, value) is None:
        yield _passing(path, f"{_shown(value)} does not match {form}.", "Correct the value.")


def _array(value: Sequence[Any], schema: Schema, path: str) -> Iterator[Finding]:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < least:
        yield _passing(path, f"must have at least {least} items.", "Add one, or remove the field.")
    if most is not None and len(value) > most:
        yield _blocking(path, f"may not have more than {most} items; it has {len(value)}.", "Shorten the list.")
        return
    for index, one in enumerate(value):
        yield from findings(one, schema.get("items") or {}, f"{path}[{index}]")
    yield from _duplicates(value, schema, path)


def _duplicates(value: Sequence[Any], schema: Schema, path: str) -> Iterator[Finding]:
    """Of a list that is a set, or a map by some keys of its items."""
    keys = schema.get("x-kubernetes-list-map-keys", ())
    match schema.get("x-kubernetes-list-type"):
        case "set":
            identities: list[Any] = list(value)
        case "map":
            identities = [[one.get(key) for key in keys] if isinstance(one, Mapping) else None for one in value]
        case _:
            return
    same = ", ".join(keys) or "value"
    for index, one in enumerate(identities):
        if one is not None and one in identities[:index]:
            yield _passing(f"{path}[{index}]", f"is a duplicate: an earlier item has the same {same}.", "Remove one.")


def _object(value: Mapping[str, Any], schema: Schema, path: str) -> Iterator[Finding]:
    known, beside = schema.get("properties"), schema.get("additionalProperties")
    most = schema.get("maxProperties")
    if most is not None and len(value) > most:
        yield _blocking(path, f"may not have more than {most} keys; it has {len(value)}.", "Remove some.")
        return
    for name in schema.get("required", ()):
        if name not in value:
            yield _blocking(_below(path, name), "is required.", "Add it.")
    for name, one in value.items():
        part = (known or {}).get(name, beside)
        if part is not None:
            yield from findings(one, part, _below(path, name))
        elif known is not None:
            yield _passing(_below(path, name), "is an unknown field.", remedy(name, known))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


_TYPES: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        "boolean": lambda value: isinstance(value, bool),
        "integer": _is_integer,
        "number": lambda value: _is_integer(value) or isinstance(value, float),
        "string": lambda value: isinstance(value, str),
        "array": lambda value: isinstance(value, list),
        "object": lambda value: isinstance(value, Mapping),
    }
)
_INSIDE: Mapping[str, Callable[[Any, Schema, str], Iterator[Finding]]] = MappingProxyType(
    {"integer": _number, "number": _number, "string": _string, "array": _array, "object": _object}
)


# What an unknown field was meant to be: another spelling, a field of another section, a flag of vLLM, a near miss.

_CORRECT = "Correct its name, or remove it."
_LONGEST = 80
"""Characters of a name that is compared: comparing takes time by the square of it."""
_FOREIGN = ("podTemplate",)
"""Sections of Kubernetes' own fields, whose names are no hint."""


def remedy(name: str, known: Mapping[str, Any]) -> str:
    """What to do about `name` beside the fields `known`: what it probably means, where that can be said."""
    found = meant(name, known)
    return _CORRECT if found is None else f"Did you mean {found}? {_CORRECT}"


def meant(name: str, known: Mapping[str, Any]) -> str | None:
    """A field of the same object by its name, another one by its path."""
    if len(name) > _LONGEST:
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
    for name, path in _fields(crd.schema()["properties"]["spec"], "spec"):
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
