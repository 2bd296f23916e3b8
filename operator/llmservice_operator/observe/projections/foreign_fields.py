"""What others added to our children, read from `metadata.managedFields`.

Apply puts back what others changed, but it never removes what others added: no one asks for that field any more than
before. So additions are found by their owners and removed by a JSON patch. Only `spec` counts: the status is the
controllers', and metadata that others add (`kubectl rollout restart`'s annotation on the pod template, a label for a
cost report) stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from llmservice_operator.api.constants import MANAGER

Json = Mapping[str, Any]

_FREE = (("f:template", "f:metadata"), ("f:volumeName",), ("f:storageClassName",), ("f:volumeAttributesClassName",))
"""Paths below spec that are left alone: metadata is everybody's, and Kubernetes itself sets the others when it binds a
PersistentVolumeClaim, whose spec the API server then lets nobody change back."""


def foreign_paths(managed_fields: Iterable[Json], most: int | None = None) -> frozenset[str]:
    """Paths below spec that others own and we do not, the first `most` of them."""
    ours, theirs = _split(managed_fields)
    return frozenset(_readable(path) for path in islice(chain(*(_only_theirs(t, ours, ()) for t in theirs)), most))


def is_applied(managed_fields: Iterable[Json]) -> bool:
    """Whether our apply is on record. After a reset of the owners nothing else shows what was added."""
    return any((e.get("manager"), e.get("operation")) == (MANAGER, "Apply") for e in managed_fields)


def removal_patch(obj: Json) -> list[dict[str, Any]]:
    """The JSON patch that takes others' additions out of this live object; empty when there are none.

    It first tests that list items still are where they were. The resourceVersion would be the simpler test, but a
    controller that writes the status every other moment would fail it.
    """
    ours, theirs = _split(obj["metadata"].get("managedFields") or ())
    paths = {path for other in theirs for path in _only_theirs(other, ours, ())}
    places = {place.pointer: place for path in paths if (place := _place(obj["spec"], path)) is not None}
    # Later list items first: removing one shifts those behind it.
    ordered = [places[pointer] for pointer in sorted(places, reverse=True)]
    tests = {path: value for place in ordered for path, value in place.tests}
    return [{"op": "test", "path": path, "value": value} for path, value in sorted(tests.items())] + [
        {"op": "remove", "path": _join(place.pointer)} for place in ordered
    ]


def restoring_patch(obj: Json, spec: Json) -> list[dict[str, Any]]:
    """The JSON patch that gives each field of spec that others added to, or took away, the value that we ask for.

    For what may not stand beside ours, such as a budget's minAvailable beside our maxUnavailable: ours is refused while
    theirs is there, and theirs alone may be needed until ours is. The pod template is left to the apply: replacing it
    would restart pods for an annotation.
    """
    ours, theirs = _split(obj["metadata"].get("managedFields") or ())
    added = {path[0].removeprefix("f:") for other in theirs for path in _only_theirs(other, ours, ())}
    live = obj.get("spec") or {}
    names = sorted((added | (spec.keys() - live.keys())) - {"template"})
    return [
        {"op": "add", "path": f"/spec/{name}", "value": spec[name]}
        if name in spec
        else {"op": "remove", "path": f"/spec/{name}"}
        for name in names
        if name in spec or name in live
    ]


def _readable(path: tuple[str, ...]) -> str:
    """`spec.template.spec.containers[server].env[FOO]`, as people write it."""
    text = "spec"
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "k":
            text += f"[{'/'.join(str(value) for value in json.loads(rest).values())}]"
        else:
            text += f".{rest}" if kind == "f" else f"[{rest}]"
    return text


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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a field path leads in a live object, and what must be true for it to lead there still."""

    pointer: _Pointer
    tests: tuple[tuple[str, Any], ...]


def _place(live: Any, path: tuple[str, ...]) -> _Place | None:
    pointer: _Pointer = ()
    tests: list[tuple[str, Any]] = []
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f" and isinstance(live, Mapping) and rest in live:
            live, pointer = live[rest], (*pointer, (-1, rest))
            continue
        index = _index(live, kind, rest) if isinstance(live, list) else None
        if index is None:
            return None
        live, pointer = live[index], (*pointer, (index, ""))
        if kind == "k":
            tests += [(_join((*pointer, (-1, key))), value) for key, value in json.loads(rest).items()]
        else:
            tests.append((_join(pointer), live))
    return _Place(pointer, tuple(tests))


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
    """As a JSON pointer from the object's root."""
    tokens = (str(index) if index >= 0 else key.replace("~", "~0").replace("/", "~1") for index, key in pointer)
    return "/spec" + "".join("/" + token for token in tokens)
