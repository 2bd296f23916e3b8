"""What pure functions made of a spec, kept for as long as the spec is: a service is looked at often between two edits.

A spec is never changed, and the same text is the same spec (`api.service.parse_spec`), so its identity is enough to
find what was made of it. What is remembered is shared by all who ask, and nobody may change it.
"""

from __future__ import annotations

import functools
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

MOST = 64
"""Results for one spec; more than these come of arguments that are never the same twice."""

Part = Any
"""Of a key: a text or a number as it is, of anything else the identity."""


class OfSpec(Protocol):
    """What has a spec, and an identity of its own."""

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
L = TypeVar("L", bound=OfSpec)
R = TypeVar("R")

LONGEST = 32 * 1024
"""Bytes of a text up to which what is made of it is kept; Python objects take up to thirty times as much."""


def of_text(function: Callable[[bytes], R], *, most: int = 512) -> Callable[[bytes], R]:
    """For a pure function of a text, asked for by the text compressed with zlib. What is long is made each time."""
    made: OrderedDict[bytes, R] = OrderedDict()

    def remembering(packed: bytes) -> R:
        if packed in made:
            made.move_to_end(packed)
            return made[packed]
        text = zlib.decompress(packed)
        found = function(text)
        if len(text) <= LONGEST:
            made[packed] = found
            if len(made) > most:
                made.popitem(last=False)
        return found

    return functools.update_wrapper(remembering, function)


_made: dict[int, tuple[weakref.ref[Any], dict[tuple[Part, ...], tuple[tuple[Any, ...], Any]]]] = {}


def of_spec(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """For a pure function of a spec and whatever else, by position."""

    def remembering(spec: S, /, *rest: P.args, **named: P.kwargs) -> R:
        assert not named, "what is remembered is asked for by position"
        return _remembered(function, spec, (), (spec, *rest))

    return functools.update_wrapper(remembering, function)


def of_service(function: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """For one of a service, of which it reads the spec and the name, and neither status nor annotations."""

    def remembering(service: L, /, *rest: P.args, **named: P.kwargs) -> R:
        assert not named, "what is remembered is asked for by position"
        return _remembered(function, service.spec, (service.name, service.namespace, service.uid), (service, *rest))

    return functools.update_wrapper(remembering, function)


def _remembered(function: Callable[..., R], spec: object, whose: tuple[str, ...], given: tuple[Any, ...]) -> R:
    made = _of(spec)
    key = (function, *whose, *map(_part, given[1:]))
    found = made.get(key)
    if found is None:
        if len(made) >= MOST:
            made.clear()
        # What was given is kept with it, so that no identity is used again meanwhile; the spec itself must not be.
        found = made[key] = given[1:], function(*given)
    result: R = found[1]
    return result


def _of(spec: object) -> dict[tuple[Part, ...], tuple[tuple[Any, ...], Any]]:
    known = _made.get(id(spec))
    if known is None or known[0]() is not spec:
        number = id(spec)
        known = _made[number] = weakref.ref(spec, lambda _: _made.pop(number, None)), {}
    return known[1]


def _part(given: object) -> Part:
    return given if given is None or isinstance(given, str | bytes | int) else id(given)
