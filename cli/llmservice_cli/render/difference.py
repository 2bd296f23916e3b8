"""Unified diffs of what the operator applies against live objects, as far as an apply would change them.

Of a live object three kinds of fields are shown: those that the manifest names, those that the operator applied before
and no longer asks for, and those that others added and the operator takes out. What is neither, such as a default of
the API server, stays and is not shown.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from llmservice_api.constants import APPLIED_HASH_ANNOTATION, MANAGER
from llmservice_operator.facts.drift import ATOMIC_MAPS, MERGE_KEYS, QUANTITIES, UNSET, merge_key
from llmservice_planner.quantity import same_amount

from llmservice_cli.manifests import Json
from llmservice_cli.masking import masked, redactor_of

_IDENTITY = ("apiVersion", "kind")
_METADATA = ("name", "namespace", "labels", "annotations", "ownerReferences")
_FREE = ("f:template", "f:metadata")
"""Below spec, what others may add to."""
_CONTEXT = 3
_NAMED = 4


def restricted(manifest: Json, live: Json) -> dict[str, Any]:
    """What of the live object an apply of the manifest may change, in the manifest's own words where both agree."""
    owned = _owned(live.get("metadata", {}).get("managedFields") or ())
    found: dict[str, Any] = {key: manifest[key] for key in _IDENTITY}
    for key in (key for key in manifest if key not in _IDENTITY):
        value = live.get(key)
        if key == "metadata" and isinstance(value, Mapping):
            value = {name: value[name] for name in _METADATA if name in value}
        found[key] = _of_value(manifest[key], value, owned.get(f"f:{key}") or {}, key)
    return found


def is_rewritten(manifest: Json, live: Json) -> bool:
    """Whether nobody but a mutating webhook made the live object differ from the manifest, which was applied to it.

    Whoever writes a field takes its ownership from the operator, except for webhooks: what they make of an apply is
    recorded as the operator's.
    """
    metadata = live.get("metadata", {})
    hashes = [(each.get("annotations") or {}).get(APPLIED_HASH_ANNOTATION) for each in (manifest["metadata"], metadata)]
    if hashes[0] is None or hashes[0] != hashes[1]:
        return False
    applied = [each for each in metadata.get("managedFields") or () if each.get("operation") == "Apply"]
    owned = _owned(each for each in applied if each.get("manager") == MANAGER)
    before = restricted(manifest, live)
    return all(_is_owned(manifest[key], before.get(key), owned.get(f"f:{key}"), key) for key in manifest)


def _is_owned(wanted: Any, live: Any, owned: Json | None, name: str) -> bool:
    """Whether every difference is in a field that is owned."""
    if wanted == live or (live in UNSET and wanted in UNSET):
        return True
    if not owned:  # a leaf, or nothing
        return owned is not None
    keys = MERGE_KEYS.get(name)
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return all(_is_owned(wanted.get(key), live.get(key), owned.get(f"f:{key}"), key) for key in {**wanted, **live})
    if keys and isinstance(wanted, list) and isinstance(live, list):
        marks = {_owner_key(mark, keys): mine for mark, mine in owned.items() if mark.startswith("k:")}
        old, new = ({merge_key(item, keys): item for item in side} for side in (live, wanted))
        return all(_is_owned(new.get(key), old.get(key), marks.get(key), "") for key in {**old, **new})
    return False


def fields(before: Json, after: Json) -> str:
    """Which fields differ, the first few by their paths; empty: none, but for the hash of what is applied."""
    found = [path for path in paths(before, after) if not path.endswith(APPLIED_HASH_ANNOTATION)]
    more = len(found) - _NAMED
    return ", ".join(found[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def paths(before: Any, after: Any, at: str = "", name: str = "") -> Iterator[str]:
    """Where two values differ; items of merged lists are named by their keys."""
    keys = MERGE_KEYS.get(name)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from paths(before.get(key), after.get(key), f"{at}.{key}".lstrip("."), key)
    elif keys and isinstance(before, list) and isinstance(after, list):
        old, new = ({merge_key(item, keys): item for item in side} for side in (before, after))
        for item in dict.fromkeys([*old, *new]):
            yield from paths(old.get(item), new.get(item), f"{at}[{'/'.join(item)}]")
    elif before != after:
        yield at


def unified(before: Json | None, after: Json | None, what: str) -> str:
    """The diff of two objects, without their secrets; empty where they are equal. None: there is no such object."""
    redactor = redactor_of(before, after)
    old, new = (_text(masked(side, redactor)) for side in (before, after))
    from_name, to_name = (
        "/dev/null" if side is None else f"{name}/{what}" for name, side in (("live", before), ("decided", after))
    )
    if old == new:
        return "" if before == after else f"--- {from_name}\n+++ {to_name}\n only values that are not shown differ\n"
    return "".join(difflib.unified_diff(old, new, from_name, to_name, n=_CONTEXT))


def _text(value: Json | None) -> list[str]:
    """Without the hash of what is applied: it says nothing that the rest does not."""
    if value is None:
        return []
    metadata = dict(value.get("metadata") or {})
    annotations = {
        key: text for key, text in (metadata.pop("annotations", None) or {}).items() if key != APPLIED_HASH_ANNOTATION
    }
    metadata |= {"annotations": annotations} if annotations else {}
    text: str = yaml.safe_dump({**value, "metadata": metadata}, width=2**16, allow_unicode=True)
    return text.splitlines(keepends=True)


def _of_value(wanted: Any, live: Any, owned: Json, name: str) -> Any:
    if wanted == live or (live in UNSET and wanted in UNSET):
        return wanted
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return _of_map(wanted, live, owned, name)
    keys = MERGE_KEYS.get(name)
    if keys and isinstance(wanted, list) and isinstance(live, list):
        return _of_merged(wanted, live, owned, keys)
    if isinstance(wanted, list) and isinstance(live, list) and len(wanted) == len(live):
        return [_of_value(one, other, {}, "") for one, other in zip(wanted, live, strict=True)]
    return live


def _of_map(wanted: Json, live: Json, owned: Json, name: str) -> dict[str, Any]:
    found = {}
    for key, value in live.items():
        mine = owned.get(f"f:{key}")
        if key in wanted:
            is_same = (name in QUANTITIES or key in QUANTITIES) and same_amount(wanted[key], value)
            found[key] = wanted[key] if is_same else _of_value(wanted[key], value, mine or {}, key)
        elif mine is not None or name in ATOMIC_MAPS:
            found[key] = _part(value, mine or {})
    return found | {key: value for key, value in wanted.items() if key not in live and value in UNSET}


def _of_merged(wanted: list[Any], live: list[Any], owned: Json, keys: tuple[str, ...]) -> list[Any]:
    """In the manifest's order, then what is taken out."""
    if not all(isinstance(item, Mapping) for item in (*wanted, *live)):
        return live
    by_key = {merge_key(item, keys): item for item in live}
    fields = {_owner_key(mark, keys): mine for mark, mine in owned.items() if mark.startswith("k:")}
    asked = [merge_key(item, keys) for item in wanted]
    pairs = zip(wanted, asked, strict=True)
    found = [_of_value(item, by_key[key], fields.get(key) or {}, "") for item, key in pairs if key in by_key]
    return found + [_part(item, fields[key]) for key, item in by_key.items() if key not in asked and key in fields]


def _part(live: Any, owned: Json) -> Any:
    """What of a live value somebody owns; all of it where they own it as a whole."""
    marks = {mark.removeprefix("f:") for mark in owned if mark.startswith("f:")}
    if isinstance(live, Mapping) and marks:
        return {key: _part(value, owned.get(f"f:{key}") or {}) for key, value in live.items() if key in marks}
    return live


def _owner_key(mark: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    named = json.loads(mark.removeprefix("k:"))
    return tuple(str(named.get(key)) for key in keys)


def _owned(entries: Any) -> dict[str, Any]:
    """Fields of the operator's own applies, and below spec those that others added, as one tree of field paths."""
    tree: dict[str, Any] = {}
    for entry in entries:
        fields = entry.get("fieldsV1") or {}
        if entry.get("subresource") == "status":
            continue
        if entry.get("manager") != MANAGER:
            fields = {"f:spec": _without(fields.get("f:spec") or {}, _FREE)}
        _merge(tree, fields)
    return tree


def _without(fields: Json, path: tuple[str, ...]) -> dict[str, Any]:
    first, *rest = path
    return {
        key: _without(value, tuple(rest)) if key == first else value
        for key, value in fields.items()
        if key != first or rest
    }


def _merge(tree: dict[str, Any], fields: Json) -> None:
    for key, value in fields.items():
        _merge(tree.setdefault(key, {}), value)
