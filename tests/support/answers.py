"""What a server answers, reduced to what clients rely on: statuses, keys and types, how streams end, error texts."""

from __future__ import annotations

import json
from typing import Any

import httpx

Shape = Any


def observed(answer: httpx.Response) -> dict[str, Shape]:
    """Status, body and the headers that tell how it is sent."""
    kind = answer.headers.get("content-type", "")
    body: Shape
    if "event-stream" in kind:
        body = events(answer.text)
    elif "json" in kind:
        document = answer.json()
        # An error's text is part of the contract; an answer's is not.
        body = document if answer.is_error else shape(document)
    else:
        body = answer.text[:80] if answer.is_error else ""
    names = ("content-type", "transfer-encoding", "allow")
    return {
        "status": answer.status_code,
        "headers": {name: answer.headers[name] for name in names if name in answer.headers},
        "body": body,
    }


def events(text: str) -> list[Shape]:
    """The events of a stream; those of the same shape that follow each other are one."""
    found: list[Shape] = []
    for event in text.split("\n\n"):
        if not event:
            continue
        data = event.removeprefix("data: ")
        seen = data if data == "[DONE]" else shape(json.loads(data))
        if not found or found[-1] != seen:
            found.append(seen)
    return found


def shape(value: Any, key: str = "") -> Shape:
    """Keys and types. Counts of tokens and why something ended are facts, and kept."""
    if isinstance(value, dict):
        return {name: shape(value[name], name) for name in sorted(value)}
    if isinstance(value, list):
        return [shape(item) for item in value]
    if key in ("finish_reason", "object", "role", "completion_tokens", "owned_by") or value is None:
        return value
    return type(value).__name__
