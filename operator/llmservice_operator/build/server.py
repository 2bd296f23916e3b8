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
    """What is in force beside the fields of the revision key. None: the template does not say."""

    image: str | None = None
    vllm_version: str | None = None
    """The one that its flags were rendered for, without a leading v."""
    drain_seconds: int | None = None
    cpu_kv_cache_gib: int | None = None


def server(template: Json) -> Server:
    """Lenient: another release may have written it, and whoever may make a ControllerRevision."""
    found = next((c for c in _containers(template) if c.get("name") == contract.SERVER_CONTAINER), None)
    if found is None:
        return Server()
    options, image = dict(_options(found)), _text(found.get("image"))
    return Server(
        image=image,
        vllm_version=_text(options.get(_VERSION)) or image_version(image or ""),
        drain_seconds=_whole(options.get(_DRAIN, f"{ServeOptions.drain_seconds:g}")),
        cpu_kv_cache_gib=_whole(_variables(found).get("VLLM_CPU_KVCACHE_SPACE")),
    )


def _containers(template: Json) -> Iterator[Json]:
    spec = template.get("spec")
    some = spec.get("containers") if isinstance(spec, Mapping) else None
    yield from (c for c in some if isinstance(c, Mapping)) if isinstance(some, list) else ()


def _options(container: Json) -> Iterator[tuple[str, str]]:
    """The supervisor's, as NAME=VALUE; vLLM's own come after `--`."""
    arguments = container.get("args")
    for argument in arguments if isinstance(arguments, list) else ():
        if argument == "--" or not isinstance(argument, str):
            return
        name, _, value = argument.partition("=")
        yield name, value


def _variables(container: Json) -> Mapping[str, object]:
    """The last of a name counts."""
    given = container.get("env")
    some = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return {str(one.get("name")): one.get("value") for one in some}


def _text(value: object) -> str | None:
    """Longer ones are no image and no version, and would be too long for the status."""
    return value if isinstance(value, str) and len(value) <= _LONGEST else None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10 else None
