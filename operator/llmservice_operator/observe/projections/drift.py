"""Whether a live object still has every value of a manifest.

The API server fills in defaults and rewrites some values, so the two are never equal. What is asked is: does every
value of the manifest stand in the live object? What the live object has beyond that is a default, or somebody's
addition, and those are found by their owners (foreign_fields.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmservice_operator.observe.projections.children import ChildFacts
from llmservice_operator.planner.quantity import same_amount

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
# Maps that are one value: a key that somebody adds changes the meaning of the others.
ATOMIC_MAPS = frozenset({"selector", "matchLabels", "nodeSelector", "secretKeyRef"})
# Maps and leaves that hold quantities.
QUANTITIES = frozenset({"limits", "requests", "sizeLimit"})
UNSET: tuple[Any, ...] = (None, "", 0, False, [], {})


def difference(manifest: Json, facts: ChildFacts) -> str | None:
    """The path of the first value that is not as the manifest asks; None when all are."""
    live = facts.live()
    metadata = {key: manifest["metadata"].get(key) for key in ("labels", "annotations", "ownerReferences")}
    found = _first(metadata, live["metadata"], "metadata")
    for part in facts.content:
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
        # The Deployment's selector holds matchLabels, which is looked at by itself.
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
        return path  # a record that somebody else made
    by_key = {merge_key(item, keys): item for item in live}
    for item in wanted:
        key = merge_key(item, keys)
        at = f"{path}[{'/'.join(map(str, key))}]"
        found = _first(item, by_key[key], at) if key in by_key else at
        if found:
            return found
    return None


def merge_key(item: Json, keys: tuple[str, ...]) -> tuple[str, ...]:
    """By which an item of a merged list is known again."""
    return tuple(str(item.get(key)) for key in keys)


def _first_in_list(wanted: list[Any], live: list[Any], path: str) -> str | None:
    if len(wanted) != len(live):
        return path
    pairs = enumerate(zip(wanted, live, strict=True))
    return next((found for index, (one, other) in pairs if (found := _first(one, other, f"{path}[{index}]"))), None)
