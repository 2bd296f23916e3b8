"""JSON from the API server. `parsed` accepts anything that users can store in unchecked fields.

The API server stores the `data` of a ControllerRevision as sent: numbers beyond a double, half of a surrogate pair,
nesting 10,000 deep. orjson then refuses the whole response, such as a list of 250 objects. Such values become null or a
replacement character; all others are unchanged. This runs in a thread, since it takes up to 100 times as long.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

MAX_DEPTH = 100
"""Levels that are kept. orjson writes 254 levels, and no object of Kubernetes needs 40."""
_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_LONE_SURROGATE = re.compile(
    rb"(\\\\)|(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


async def parsed(raw: bytes) -> Any:
    """The value; orjson.JSONDecodeError, a ValueError, for text that is not JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return await asyncio.to_thread(lenient, raw)


def lenient(raw: bytes) -> Any:
    """The value of a text that orjson refuses. Each step runs only if the one before was not enough."""
    whole = _LONE_SURROGATE.sub(lambda half: half[0] if half[1] or half[2] else b"\\ufffd", raw)
    try:
        return orjson.loads(whole)
    except orjson.JSONDecodeError as error:
        refused = error
    shallow = b"".join(_without_deep_values(whole))
    try:
        return orjson.loads(shallow)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(shallow, parse_int=_number, parse_float=_number, parse_constant=lambda _: None)
    except ValueError:
        raise refused from None


def _without_deep_values(raw: bytes) -> Iterator[bytes]:
    """The text with null for everything deeper than MAX_DEPTH. One pass, without recursion."""
    depth = kept = 0
    for found in _BRACKET.finditer(raw):
        first = raw[found.start()]
        if first in b"[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                yield raw[kept : found.start()] + b"null"
        elif first in b"]}":
            depth -= 1
            if depth == MAX_DEPTH:
                kept = found.end()
    if depth <= MAX_DEPTH:
        yield raw[kept:]


def _number(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
