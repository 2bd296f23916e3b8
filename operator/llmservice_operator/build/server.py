"""What a pod template says of the server that it starts: read back, since a recorded one is of the settings and the
release of its time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_runtime import contract
from llmservice_runtime.options import ServeOptions

from llmservice_operator.planner.versions import image_version

Json = Mapping[str, Any]

_LONGEST = 1024
_VERSION, _DRAIN = "--expected-version", "--drain-seconds"


@dataclass(frozen=True, slots=True)
class Server:
    """Values in force that the revision key does not cover. None: the template does not have it."""

    image: str | None = None
    vllm_version: str | None = None
    """The one that its flags were rendered for, without a leading v."""
    drain_seconds: int | None = None
    cpu_kv_cache_gib: int | None = None


def server(template: Json) -> Server:
    """The server container's values. A wrong type is None: other releases and users write templates too."""
    container = next((c for c in _containers(template) if c.get("name") == contract.SERVER_CONTAINER), None)
    if container is None:
        return Server()
    options, image = dict(_options(container)), _text(container.get("image"))
    return Server(
        image=image,
        vllm_version=_text(options.get(_VERSION)) or image_version(image or ""),
        drain_seconds=_whole(options.get(_DRAIN, f"{ServeOptions.drain_seconds:g}")),
        cpu_kv_cache_gib=_whole(_variables(container).get("VLLM_CPU_KVCACHE_SPACE")),
    )


def server_arguments(template: Json) -> list[object]:
    """Arguments of the server container: the supervisor's, `--`, and vLLM's. Empty for a template without one."""
    container = next((c for c in _containers(template) if c.get("name") == contract.SERVER_CONTAINER), {})
    arguments = container.get("args")
    return list(arguments) if isinstance(arguments, list) else []


def _containers(template: Json) -> Iterator[Json]:
    spec = template.get("spec")
    some = spec.get("containers") if isinstance(spec, Mapping) else None
    yield from (c for c in some if isinstance(c, Mapping)) if isinstance(some, list) else ()


def _options(container: Json) -> Iterator[tuple[str, str]]:
    """Name and value of the supervisor's options, which are before `--`."""
    arguments = container.get("args")
    for argument in arguments if isinstance(arguments, list) else ():
        if argument == "--" or not isinstance(argument, str):
            return
        name, _, value = argument.partition("=")
        yield name, value


def _variables(container: Json) -> Mapping[str, object]:
    """The environment by name; the last of a name counts."""
    given = container.get("env")
    some = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return {str(one.get("name")): one.get("value") for one in some}


def _text(value: object) -> str | None:
    """A string that the status can hold; no image or version is longer."""
    return value if isinstance(value, str) and len(value) <= _LONGEST else None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10 else None
