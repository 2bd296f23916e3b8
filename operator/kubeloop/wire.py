"""JSON from the API server. `parsed` reads all of it, whatever users put into fields that are stored unchecked.

The API server stores the `data` of a ControllerRevision as it was sent: numbers that no double holds, half of a
surrogate pair, nesting 10,000 deep. orjson then refuses the whole answer, such as a list of 250 objects. They are read
as null or with a replacement character, and all other values unchanged, in a thread: it takes up to 100 times as long.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

DEEPEST = 100
"""Levels that are read. orjson writes 254 of them, and no object of Kubernetes needs 40."""
_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_HALF = re.compile(
    rb"(\\\\)|(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


async def parsed(raw: bytes) -> Any:
    """The value; orjson.JSONDecodeError, a ValueError, where it is no JSON at all."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return await asyncio.to_thread(lenient, raw)


def lenient(raw: bytes) -> Any:
    """The same, of a text that orjson refuses; each step only where the one before did not do."""
    whole = _HALF.sub(lambda half: half[0] if half[1] or half[2] else b"\\ufffd", raw)
    try:
        return orjson.loads(whole)
    except orjson.JSONDecodeError as error:
        refused = error
    shallow = b"".join(_shallow(whole))
    try:
        return orjson.loads(shallow)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(shallow, parse_int=_number, parse_float=_number, parse_constant=lambda _: None)
    except ValueError:
        raise refused from None


def _shallow(raw: bytes) -> Iterator[bytes]:
    """The same text with null for what is deeper than DEEPEST. One pass, without recursion."""
    depth = kept = 0
    for found in _BRACKET.finditer(raw):
        first = raw[found.start()]
        if first in b"[{":
            depth += 1
            if depth == DEEPEST + 1:
                yield raw[kept : found.start()] + b"null"
        elif first in b"]}":
            depth -= 1
            if depth == DEEPEST:
                kept = found.end()
    if depth <= DEEPEST:
        yield raw[kept:]


def _number(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
