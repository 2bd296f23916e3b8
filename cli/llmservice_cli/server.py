"""What the server's container of a pod template is started with, and what two templates differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from llmservice_runtime.contract import SERVER_CONTAINER

Json = Mapping[str, Any]


class Server(NamedTuple):
    """Image and arguments of the server's container."""

    image: str = ""
    args: tuple[str, ...] = ()


def server_of(template: Json) -> Server:
    """Empty where the template has no such container."""
    containers = (template.get("spec") or {}).get("containers") or ()
    server: Json = next((each for each in containers if each["name"] == SERVER_CONTAINER), {})
    return Server(server.get("image", ""), tuple(server.get("args") or ()))


def changes_between(before: Server, after: Server) -> str:
    """What the later one is started with otherwise; empty: nothing."""
    changes = [f"image: {before.image} -> {after.image}"] if after.image != before.image else []
    here, there = options_of(after.args), options_of(before.args)
    for name in dict.fromkeys([*there, *here]):
        if name not in there:
            changes.append(f"{name}: {here[name] or 'set'}")
        elif name not in here:
            changes.append(f"{name}: {there[name] or 'set'} -> not set")
        elif here[name] != there[name]:
            changes.append(f"{name}: {there[name]} -> {here[name]}")
    return ", ".join(changes)


def options_of(args: Sequence[str]) -> Mapping[str, str]:
    """By their names; `--name value` and `--name=value` are the same, and a flag alone has an empty value."""
    options: dict[str, str] = {}
    name = ""
    for arg in args:
        if arg.startswith("--") and len(arg) > 2:
            name, _, value = arg.partition("=")
            options[name] = value
        elif name:
            options[name] = f"{options[name]} {arg}".strip()
    return options
