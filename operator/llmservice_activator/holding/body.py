"""Members of a JSON object and parts of a form, found without building values.

A body of 32 MiB may hold a million members. A parser needs two seconds for the worst such body, in which nobody else is
answered. These readers stop every few hundred tokens, or every window, so that their caller can let others go first.

JSON: every object that `json.loads` takes in UTF-8, and some more; what is skipped is checked by vLLM.
multipart/form-data (RFC 7578): as vLLM's server reads it (python-multipart), where it is valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass

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


MOST_PARTS = 64
LARGEST_PART_HEAD = 33_792
"""vLLM's server takes eight lines of 4,224 bytes."""
LONGEST_PART = 4096
"""Bytes that are kept of one."""
LONGEST_BOUNDARY = 256
MOST_LIKE_BOUNDARIES = 256
"""Lines of a part that begin as a boundary does, which RFC 2046 forbids and vLLM's server takes."""
MOST_SEMICOLONS = 1024
"""Of one field; each takes its time, and no file system has names so long."""
_LONGEST_PADDING = 64
"""Spaces behind a boundary."""
_PADDING = " \t"


class NotAForm(ValueError):
    """It is not multipart/form-data with this boundary."""


@dataclass(frozen=True, slots=True)
class Part:
    """How one begins."""

    value: bytes
    """At most LONGEST_PART of it."""
    is_file: bool


def parts(body: bytes, boundary: bytes) -> Generator[None, None, Mapping[str, Part]]:
    """The parts by name; of one that occurs again, the last. It stops every window.

    NotAForm, also of one with more parts than any endpoint of vLLM takes.
    """
    if not boundary:
        raise NotAForm("The Content-Type of the form has no valid boundary, or a charset other than utf-8.")
    found: dict[str, Part] = {}
    reader = _Reader(body, b"\r\n--" + boundary)
    reader.to_first()
    for _ in range(MOST_PARTS + 1):
        if reader.is_at_end:
            return found
        options = parameters(reader.disposition())
        yield
        content = yield from reader.content()
        if "name" in options:
            found[options["name"]] = Part(content, is_file="filename" in options)
    raise NotAForm("The body is not valid multipart/form-data.")


def parameters(field: str) -> dict[str, str]:
    """Of a field such as Content-Type, by name in lower case; of one that occurs again, the last.

    Names with a `*` (RFC 2231) count for nothing in a form (RFC 7578, 4.2). A field with more than MOST_SEMICOLONS has
    none.
    """
    if field.count(";") > MOST_SEMICOLONS:
        return {}
    found: dict[str, str] = {}
    for piece in _pieces(field):
        name, _, value = piece.partition("=")
        value = value.strip(_PADDING)
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1].replace("\\\\", "\\").replace('\\"', '"')
        if "*" not in name:
            found[name.strip(_PADDING).lower()] = value
    return found


def _pieces(field: str) -> list[str]:
    """Between semicolons; of which none counts behind an odd number of quotes. A backslash takes its quote away."""
    found: list[list[str]] = []
    is_open = False
    for piece in field.split(";")[1:]:
        if is_open:
            found[-1].append(piece)
        else:
            found.append([piece])
        is_open ^= (piece.count('"') - piece.count('\\"')) % 2 == 1
    return [";".join(each) for each in found]


class _Reader:
    """Goes from one boundary to the next."""

    def __init__(self, body: bytes, mark: bytes) -> None:
        self._body, self._mark, self._place, self._like = body, mark, 0, 0
        self.is_at_end = False
        """The last boundary was that of the end."""

    def to_first(self) -> None:
        """To behind the first boundary, before which vLLM's server takes empty lines alone; NotAForm."""
        head, first = self._body[:_LONGEST_PADDING], self._mark.removeprefix(b"\r\n")
        begin = len(head) - len(head.lstrip(b"\r\n"))
        if not (self._body.startswith(first, begin) and self._is_boundary(begin + len(first))):
            raise NotAForm("The body is not valid multipart/form-data: it does not begin with its boundary.")

    def disposition(self) -> str:
        """The Content-Disposition of the part that begins here, and on to its content; empty where it has none."""
        end = self._body.find(b"\r\n\r\n", self._place - len(b"\r\n"), self._place + LARGEST_PART_HEAD)
        if end < 0:
            raise NotAForm("The body is not valid multipart/form-data.")
        fields = [line.partition(b":") for line in self._body[self._place : end].split(b"\r\n")]
        self._place = end + len(b"\r\n\r\n")
        found = [value for name, _, value in fields if name.strip().lower() == b"content-disposition"]
        return found[-1].decode(errors="replace") if found else ""

    def content(self) -> Generator[None, None, bytes]:
        """How the part begins, and on to behind the next boundary; NotAForm."""
        begin = self._place
        while self._place < len(self._body):
            at = self._body.find(self._mark, self._place, self._place + _WINDOW + len(self._mark))
            if at >= 0 and self._is_boundary(at + len(self._mark)):
                return self._body[begin : min(at, begin + LONGEST_PART)]
            self._place = at + len(self._mark) if at >= 0 else self._place + _WINDOW
            self._like += at >= 0
            if self._like > MOST_LIKE_BOUNDARIES:
                raise NotAForm("The body is not valid multipart/form-data: lines begin as its boundary does.")
            yield
        raise NotAForm("The body is not valid multipart/form-data: it ends without its boundary.")

    def _is_boundary(self, place: int) -> bool:
        """Whether its line ends here, behind spaces, and on to the next; or it is that of the end."""
        tail = self._body[place : place + _LONGEST_PADDING]
        self.is_at_end = tail.startswith(b"--")
        spaces = len(tail) - len(tail.lstrip(b" \t"))
        is_whole = self._body.startswith(b"\r\n", place + spaces)
        if is_whole:
            self._place = place + spaces + len(b"\r\n")
        return self.is_at_end or is_whole
