"""Reads members of a JSON object and parts of a multipart form without building values.

A body of 32 MiB may have a million members, for which a JSON parser needs two seconds; the event loop would be blocked
meanwhile. These readers yield every few hundred tokens or every window, so that the caller can let other tasks run.

JSON: every object that `json.loads` accepts in UTF-8, and some more; vLLM checks what is skipped. multipart/form-data
(RFC 7578): valid forms are read as vLLM's server reads them (python-multipart).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass

MOST_TOKENS = 250_000
"""Brackets, strings, and quotes in strings; numbers in a list do not count. So many take one to two seconds of CPU."""
STEP = 256
"""Tokens between two yields."""
_WINDOW = 1 << 16
"""Bytes that are searched at a time."""
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_DEEP = re.compile(rb'["{}\[\]]')
_TOP = re.compile(rb'["{}\[\],:]')
_LONGEST_SCALAR = 64
"""Bytes; `true`, `null` and usual numbers are shorter."""

Members = dict[str, bytes]
"""The JSON text of each value by its name; for an object or array its first byte."""
Scan = Generator[None, None, Members]


class NotAnObject(ValueError):
    """The body is other JSON, or not JSON."""


class TooMany(ValueError):
    """The body has more than MOST_TOKENS."""


def members(body: bytes, names: Collection[str]) -> Scan:
    """The values of these names; of duplicates the last, as in parsers. Yields every few tokens.

    Raises NotAnObject or TooMany.
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
        """Skip a string; returns the positions of its first quote and after its last."""
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
        """Count a token; returns whether to yield."""
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
    """The name between quotes; None for one that is longer than any that is asked for."""
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
"""vLLM's server accepts eight lines of 4,224 bytes."""
LONGEST_PART = 4096
"""Bytes that are kept of a part."""
LONGEST_BOUNDARY = 256
MOST_LIKE_BOUNDARIES = 256
"""Lines of a part that start like a boundary, which RFC 2046 forbids and vLLM's server accepts."""
MOST_SEMICOLONS = 1024
"""Of one header field: each takes time, and no file system has names of that length."""
_LONGEST_PADDING = 64
"""Spaces after a boundary."""
_PADDING = " \t"


class NotAForm(ValueError):
    """The body is not multipart/form-data with this boundary."""


@dataclass(frozen=True, slots=True)
class Part:
    """The beginning of a part."""

    value: bytes
    """At most LONGEST_PART bytes."""
    is_file: bool


def parts(body: bytes, boundary: bytes) -> Generator[None, None, Mapping[str, Part]]:
    """The parts by name; of duplicates the last. Yields every window.

    NotAForm, also for more parts than any endpoint of vLLM accepts.
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
    """The parameters of a field such as Content-Type, by name in lower case; of duplicates the last.

    Names with a `*` (RFC 2231) have no meaning in a form (RFC 7578, 4.2). Empty for more than MOST_SEMICOLONS.
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
    """The text between semicolons, except those inside quotes. A backslash escapes a quote."""
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
    """Moves from one boundary to the next."""

    def __init__(self, body: bytes, mark: bytes) -> None:
        self._body, self._mark, self._place, self._like = body, mark, 0, 0
        self.is_at_end = False
        """Whether the last boundary was the final one."""

    def to_first(self) -> None:
        """Move behind the first boundary; only empty lines may precede it, as in vLLM's server. NotAForm."""
        head, first = self._body[:_LONGEST_PADDING], self._mark.removeprefix(b"\r\n")
        begin = len(head) - len(head.lstrip(b"\r\n"))
        if not (self._body.startswith(first, begin) and self._is_boundary(begin + len(first))):
            raise NotAForm("The body is not valid multipart/form-data: it does not begin with its boundary.")

    def disposition(self) -> str:
        """Returns the part's Content-Disposition, or "", and moves to its content."""
        end = self._body.find(b"\r\n\r\n", self._place - len(b"\r\n"), self._place + LARGEST_PART_HEAD)
        if end < 0:
            raise NotAForm("The body is not valid multipart/form-data.")
        fields = [line.partition(b":") for line in self._body[self._place : end].split(b"\r\n")]
        self._place = end + len(b"\r\n\r\n")
        found = [value for name, _, value in fields if name.strip().lower() == b"content-disposition"]
        return found[-1].decode(errors="replace") if found else ""

    def content(self) -> Generator[None, None, bytes]:
        """Returns the beginning of the content, and moves behind the next boundary; NotAForm."""
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
        """Whether a boundary's line ends here, after spaces, or it is the final one; moves behind it."""
        tail = self._body[place : place + _LONGEST_PADDING]
        self.is_at_end = tail.startswith(b"--")
        spaces = len(tail) - len(tail.lstrip(b" \t"))
        is_whole = self._body.startswith(b"\r\n", place + spaces)
        if is_whole:
            self._place = place + spaces + len(b"\r\n")
        return self.is_at_end or is_whole
