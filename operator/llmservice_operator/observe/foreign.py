"""What others added to our children, read from `metadata.managedFields`.

Apply puts back what others changed, but it never removes what others added: no one asks for that field any more than
before. So additions are found by their owners and removed by a JSON patch. Only `spec` counts: the status is the
controllers', and metadata that others add (`kubectl rollout restart`'s annotation on the pod template, a label for a
cost report) stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]

MANAGER = "llmservice-operator"
_FREE = (("f:template", "f:metadata"),)
"""Paths below spec that belong to everybody."""


def foreign_paths(managed_fields: Iterable[Json]) -> frozenset[str]:
    """Paths below spec that others own and we do not."""
    ours, theirs = _split(managed_fields)
    return frozenset("/".join(path) for other in theirs for path in _only_theirs(other, ours, ()))


def removal_patch(obj: Json) -> list[dict[str, Any]]:
    """The JSON patch that takes others' additions out of this live object; empty when there are none."""
    ours, theirs = _split(obj["metadata"].get("managedFields") or ())
    pointers = {
        pointer
        for other in theirs
        for path in _only_theirs(other, ours, ())
        if (pointer := _pointer(obj["spec"], path)) is not None
    }
    if not pointers:
        return []
    # Later list items first: removing one shifts those behind it.
    ordered = sorted(pointers, reverse=True)
    version = {"op": "test", "path": "/metadata/resourceVersion", "value": obj["metadata"]["resourceVersion"]}
    return [version] + [{"op": "remove", "path": "/spec" + _join(pointer)} for pointer in ordered]


def _split(managed_fields: Iterable[Json]) -> tuple[Json, list[Json]]:
    """Our field set of spec, and that of each other manager that did not only write the status."""
    ours: Json = {}
    theirs = []
    for entry in managed_fields:
        if entry.get("subresource") == "status":
            continue
        spec = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        if entry.get("manager") != MANAGER:
            theirs.append(spec)
        elif entry.get("operation") == "Apply":
            ours = spec
    return ours, theirs


def _only_theirs(theirs: Json, ours: Json, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, child in theirs.items():
        path = (*at, key)
        if key == "." or path in _FREE:
            continue
        mine = ours.get(key)
        if mine is None:
            yield path
        elif child:
            yield from _only_theirs(child, mine, path)


_Pointer = tuple[tuple[int, str], ...]
"""Tokens as (list index or -1, key), so that sorting puts a later list item after an earlier one."""


def _pointer(live: Any, path: tuple[str, ...]) -> _Pointer | None:
    tokens: list[tuple[int, str]] = []
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f" and isinstance(live, Mapping) and rest in live:
            live = live[rest]
            tokens.append((-1, rest))
            continue
        index = _index(live, kind, rest) if isinstance(live, list) else None
        if index is None:
            return None
        live = live[index]
        tokens.append((index, ""))
    return tuple(tokens)


def _index(items: list[Any], kind: str, rest: str) -> int | None:
    if kind == "i":
        return int(rest) if int(rest) < len(items) else None
    wanted = json.loads(rest)
    for index, item in enumerate(items):
        if kind == "v" and item == wanted:
            return index
        if kind == "k" and all(item.get(key) == value for key, value in wanted.items()):
            return index
    return None


def _join(pointer: _Pointer) -> str:
    tokens = (str(index) if index >= 0 else key.replace("~", "~0").replace("/", "~1") for index, key in pointer)
    return "".join("/" + token for token in tokens)
