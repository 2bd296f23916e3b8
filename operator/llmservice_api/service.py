"""A parsed, immutable LLMService, and caches of pure functions of a spec, a service or a text.

Results live as long as the spec. The key is the spec's identity: equal texts give the same spec (`parse_spec`). Callers
share results and must not change them. A service is evaluated many times between two edits.

`replicas_owner` finds the manifest that states spec.scaling.replicas: if it is applied repeatedly, it resets the
autoscaler's number each time. The records that this is read from may have any content.
"""

from __future__ import annotations

import functools
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import orjson
from kubeloop.resources import Key
from llmservice_runtime.bounded_json import Refused, clean, parse
from pydantic import ValidationError

from llmservice_api.errors import InvalidSpec, Problem
from llmservice_api.holding import check_peers
from llmservice_api.lifecycle import check_schedule
from llmservice_api.spec import LLMServiceSpec

Json = Mapping[str, Any]

LAST_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl apply"
STATED_BY = "replicasStatedBy"
"""Key of a projected LLMService for the result of `stated_by`."""

_MOST_ENTRIES = 256
_LONGEST_NAME = 64
_LARGEST = 256 * 1024
"""Bytes of the longest annotation that is read: the API server stores no larger one."""
_DEEPEST, _MOST_PARTS = 32, 16_384
_PATH = ("f:spec", "f:scaling", "f:replicas")


def stated_by(metadata: Json) -> str | None:
    """The field manager of a server-side apply, or `kubectl apply`; None: no manifest states the field.

    Updates also own fields that the API server set by default, so they prove nothing.
    """
    entries = metadata.get("managedFields")
    for entry in entries[:_MOST_ENTRIES] if isinstance(entries, list | tuple) else ():
        if isinstance(entry, Mapping) and _states(entry):
            return clean(str(entry.get("manager") or "a server-side apply"))[:_LONGEST_NAME]
    annotations = metadata.get("annotations")
    last = annotations.get(LAST_APPLIED_ANNOTATION) if isinstance(annotations, Mapping) else None
    return KUBECTL if isinstance(last, str) and _is_stated_in(last) else None


def _states(entry: Json) -> bool:
    if entry.get("operation") != "Apply" or entry.get("subresource"):
        return False
    found: Any = entry.get("fieldsV1")
    for name in _PATH:
        if not isinstance(found, Mapping) or name not in found:
            return False
        found = found[name]
    return True


def _is_stated_in(text: str) -> bool:
    try:
        found: Any = parse(text, _LARGEST, _DEEPEST, _MOST_PARTS, drops_numbers=True)
    except Refused:
        return False
    for name in ("spec", "scaling"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return isinstance(found, Mapping) and "replicas" in found


_SHORTER = (
    "Move what is long into ConfigMaps: spec.runtime.env takes valueFrom, spec.podTemplate.spec.volumes mounts files."
)
_REMEDY = "Correct it and apply the LLMService again; `kubectl explain llms.spec --recursive` lists the fields."

# pydantic's tags in the location of a value with several possible types.
_TYPE_TAGS = frozenset({"constrained-int", "literal['auto']"})


@dataclass(frozen=True, slots=True)
class LLMService:
    """An LLMService of the API server."""

    name: str
    namespace: str
    uid: str
    generation: int
    resource_version: str
    is_deleting: bool
    spec: LLMServiceSpec
    status: Mapping[str, Any]
    annotations: Mapping[str, str]
    replicas_stated_by: str | None = None
    """The manager that states spec.scaling.replicas in a manifest despite spec.scaling.autoscaling; None: none does."""

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    @property
    def served_model_names(self) -> tuple[str, ...]:
        """Names that clients may give as `model`."""
        return self.spec.model.served_model_names or (self.name,)

    @classmethod
    def from_object(cls, obj: Mapping[str, Any]) -> LLMService:
        """Parse a stored object; InvalidSpec where this operator cannot act on it."""
        metadata, spec = obj["metadata"], parse_spec(obj.get("spec"))
        stated = None
        if spec.scaling.autoscaling is not None:
            stated = obj[STATED_BY] if STATED_BY in obj else stated_by(metadata)
        return cls(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata.get("uid", ""),
            generation=metadata.get("generation", 0),
            resource_version=metadata.get("resourceVersion", ""),
            is_deleting="deletionTimestamp" in metadata,
            spec=spec,
            status=MappingProxyType(obj.get("status") or {}),
            annotations=MappingProxyType(metadata.get("annotations") or {}),
            replicas_stated_by=stated,
        )


CACHED_SPECS = 512
"""Most recently used specs; with their results in `llmservice_api.service` some 50 KiB each."""
MAX_CACHED_BYTES = 8 * 1024
"""Bytes of the longest cached spec: Python objects take some thirty times as much."""
LONGEST_SPEC = 64 * 1024
"""Bytes of the longest spec, as JSON, that the operator acts on. The API server stores objects of up to 1.5 MiB."""


def spec_text(raw: object) -> bytes:
    """A spec as compressed JSON, a tenth of the memory of objects; only the length of one that is too long."""
    text = orjson.dumps({} if raw is None else raw)
    return text if len(text) <= LONGEST_SPEC else b"%d" % len(text)


def parse_spec(raw: object) -> LLMServiceSpec:
    """The parsed spec, the same object for equal texts; InvalidSpec names every invalid field.

    `raw` is what the API server stores, or its `spec_text`.
    """
    if isinstance(raw, bytes):
        return _of_text(raw)
    given = {} if raw is None else raw
    try:
        text = spec_text(given)
    except TypeError:  # not from the API server: YAML has more types than JSON
        return _validated(given)
    return _of_text(text) if text.isdigit() or orjson.loads(text) == given else _validated(given)


def is_paused(raw: object) -> bool:
    """spec.paused of a spec or its `spec_text`, also where other fields are invalid."""
    spec = orjson.loads(raw) if isinstance(raw, bytes) else raw
    return isinstance(spec, Mapping) and bool(spec.get("paused"))


def _of_text(text: bytes) -> LLMServiceSpec:
    if text.isdigit():
        length = f"is {int(text):,} bytes long as JSON, and the operator acts on at most {LONGEST_SPEC:,}."
        raise InvalidSpec([Problem("spec", length, _SHORTER)])
    return _parsed(text) if len(text) <= MAX_CACHED_BYTES else _validated(orjson.loads(text))


@functools.lru_cache(maxsize=CACHED_SPECS)
def _parsed(text: bytes) -> LLMServiceSpec:
    return _validated(orjson.loads(text))


def _validated(raw: object) -> LLMServiceSpec:
    try:
        spec = LLMServiceSpec.model_validate(raw, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidSpec(_problems(error)) from None
    _ = spec.sources
    check_schedule(spec.scaling.autoscaling)
    check_peers(spec.scaling.holding.clients)
    return spec


def _problems(error: ValidationError) -> Iterator[Problem]:
    """One problem per field: pydantic reports a field of several types once for each of them."""
    messages: dict[str, list[str]] = {}
    for item in error.errors(include_url=False, include_context=False):
        messages.setdefault(_path(item["loc"]), []).append(item["msg"])
    for path, some in messages.items():
        # A list with an invalid item is also reported as too short, since that item was not counted.
        if any(other.startswith(f"{path}[") for other in messages):
            continue
        yield Problem(path, f"{', or '.join(dict.fromkeys(some))}.", _REMEDY)


def _path(location: tuple[int | str, ...]) -> str:
    """The path as the API server writes it, without pydantic's type tags."""
    path = "spec"
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in _TYPE_TAGS:
            path += f".{part}"
    return path


MAX_RESULTS = 64
"""Results per spec; when exceeded, arguments differ on every call, and the cache is cleared."""

Part = Any
"""A part of a key: texts and numbers by value, anything else by identity."""


class HasSpec(Protocol):
    """A service with a spec."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def spec(self) -> Any: ...


P = ParamSpec("P")
S = TypeVar("S")
L = TypeVar("L", bound=HasSpec)
R = TypeVar("R")

MAX_TEXT_BYTES = 32 * 1024
"""Bytes of the longest cached text; Python objects take up to thirty times as much."""


def cached_by_text(function: Callable[[bytes], R], *, most: int = 512) -> Callable[[bytes], R]:
    """Cache a pure function of a text that callers pass compressed with zlib. Long texts are not cached."""
    made: OrderedDict[bytes, R] = OrderedDict()

    def cached(packed: bytes) -> R:
        if packed in made:
            made.move_to_end(packed)
            return made[packed]
        text = zlib.decompress(packed)
        found = function(text)
        if len(text) <= MAX_TEXT_BYTES:
            made[packed] = found
            if len(made) > most:
                made.popitem(last=False)
        return found

    return functools.update_wrapper(cached, function)


_results: dict[int, tuple[weakref.ref[Any], dict[tuple[Part, ...], tuple[tuple[Any, ...], Any]]]] = {}


def cached_by_spec(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Cache a pure function of a spec and further positional arguments."""

    def cached(spec: S, /, *rest: P.args, **named: P.kwargs) -> R:
        assert not named, "arguments are positional"
        return _cached(function, spec, (), (spec, *rest))

    return functools.update_wrapper(cached, function)


def cached_by_service(function: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """Cache a pure function of a service that reads only spec, name, namespace and uid."""

    def cached(service: L, /, *rest: P.args, **named: P.kwargs) -> R:
        assert not named, "arguments are positional"
        return _cached(function, service.spec, (service.name, service.namespace, service.uid), (service, *rest))

    return functools.update_wrapper(cached, function)


def _cached(function: Callable[..., R], spec: object, whose: tuple[str, ...], given: tuple[Any, ...]) -> R:
    assert all(part is not spec for part in given[1:]), "a cached argument that is the spec would keep it for ever"
    made = _of(spec)
    key = (function, *whose, *map(_part, given[1:]))
    found = made.get(key)
    if found is None:
        if len(made) >= MAX_RESULTS:
            made.clear()
        # Keeps the arguments alive, so that no identity is reused. The spec itself is not kept: its end clears the
        # cache.
        found = made[key] = given[1:], function(*given)
    result: R = found[1]
    return result


def _of(spec: object) -> dict[tuple[Part, ...], tuple[tuple[Any, ...], Any]]:
    known = _results.get(id(spec))
    if known is None or known[0]() is not spec:
        number = id(spec)
        made = _results  # a result may be a spec, and be released after this module's names were

        def ended(_: object) -> None:
            made.pop(number, None)

        known = _results[number] = weakref.ref(spec, ended), {}
    return known[1]


def _part(given: object) -> Part:
    return given if given is None or isinstance(given, str | bytes | int) else id(given)
