"""Drift: whether a live object has every value of a manifest, and what others added to it.

The API server sets defaults and rewrites some values, so that the two are never equal. Values of the live object that
the manifest lacks are defaults or additions. Additions are found by their owners in `metadata.managedFields` and
removed by a JSON patch: an apply restores changed values, but never removes added ones. Only `spec` counts: the status
is the controllers', and added metadata (`kubectl rollout restart`'s annotation on the pod template, a label for a cost
report) stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from llmservice_api.constants import MANAGER
from llmservice_planner.quantity import same_amount

Json = Mapping[str, Any]

# Lists that the API server merges by these keys; every other list is one value.
MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port", "protocol"),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
# Maps that are one value: an added key changes the meaning of the others.
ATOMIC_MAPS = frozenset({"selector", "matchLabels", "nodeSelector", "secretKeyRef"})
# Maps and leaves with quantities.
QUANTITIES = frozenset({"limits", "requests", "sizeLimit"})
UNSET: tuple[Any, ...] = (None, "", 0, False, [], {})


def difference(manifest: Json, live: Json, content: Iterable[str]) -> str | None:
    """The path of the first value that differs from the manifest; None if none does.

    `content` names the compared parts of the object beside its metadata.
    """
    metadata = {key: manifest["metadata"].get(key) for key in ("labels", "annotations", "ownerReferences")}
    found = _first(metadata, live["metadata"], "metadata")
    for part in content:
        found = found or _first(manifest.get(part), live.get(part), part)
    return found


def _first(wanted: Any, live: Any, path: str, name: str = "") -> str | None:
    if wanted == live or (live in UNSET and wanted in UNSET):
        return None
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return _first_in_map(wanted, live, path, name)
    if isinstance(wanted, list) and isinstance(live, list):
        keys = MERGE_KEYS.get(name)
        return _first_in_merged(wanted, live, path, keys) if keys else _first_in_list(wanted, live, path)
    return path


def _first_in_map(wanted: Json, live: Json, path: str, name: str) -> str | None:
    if name in ATOMIC_MAPS and set(live) - set(wanted):
        # The workload's selector contains matchLabels, which is compared separately.
        return path
    for key, value in wanted.items():
        if (name in QUANTITIES or key in QUANTITIES) and same_amount(value, live.get(key)):
            continue
        found = _first(value, live.get(key), f"{path}.{key}", key)
        if found:
            return found
    return None


def _first_in_merged(wanted: list[Any], live: list[Any], path: str, keys: tuple[str, ...]) -> str | None:
    if not all(isinstance(item, Mapping) for item in (*wanted, *live)):
        return path  # a record that somebody else created
    by_key = {merge_key(item, keys): item for item in live}
    for item in wanted:
        key = merge_key(item, keys)
        at = f"{path}[{'/'.join(map(str, key))}]"
        found = _first(item, by_key[key], at) if key in by_key else at
        if found:
            return found
    return None


def merge_key(item: Json, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Identifies an item of a merged list."""
    return tuple(str(item.get(key)) for key in keys)


def _first_in_list(wanted: list[Any], live: list[Any], path: str) -> str | None:
    if len(wanted) != len(live):
        return path
    pairs = enumerate(zip(wanted, live, strict=True))
    return next((found for index, (one, other) in pairs if (found := _first(one, other, f"{path}[{index}]"))), None)


_FREE = (("f:template", "f:metadata"), ("f:volumeName",), ("f:storageClassName",), ("f:volumeAttributesClassName",))
"""Paths below spec that are ignored: others may write metadata, and Kubernetes sets the rest when it binds a
PersistentVolumeClaim, after which the spec is immutable."""


def foreign_paths(managed_fields: Iterable[Json], most: int | None = None) -> frozenset[str]:
    """The first `most` paths below spec that only others own."""
    ours, theirs = _split(managed_fields)
    return frozenset(_readable(path) for path in islice(chain(*(_only_theirs(t, ours, ()) for t in theirs)), most))


def is_applied(managed_fields: Iterable[Json]) -> bool:
    """Whether an apply of this operator is recorded. Without it (managedFields were reset) nothing shows what was
    added."""
    return any((e.get("manager"), e.get("operation")) == (MANAGER, "Apply") for e in managed_fields)


def removal_patch(obj: Json) -> list[dict[str, Any]]:
    """The JSON patch that removes foreign fields from the live object; empty without any.

    It first tests the positions of list items. A test of the resourceVersion would fail while a controller writes the
    status frequently.
    """
    ours, theirs = _split(obj["metadata"].get("managedFields") or ())
    paths = {path for other in theirs for path in _only_theirs(other, ours, ())}
    places = {place.pointer: place for path in paths if (place := _place(obj["spec"], path)) is not None}
    # Later list items first: a removal shifts those behind it.
    ordered = [places[pointer] for pointer in sorted(places, reverse=True)]
    tests = {path: value for place in ordered for path, value in place.tests}
    return [{"op": "test", "path": path, "value": value} for path, value in sorted(tests.items())] + [
        {"op": "remove", "path": _join(place.pointer)} for place in ordered
    ]


def restoring_patch(obj: Json, spec: Json) -> list[dict[str, Any]]:
    """The JSON patch that sets each field of spec that others added to, or removed, to the desired value.

    For fields that exclude each other, such as minAvailable and maxUnavailable of a budget: an apply is refused while
    the foreign one exists. The pod template is left to the apply: replacing it would restart pods because of an
    annotation.
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
    """As `spec.template.spec.containers[server].env[FOO]`."""
    text = "spec"
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "k":
            text += f"[{'/'.join(str(value) for value in json.loads(rest).values())}]"
        else:
            text += f".{rest}" if kind == "f" else f"[{rest}]"
    return text


def _split(managed_fields: Iterable[Json]) -> tuple[Json, list[Json]]:
    """The operator's field set of spec, and those of other managers that wrote more than the status."""
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
"""Tokens as (list index or -1, key), so that a later list item sorts after an earlier one."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a field path in a live object, and the tests that confirm it."""

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
