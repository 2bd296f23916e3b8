"""A manifest as YAML with a comment above what was chosen, and with optional fields commented out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import yaml
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json

WIDTH = 100


@dataclass(frozen=True, slots=True)
class Hint:
    """An optional field: its path below spec, an example, and what it is for."""

    path: str
    value: Any
    why: str


def text(manifest: Json, reasons: Mapping[str, str], hints: tuple[Hint, ...]) -> str:
    """The manifest; reasons are by paths below spec. What is read of it is the manifest, whatever comments say."""
    head = {key: value for key, value in manifest.items() if key != "spec"}
    return "\n".join([_dumped(head), "spec:", *_section(manifest["spec"], reasons, hints, "", 1)]) + "\n"


def _section(
    fields: Mapping[str, Any], reasons: Mapping[str, str], hints: tuple[Hint, ...], path: str, depth: int
) -> Iterator[str]:
    """The fields of one object, each with what is said of it; then hints about others."""
    indent = "  " * depth
    for key, value in fields.items():
        below = f"{path}{key}"
        if below in reasons:
            yield from _comment(reasons[below], indent)
        if isinstance(value, dict) and value:
            yield f"{indent}{key}:"
            yield from _section(value, reasons, hints, f"{below}.", depth + 1)
        else:
            yield f"{indent}{_inline({key: value})}"
    for hint in hints:
        name = hint.path.removeprefix(path)
        if hint.path.startswith(path) and name.partition(".")[0] not in fields:
            yield from _comment(hint.why, indent)
            yield from (f"{indent}# {line}" for line in _nested(name, hint.value))


def _nested(name: str, value: Any) -> Iterator[str]:
    *parents, last = name.split(".")
    for depth, parent in enumerate(parents):
        yield f"{'  ' * depth}{parent}:"
    yield f"{'  ' * len(parents)}{_inline({last: value})}"


def _comment(said: str, indent: str) -> Iterator[str]:
    lead = f"{indent}# "
    yield from wrap(clean(" ".join(said.split())), WIDTH, initial_indent=lead, subsequent_indent=lead)


def _inline(fields: Mapping[str, Any]) -> str:
    """One field on one line."""
    if not any(isinstance(value, dict | list) for value in fields.values()):
        return _dumped(fields)
    return _dumped(fields, flow=True)[1:-1]


def _dumped(fields: Mapping[str, Any], *, flow: bool = False) -> str:
    dumped: str = yaml.dump(dict(fields), Dumper=_OneLine, default_flow_style=flow, sort_keys=False, width=2**16)
    return dumped.strip()


class _OneLine(yaml.SafeDumper):
    """Texts that would be written on several lines are quoted with escapes."""

    def represent_str(self, data: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


_OneLine.add_representer(str, _OneLine.represent_str)
