"""One streamed answer of a chat: bytes in, what the model says out. Pure, and bounded: the server is not trusted."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmservice_runtime.bounded_json import Reader, Refused, parse

from llmservice_cli.load.answer import Failure, Loss
from llmservice_cli.load.completion import Usage, completion_in, error_text
from llmservice_cli.load.lines import LONGEST_EVENT

LONGEST_ANSWER = 16 * 2**20
"""Bytes of a stream; the longest contexts give less."""
MOST_PARTS = 10_000
"""Of the JSON of one event."""
MOST_CHOICES = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event adds."""

    text: str = ""
    reasoning: str = ""


@dataclass
class Reply:
    """An answer as far as it has come. Times are the clock's seconds."""

    sent: float
    text: str = ""
    reasoning: str = ""
    first: float | None = None
    """When the first piece of text or reasoning came."""
    latest: float | None = None
    finish_reason: str | None = None
    failure: Failure | None = None
    _pieces: int = 0
    _usage: Usage = field(default_factory=Usage)
    _is_done: bool = False
    _texts: list[Piece] = field(default_factory=list)

    def take(self, line: str, now: float) -> Piece | None:
        """What a line adds; None where that is nothing. Comments, and lines after a failure, are ignored."""
        data = line.removeprefix("data:").strip()
        if self.failure is not None or not line.startswith("data:"):
            return None
        if data == "[DONE]":
            self._is_done = True
            return None
        try:
            piece = self._event(data)
        except Refused as why:
            self.failure = Failure(Loss.NOT_UNDERSTOOD, f"an event of the answer is not understood: {why}")
            return None
        if piece is None or piece == Piece():
            return None
        self.first = now if self.first is None else self.first
        self.latest = now
        self._pieces += 1
        self._texts.append(piece)
        return piece

    def _event(self, data: str) -> Piece | None:
        document = Reader(parse(data, LONGEST_EVENT, max_items=MOST_PARTS), "the event")
        found = completion_in(document)
        if found.is_error:
            self.failure = Failure(Loss.STREAM_ERROR, error_text(data))
            return None
        self._usage = found.usage or self._usage
        for reason in found.finish_reasons or ():
            self.finish_reason = reason or self.finish_reason
        for choice in document.items("choices", MOST_CHOICES):
            chosen = Reader(choice, "a choice")
            if chosen.has("delta"):
                return _piece(chosen.within("delta"))
        return None

    def end(self) -> None:
        """The stream has ended."""
        self.text = "".join(piece.text for piece in self._texts)
        self.reasoning = "".join(piece.reasoning for piece in self._texts)
        if self.failure is None and self.finish_reason == "abort":
            self.failure = Failure(Loss.ABORTED, "the server gave the request up, or is being stopped")
        if self.failure is None and not self._is_done:
            self.failure = Failure(Loss.CUT, "the answer ended before it was whole")

    @property
    def prompt_tokens(self) -> int | None:
        """By the server's count."""
        return self._usage.prompt

    @property
    def tokens(self) -> int:
        """By the server's count; without one, a token for each piece."""
        return self._pieces if self._usage.completion is None else self._usage.completion

    @property
    def first_token_seconds(self) -> float | None:
        """From the request to the first token."""
        return None if self.first is None else self.first - self.sent

    @property
    def tokens_per_second(self) -> float | None:
        """Of the tokens after the first one; None where there is no time between two pieces."""
        if self.first is None or self.latest is None or self.latest <= self.first or self.tokens < 2:
            return None
        return (self.tokens - 1) / (self.latest - self.first)


def _piece(delta: Reader) -> Piece:
    """`reasoning` is vLLM's name; `reasoning_content` what it was before."""
    reasoning = "reasoning" if delta.has("reasoning") else "reasoning_content"
    return Piece(delta.text("content", LONGEST_EVENT, default=""), delta.text(reasoning, LONGEST_EVENT, default=""))
