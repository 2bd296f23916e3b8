"""Members of a JSON object, found without building values: a body of 32 MiB may hold a million of them.

A parser needs two seconds for the worst such body, in which nobody else is answered. This scanner stops every few
hundred tokens, so that its caller can let others go first. It takes every object that `json.loads` takes in UTF-8, and
some more: what it skips is checked by vLLM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator

MOST_TOKENS = 250_000
"""Brackets, strings, and quotes in strings: numbers in a list are none. So many take one to two seconds of CPU."""
STEP = 256
"""Tokens between two stops."""
_WINDOW = 1 << 16
"""Bytes that are searched at a time."""
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_DEEP = re.compile(rb'["{}\[\]]')
_TOP = re.compile(rb'["{}\[\],:]')
_LONGEST_SCALAR = 64
"""Bytes; `true`, `null` and numbers that anybody asks for are shorter."""

Members = dict[str, bytes]
"""The JSON text of each value by its name; of an object or array its first byte."""
Scan = Generator[None, None, Members]


class NotAnObject(ValueError):
    """It is JSON of another kind, or none at all."""


class TooMany(ValueError):
    """It has more than MOST_TOKENS."""


def members(body: bytes, names: Collection[str]) -> Scan:
    """The values of these names; of one that occurs again the last, as parsers have it. It stops every few tokens.

    NotAnObject, TooMany.
    """
    return (yield from _Scanner(body).members(names))


class _Scanner:
    def __init__(self, body: bytes) -> None:
        self._body, self._place = body, len(_BOM) if body.startswith(_BOM) else 0
        self._tokens = 0

    def members(self, names: Collection[str]) -> Scan:
        found: Members = {}
        yield from self._skip_space()
        if self._take() != b"{":
            raise NotAnObject("The body is not a JSON object.")
        yield from self._skip_space()
        if self._peek() == b"}":
            self._place += 1
            yield from self._end()
            return found
        while True:
            yield from self._skip_space()
            name = _text(self._body[slice(*(yield from self._string()))])
            yield from self._skip_space()
            if self._take() != b":":
                raise NotAnObject("The body is not valid JSON: a name without a value.")
            yield from self._skip_space()
            value = yield from self._value(is_wanted=name in names)
            if name is not None and value is not None:
                found[name] = value
            yield from self._skip_space()
            match self._take():
                case b",":
                    continue
                case b"}":
                    yield from self._end()
                    return found
                case _:
                    raise NotAnObject("The body is not valid JSON: a value that does not end.")

    def _value(self, *, is_wanted: bool) -> Generator[None, None, bytes | None]:
        begin = self._place
        match self._peek():
            case b'"':
                first, last = yield from self._string()
                return self._body[first:last] if is_wanted else None
            case b"{" | b"[" as opened:
                yield from self._skip_compound()
                return opened if is_wanted else None
        while (match := _TOP.search(self._body, self._place, self._place + _WINDOW)) is None:
            self._place += _WINDOW
            if self._place >= len(self._body):
                raise NotAnObject("The body is not valid JSON: it has no end.")
            yield
        self._place = match.start()
        return self._body[begin : min(self._place, begin + _LONGEST_SCALAR)].strip(_SPACE) if is_wanted else None

    def _skip_compound(self) -> Generator[None, None, None]:
        depth = 0
        while True:
            match = _DEEP.search(self._body, self._place, self._place + _WINDOW)
            if match is None:
                self._place += _WINDOW
                if self._place >= len(self._body):
                    raise NotAnObject("The body is not valid JSON: it has no end.")
                yield
                continue
            character, self._place = match[0], match.start()
            if character == b'"':
                yield from self._string()
                continue
            if self._count():
                yield
            self._place += 1
            depth += 1 if character in b"{[" else -1
            if depth == 0:
                return

    def _string(self) -> Generator[None, None, tuple[int, int]]:
        """From its first quote to behind its last."""
        begin = self._place
        if self._peek() != b'"':
            raise NotAnObject("The body is not valid JSON: a name is no string.")
        self._place += 1
        while True:
            quote = self._body.find(b'"', self._place, self._place + _WINDOW)
            if quote < 0:
                self._place += _WINDOW
                if self._place >= len(self._body):
                    raise NotAnObject("The body is not valid JSON: a string has no end.")
                yield
                continue
            if self._count():
                yield
            self._place = quote + 1
            if (yield from self._backslashes_before(quote, begin)) % 2 == 0:
                return begin, self._place

    def _backslashes_before(self, place: int, begin: int) -> Generator[None, None, int]:
        count = 0
        while place > begin + 1:
            part = self._body[max(begin + 1, place - _WINDOW) : place]
            alone = len(part) - len(part.rstrip(b"\\"))
            count += alone
            if alone < len(part):
                break
            place -= len(part)
            yield
        return count

    def _count(self) -> bool:
        """Whether to stop here."""
        self._tokens += 1
        if self._tokens > MOST_TOKENS:
            raise TooMany(f"JSON of more than {MOST_TOKENS} values")
        return self._tokens % STEP == 0

    def _peek(self) -> bytes:
        return self._body[self._place : self._place + 1]

    def _take(self) -> bytes:
        self._place += 1
        return self._body[self._place - 1 : self._place]

    def _skip_space(self) -> Generator[None, None, None]:
        while self._place < len(self._body) and self._body[self._place] in _SPACE:
            part = self._body[self._place : self._place + _WINDOW]
            self._place += len(part) - len(part.lstrip(_SPACE))
            if len(part) == _WINDOW:
                yield

    def _end(self) -> Generator[None, None, None]:
        yield from self._skip_space()
        if self._place < len(self._body):
            raise NotAnObject("The body is not valid JSON: something follows the object.")


_LONGEST_NAME = 1024


def _text(quoted: bytes) -> str | None:
    """The name between quotes; None for one that is too long to be asked for."""
    if len(quoted) > _LONGEST_NAME:
        return None
    if b"\\" not in quoted:
        return quoted[1:-1].decode(errors="replace")
    try:
        return str(json.loads(quoted, strict=False))
    except ValueError:
        return None
