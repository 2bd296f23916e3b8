"""Whether an answer is whole. Pure: bytes in, what is wrong with them out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from llmservice_cli.bench.traffic import said

from .row import Loss


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with an answer."""

    loss: str
    error: str


def check_body(body: bytes, asked: int) -> Wrong | None:
    """An answer that came in one piece; `asked` is the number of tokens that it has to have."""
    try:
        document = json.loads(body)
        (choice,) = document["choices"]
        return _check(choice["finish_reason"], document["usage"], asked)
    except (ValueError, KeyError, TypeError) as error:
        return Wrong(Loss.NOT_UNDERSTOOD, f"{type(error).__name__}: {error}: {body[:200].decode(errors='replace')}")


class Events:
    """The events of one streamed answer, taken as they come."""

    def __init__(self, asked: int) -> None:
        self._asked = asked
        self._usage: dict[str, Any] | None = None
        self._finish_reason: str | None = None
        self._wrong: Wrong | None = None
        self._is_done = False
        self.has_begun = False

    def take(self, line: str) -> None:
        """One line of the stream."""
        if not line.startswith("data:"):
            return
        data = line[5:].strip()
        if data == "[DONE]":
            self._is_done = True
            return
        try:
            self._read(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._wrong = self._wrong or Wrong(Loss.NOT_UNDERSTOOD, f"{type(error).__name__}: {error}: {data[:200]}")

    def _read(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self._wrong = self._wrong or Wrong(Loss.STREAM_ERROR, said(json.dumps(event).encode()))
            return
        for choice in event["choices"]:
            self.has_begun = True
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
        self._usage = event.get("usage") or self._usage

    def check(self) -> Wrong | None:
        """After the last line."""
        if self._wrong is not None:
            return self._wrong
        if self._finish_reason == "abort":
            return _check(self._finish_reason, {}, self._asked)
        if not self._is_done:
            return Wrong(Loss.NOT_DONE, "the stream ended without [DONE]")
        if self._usage is None:
            return Wrong(Loss.NOT_UNDERSTOOD, "the stream has no usage, which was asked for")
        return _check(self._finish_reason, self._usage, self._asked)


def _check(finish_reason: str | None, usage: dict[str, Any], asked: int) -> Wrong | None:
    if finish_reason == "abort":
        return Wrong(Loss.ABORTED, "finish_reason is abort: the server gave the request up")
    if not finish_reason:
        return Wrong(Loss.UNFINISHED, "there is no finish_reason")
    prompt, written, total = (int(usage[f"{name}_tokens"]) for name in ("prompt", "completion", "total"))
    if written != asked:
        return Wrong(Loss.WRONG_LENGTH, f"{written} tokens of {asked}; finish_reason is {finish_reason}")
    if prompt < 1 or total != prompt + written:
        return Wrong(Loss.NOT_UNDERSTOOD, f"usage does not add up: {json.dumps(usage)}")
    return None
