"""JSON from the API server. `parsed` reads all of it, whatever users put into the fields that it stores unread.

The API server checks what it knows, and keeps the `data` of a ControllerRevision as it was sent: numbers that no double
holds, half of a surrogate pair, nesting 10,000 deep. orjson refuses the whole answer then, a list of 250 objects or a
watch, for the sake of one object in one namespace. Such values are read as null or with a replacement character, and
the objects beside them as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

DEEPEST = 100
"""Levels that are read. orjson writes 254 of them, and no object of Kubernetes needs 40."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]|[^\s"\[\]{},:]+|[\s,:]+|.', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF = re.compile(
    rb"(\\\\)|(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_LONGEST_NUMBER = 40


def parsed(raw: bytes) -> Any:
    """The value; orjson.JSONDecodeError, a ValueError, where it is no JSON at all."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return orjson.loads(b"".join(_readable(raw)))


def _readable(raw: bytes) -> Iterator[bytes]:
    """The same text, with what orjson does not read replaced. One pass, without recursion."""
    depth = 0
    for found in _TOKEN.finditer(raw):
        token = found[0]
        first = token[:1]
        if first in b"]}":
            depth -= 1
            if depth < DEEPEST:
                yield token
        elif first in b"[{":
            depth += 1
            if depth <= DEEPEST:
                yield token
            elif depth == DEEPEST + 1:
                yield b"null"
        elif depth <= DEEPEST:
            yield _scalar(token)


def _scalar(token: bytes) -> bytes:
    if token[:1] == b'"':
        return (
            _HALF.sub(lambda half: half[0] if half[1] or half[2] else b"\\ufffd", token)
            if _SURROGATE.search(token)
            else token
        )
    if token[:1] in b"-0123456789" and (len(token) > _LONGEST_NUMBER or b"e" in token.lower()):
        try:
            orjson.loads(token)
        except orjson.JSONDecodeError:
            return b"null"
    return token
