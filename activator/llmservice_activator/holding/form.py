"""multipart/form-data (RFC 7578) without building it: which parts there are, and how each begins.

Read as vLLM's server does (python-multipart), where it is valid. The reader stops every window, as that of JSON does.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

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
_WINDOW = 1 << 16
"""Bytes that are searched at a time."""
_SPACE = " \t"


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
        value = value.strip(_SPACE)
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1].replace("\\\\", "\\").replace('\\"', '"')
        if "*" not in name:
            found[name.strip(_SPACE).lower()] = value
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
