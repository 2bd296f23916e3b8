"""Manifests that the API server must take (good.yaml), and those with one wrong thing (bad.yaml)."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from math import ceil, floor
from pathlib import Path
from typing import Any

import yaml
from llmservice_api.crd import schema

HUB = "hf://Qwen/Qwen2.5-7B-Instruct"
Json = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """`change` maps paths below spec to values; a refusal names `field` (none: an unknown one) and says these words."""

    change: Json
    field: str = ""
    says: tuple[str, ...] = ()
    name: str = "good"
    before: Json = dataclasses.field(default_factory=dict)
    """What the object was like until this update."""
    reason: str = ""
    """What the operator's own matrix gives for it; none where only the API server refuses it."""

    @property
    def id(self) -> str:
        return " ".join(f"{path}={value}" for path, value in {"name": self.name, **self.change}.items())[10:300]


def manifest(name: str, change: Json) -> dict[str, Any]:
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


def _read(name: str) -> Any:
    return yaml.safe_load((Path(__file__).parent / name).read_text())


def _bad(row: dict[str, Any]) -> Case:
    at, says = row.pop("at", None), row.pop("says")
    more = {name: row.pop(name) for name in ("name", "before", "reason") if name in row}
    if at is None or at.startswith((".", "[")):
        at = f"spec.{list(row)[-1]}{at or ''}"
    return Case(row, at, (says,) if isinstance(says, str) else tuple(says), **more)


def _beyond_fractions(part: Json, path: str) -> Iterator[Case]:
    """A whole number beyond each bound with a fraction, which the API server itself cuts off."""
    if part.get("type") == "number":
        for bound, beyond, words in (("minimum", floor, "at least"), ("maximum", ceil, "at most")):
            value = part.get(bound)
            if value is not None and not float(value).is_integer():
                yield Case({path: beyond(value)}, f"spec.{path}", (f"must be {words} {value}",))
    for name, child in part.get("properties", {}).items():
        yield from _beyond_fractions(child, f"{path}.{name}".lstrip("."))


_TABLES: Mapping[str, Any] = _read("bad.yaml")
SPELLINGS = [(shlex.split(text), words) for words, texts in _TABLES["spellings"].items() for text in texts]
SECTIONS = {name: [_bad(row) for row in rows] for name, rows in _TABLES.items() if name != "spellings"}
_ENV = [{"name": f"A{number}", "value": "x" * 1024} for number in range(33)]
SECTIONS["structure"] += (
    Case({"model.uri": "hf://a/" + "b" * 1024}, "spec.model.uri", ("than 1024",)),
    Case({"runtime.extraArgs": ["--max-logprobs=1"] * 65}, "spec.runtime.extraArgs", ("at most 64 items",)),
    Case(
        {"runtime.extraArgs": ["--max-logprobs=" + "1" * 1024]},
        "spec.runtime.extraArgs[0]",
        ("than 1024",),
    ),
)
BAD = (
    *(case for cases in SECTIONS.values() for case in cases),
    *_beyond_fractions(schema()["properties"]["spec"], ""),
    *(Case({"runtime.extraArgs": args}, "spec.runtime.extraArgs[0]", (words,)) for args, words in SPELLINGS),
    Case({"runtime.env": _ENV}, "spec.runtime.env", ("32,768 characters", "ConfigMap")),
)
GOOD = (*(Case(row, name=row.pop("name", "good")) for row in _read("good.yaml")), Case({"runtime.env": _ENV[:32]}))
