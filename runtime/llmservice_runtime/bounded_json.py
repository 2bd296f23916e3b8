"""Reads untrusted JSON with bounds on size, depth and numbers; the only exception is `Refused`.

Pods, Jobs and repositories may write anything. `parse` converts text into a value whose numbers are finite and below
2**63, whose strings are valid Unicode and whose depth is bounded; `read` does the same for a file. `Reader` gives the
fields of an object with the type and range that the caller requires. Standard library only, like all of the runtime.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

LARGEST = 2**53
"""Largest number in a report: every JSON parser represents it exactly."""
MAX_BYTES = 64 * 1024
MAX_DEPTH = 16
_FLAG_BYTES = 2 << 20
_FLAG_DEPTH = 200
_WIDEST = 2**63
_LONGEST_NUMBER = 400
"""Characters; Python itself refuses integers of more than 4,300 digits."""
_SHOWN = 40

_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)
# C0 and C1 controls except newline and tab: they would control the terminal that shows a status.
_CONTROLS = {code: " " for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_CONTROLS |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")

T = TypeVar("T")


class Refused(ValueError):
    """The text or value is invalid. The message gives the reason and quotes at most a few characters of it."""


class UnknownWord(Refused):
    """An enumeration value that this version does not know; a later version may."""


def parse(
    text: str | bytes,
    max_bytes: int = MAX_BYTES,
    max_depth: int = MAX_DEPTH,
    max_items: int | None = None,
    *,
    drops_numbers: bool = False,
) -> Any:
    """The JSON value of a text; Refused where it is invalid or exceeds a bound.

    `max_items` bounds the memory of the parsed value. With `drops_numbers` numbers that are not finite or too large
    become null: for foreign formats, where they may be in fields that are not used.
    """
    if isinstance(text, bytes):
        text = _decoded(text)
    if len(text) > max_bytes or not (text.isascii() or len(_encoded(text)) <= max_bytes):
        raise Refused(f"it is longer than {max_bytes} bytes")
    # Separators in strings count too, so this is an upper bound.
    if max_items is not None and sum(map(text.count, ",[{")) > max_items:
        raise Refused(f"it has more than {max_items} parts")
    # No deeper than it has brackets, which are counted in no time.
    if text.count("[") + text.count("{") > max_depth and depth_of(text) > max_depth:
        raise Refused(f"it is nested deeper than {max_depth}")
    try:
        value = (_DROPPING if drops_numbers else _STRICT).decode(text)
    except Refused:
        raise
    except (RecursionError, ValueError):
        raise Refused("it is not JSON") from None
    if "\\u" in text:  # only an escape can produce half of a surrogate pair
        _encoded(json.dumps(value, ensure_ascii=False))
    return value


def flag_object(text: str) -> dict[str, Any]:
    """The JSON object that is the value of one of vLLM's flags; empty for what is none, which vLLM reports itself."""
    try:
        document = parse(text, _FLAG_BYTES, _FLAG_DEPTH, drops_numbers=True)
    except Refused:
        return {}
    return document if isinstance(document, dict) else {}


def read(
    path: Path,
    max_bytes: int = MAX_BYTES,
    max_depth: int = MAX_DEPTH,
    max_items: int | None = None,
    *,
    drops_numbers: bool = False,
) -> Any:
    """The JSON value of a regular file, bounded as in `parse`. Refused; OSError where it cannot be read."""
    with opened(path) as file:
        text = file.read(max_bytes + 1)
    return parse(text, max_bytes, max_depth, max_items, drops_numbers=drops_numbers)


def opened(path: Path) -> BinaryIO:
    """Open a regular file for reading. Refused for anything else, without blocking on a FIFO; OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused("it is not a regular file")
    return os.fdopen(descriptor, "rb")


def depth_of(text: str) -> int:
    """Nesting depth of arrays and objects, computed without recursion; brackets in strings do not count."""
    depth = deepest = 0
    for found in _BRACKETS.finditer(text):
        first = text[found.start()]
        if first in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in "]}":
            depth -= 1
    return deepest


def bounded(
    value: object,
    max_depth: int = MAX_DEPTH,
    max_items: int = 4096,
    max_text: int = 4096,
    largest: int = 2**63,
    *,
    is_prose: bool = False,
) -> Any:
    """The value itself where all its parts are within bounds, for values that arrive parsed; Refused otherwise.

    Numbers must be finite and below `largest`. Texts must not have control characters unless `is_prose`.
    """
    _check(value, max_depth, [max_items], _Bounds(max_text, largest, is_prose))
    return value


def clean(text: str) -> str:
    """The text without control characters (except newline and tab) and without halves of surrogate pairs."""
    return text if text.isprintable() else text.translate(_CONTROLS)


class Reader:
    """The fields of one JSON object. A getter without a default refuses what is absent; null counts as absent."""

    def __init__(self, value: object, what: str = "it") -> None:
        if not isinstance(value, Mapping):
            raise Refused(f"{what} is not an object")
        self._value, self._what = value, what

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._value.get(name) is not None

    def value(self, name: str) -> Any:
        """The unchecked value, for another reader; None where absent."""
        return self._value.get(name)

    def word(self, name: str, limit: int = 1024, default: str | None = None) -> str:
        """Text that is only useful in full: refused where it is longer than `limit`."""
        return self._get(name, default, lambda value: _word(value, limit))

    def text(self, name: str, limit: int = 4096, default: str | None = None) -> str:
        """Prose: cut to `limit` characters, without control characters."""
        return self._get(name, default, lambda value: clean(_string(value)[:limit]))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """A boolean; other types are refused."""
        return self._get(name, default, _flag)

    def integer(self, name: str, least: int = 0, most: int = LARGEST, default: int | None = None) -> int:
        """An integer from `least` to `most`."""
        return self._get(name, default, lambda value: _whole(value, least, most))

    def number(self, name: str, least: float = 0, most: float = LARGEST, default: float | None = None) -> float:
        """A finite integer or float from `least` to `most`."""
        return self._get(name, default, lambda value: _number(value, least, most))

    def items(self, name: str, limit: int) -> Iterator[Any]:
        """The items of a list of at most `limit`; none where it is absent."""
        value = self._value.get(name)
        if value is None:
            return
        if not isinstance(value, list | tuple) or len(value) > limit:
            raise Refused(f"{self.path(name)} is not a list of at most {limit}")
        yield from value

    def texts(self, name: str, limit: int, longest: int) -> tuple[str, ...]:
        """A list of prose."""
        return tuple(clean(self._checked(name, _string, item)[:longest]) for item in self.items(name, limit))

    def words(self, name: str, limit: int, longest: int) -> tuple[str, ...]:
        """A list of words."""
        return tuple(self._checked(name, lambda value: _word(value, longest), item) for item in self.items(name, limit))

    def one_of(self, name: str, kind: Callable[[str], T]) -> T:
        """A member of an enumeration."""
        try:
            return kind(self.word(name, 256))
        except Refused:
            raise
        except ValueError:
            raise UnknownWord(f"{self.path(name)} is not one of the known words") from None

    def within(self, name: str) -> Reader:
        """An object in the object."""
        return Reader(self._value.get(name), self.path(name))

    def _get(self, name: str, default: T | None, read: Callable[[object], T]) -> T:
        value = self._value.get(name)
        if value is None:
            if default is None:
                raise Refused(f"{self.path(name)} is missing")
            return default
        return self._checked(name, read, value)

    def _checked(self, name: str, read: Callable[[object], T], value: object) -> T:
        try:
            return read(value)
        except Refused as why:
            raise Refused(f"{self.path(name)} {why}") from None

    def path(self, name: str) -> str:
        """The field's path for messages."""
        return name if self._what == "it" else f"{self._what}.{name}"


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise Refused("it is not UTF-8") from None


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Refused("it is not valid Unicode") from None


def _integer(text: str) -> int:
    if len(text) > _LONGEST_NUMBER or abs(number := int(text)) >= _WIDEST:
        raise Refused(f"a number in it is out of range: {text[:_SHOWN]}")
    return number


def _real(text: str) -> float:
    if len(text) > _LONGEST_NUMBER or not math.isfinite(number := float(text)):
        raise Refused(f"a number in it is out of range: {text[:_SHOWN]}")
    return number


def _constant(text: str) -> float:
    raise Refused(f"a number in it is out of range: {text}")


def _or_null(read_number: Callable[[str], Any]) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        try:
            return read_number(text)
        except Refused:
            return None

    return number


def _decoder(*numbers: Callable[[str], Any]) -> json.JSONDecoder:
    integer, real, constant = numbers
    return json.JSONDecoder(parse_int=integer, parse_float=real, parse_constant=constant)


# Made once: an answer of a model has thousands of small documents.
_STRICT = _decoder(_integer, _real, _constant)
_DROPPING = _decoder(*map(_or_null, (_integer, _real, _constant)))


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise Refused("is not text")
    _encoded(value)
    return value


def _word(value: object, limit: int) -> str:
    text = _string(value)
    if len(text) > limit:
        raise Refused(f"is longer than {limit} characters")
    return clean(text)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Refused("is not true or false")
    return value


def _whole(value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refused(f"is not an integer from {least} to {most}")
    return value


def _number(value: object, least: float, most: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # NaN compares false with everything, so it fails here as well.
    if not is_number or not least <= value <= most:  # type: ignore[operator]
        raise Refused(f"is not a number from {least:g} to {most:g}")
    return value  # type: ignore[return-value]


class _Bounds(NamedTuple):
    longest: int
    largest: int
    is_prose: bool


def _check(value: object, depth: int, left: list[int], bounds: _Bounds) -> None:
    left[0] -= 1
    if left[0] < 0:
        raise Refused("it has too many parts")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(value, bounds)
    elif isinstance(value, int | float):
        if abs(value) >= bounds.largest or not math.isfinite(value):
            raise Refused("a number in it is out of range")
    elif depth <= 0:
        raise Refused("it is nested too deep")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _check_text(name, bounds)
            _check(item, depth - 1, left, bounds)
    elif isinstance(value, Sequence):
        for item in value:
            _check(item, depth - 1, left, bounds)
    else:
        raise Refused(f"it holds a {type(value).__name__}")


def _check_text(value: object, bounds: _Bounds) -> None:
    if not isinstance(value, str) or len(value) > bounds.longest:
        raise Refused(f"a text in it is longer than {bounds.longest} characters")
    if not bounds.is_prose and not value.isprintable() and clean(value) != value:
        raise Refused("a text in it has control characters")
    if not value.isascii():
        _encoded(value)
