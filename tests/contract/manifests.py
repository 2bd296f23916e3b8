"""A manifest, and one with one wrong thing: what is changed in a good one, the field that is named, what is said."""

import dataclasses
from collections.abc import Mapping
from typing import Any

HUB = "hf://Qwen/Qwen2.5-7B-Instruct"


@dataclasses.dataclass(frozen=True)
class Bad:
    """`change` maps paths below spec to values; `before` is what the object was like until this update."""

    id: str
    change: Mapping[str, Any]
    field: str
    says: tuple[str, ...]
    name: str = "good"
    before: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def wrong(id_: str, path: str, value: Any, *says: str, at: str = "") -> Bad:
    """One field below spec with a wrong value; `at` leads from there to what the API server names."""
    return Bad(id_, {path: value}, f"spec.{path}{at}", says)


def manifest(name: str, change: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest good manifest, with some paths of its spec set. A None takes a path away."""
    spec: dict[str, Any] = {"model": {"uri": HUB}}
    for path, value in change.items():
        place, *rest = spec, *path.split(".")
        for part in rest[:-1]:
            place = place.setdefault(part, {})
        if value is None:
            place.pop(rest[-1], None)
        else:
            place[rest[-1]] = value
    return {"metadata": {"name": name}, "spec": spec}
