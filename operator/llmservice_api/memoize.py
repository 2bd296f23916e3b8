"""Caches of pure functions of a spec, a service or a text; results live as long as the spec.

The key is the spec's identity: specs are immutable, and equal texts give the same spec (`api.service.parse_spec`).
Callers share results and must not change them. A service is evaluated many times between two edits.
"""

from __future__ import annotations

import functools
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

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
