"""A completion as a server sends it: read with bounds, and whether it is whole. Pure: bytes in, what is wrong out.

The shape is the OpenAI API's `text_completion` and `chat.completion`, as vLLM writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from llmservice_runtime.bounded_json import Reader, Refused, clean, parse

LONGEST_EVENT = 2**20
"""Bytes of a line of a stream."""
LONGEST = 32 << 20
"""Bytes of an answer in one piece: the longest contexts' text is a tenth of it."""
_MOST_PARTS, _MOST_CHOICES = 10_000, 1024
"""Of the JSON of one event; of an answer."""
_ERROR_CHARACTERS = 500


class Loss(StrEnum):
    """Ways not to be answered whole. A status other than 200 is `http-` and its number."""

    NOT_CONNECTED = "not-connected"  # refused, not reached in time, or the name is unknown
    DISCONNECTED = "disconnected"  # the connection ended before an answer began
    CUT = "cut"  # it ended in the middle of the answer
    NOT_DONE = "not-done"  # a stream ended in good order but without [DONE]
    TIMEOUT = "timeout"
    ABORTED = "aborted"  # the server says that it gave up: finish_reason is `abort`
    UNFINISHED = "unfinished"  # there is no finish_reason
    WRONG_LENGTH = "wrong-length"  # another number of tokens than was asked for, by the server's own count
    NOT_UNDERSTOOD = "not-understood"  # not the OpenAI API's form
    TOO_LONG = "too-long"  # more bytes than the tokens that were asked for can take
    STREAM_ERROR = "stream-error"  # an error object inside a stream


@dataclass(frozen=True, slots=True)
class Failure:
    loss: str  # a Loss, or `http-STATUS`
    error: str


def http_failure(status: int, body: bytes) -> Failure:
    """A refusal by its status, with the message in its body."""
    return Failure(f"http-{status}", error_text(body))


def error_text(body: str | bytes) -> str:
    """The message in an error's body, or its beginning."""
    try:
        found = parse(body, LONGEST)
    except Refused:
        return clean((body if isinstance(body, str) else body.decode(errors="replace"))[:300]).strip()
    if isinstance(found, dict):
        inner = found.get("error", found)
        message = inner.get("message") if isinstance(inner, dict) else inner
        return clean(str(message or found.get("message") or found)[:_ERROR_CHARACTERS])
    return clean(str(found)[:300])


@dataclass
class Lines:
    """Lines of a stream of at most `most` bytes. Refused where one, or all of them, are too long."""

    most: int
    taken: int = 0
    """Bytes."""
    _rest: bytearray = field(default_factory=bytearray)

    def take(self, data: bytes) -> Iterator[str]:
        """Those that end in it. An end without a newline is no line: the events of a stream end with an empty one."""
        self.taken += len(data)
        if self.taken > self.most:
            raise Refused(f"it is longer than {self.most} bytes")
        self._rest += data
        *whole, self._rest = self._rest.split(b"\n") if b"\n" in data else (self._rest,)  # looked through once
        for line in (*whole, self._rest):
            if len(line) > LONGEST_EVENT:
                raise Refused(f"an event is longer than {LONGEST_EVENT} bytes")
        for line in whole:
            yield line.rstrip(b"\r").decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens; None for those that the server does not give."""

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None


class Answer:
    """A completion as far as it has come.

    `asked` is the number of tokens that it has to have. None: any number above zero will do, and neither usage nor a
    finish_reason is required.
    """

    name = "the answer"
    """Of an event or a whole answer, where it is said what is wrong with it."""

    def __init__(self, asked: int | None = None) -> None:
        self._asked = asked
        self.is_done = False
        self.failure: Failure | None = None
        """The first one."""
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.pieces = 0

    @property
    def prompt_tokens(self) -> int | None:
        """By the server's count."""
        return None if self.usage is None else self.usage.prompt

    @property
    def output_tokens(self) -> int:
        """By the server's count; without one, a token for each piece."""
        counted = None if self.usage is None else self.usage.completion
        return self.pieces if counted is None else counted

    def take(self, line: str) -> Sequence[Reader]:
        """The choices in a line of a stream: a piece each. Comments have none, nor has what is not understood."""
        if not line.startswith("data:"):
            return ()
        data = line[5:].strip()
        if data == "[DONE]":
            self.is_done = True
            return ()
        try:
            event = Reader(parse(data, LONGEST_EVENT, max_items=_MOST_PARTS), self.name)
            choices = self._read(event)
        except Refused as why:
            self._fail(self.not_understood(str(why), data))
            return ()
        if event.has("error"):
            self._fail(Failure(Loss.STREAM_ERROR, error_text(data)))
        elif choices is None and self._asked is not None:
            self._fail(self.not_understood("there are no choices", data))
        self.pieces += len(choices or ())
        return choices or ()

    def check(self) -> Failure | None:
        """Of a stream that has ended in good order: what it lacks."""
        if self.failure is not None:
            return self.failure
        if self.finish_reason != "abort":
            if not self.is_done:
                return Failure(Loss.NOT_DONE, "the stream ended without [DONE]")
            if self._asked is None:
                return None if self.pieces else Failure(Loss.NOT_UNDERSTOOD, "no token came")
            if self.usage is None:
                return _NO_USAGE
        return self._check()

    def check_whole(self, body: bytes) -> Failure | None:
        """Of an answer that comes in one piece, of a known length: what it lacks."""
        try:
            choices = self._read(Reader(parse(body, LONGEST), self.name))
        except Refused as why:
            return self.not_understood(str(why), body.decode(errors="replace"))
        if choices is None or len(choices) != 1:
            return self.not_understood("there is not one choice", body.decode(errors="replace"))
        return self._check()

    def not_understood(self, why: str, text: str) -> Failure:
        return Failure(Loss.NOT_UNDERSTOOD, f"{why}: {clean(text[:200])}")

    def _fail(self, failure: Failure) -> None:
        self.failure = self.failure or failure

    def _read(self, document: Reader) -> Sequence[Reader] | None:
        """The choices; None where there is no list of them, or an error in their place."""
        if document.has("error"):
            return None
        choices = [Reader(choice, "a choice") for choice in document.items("choices", _MOST_CHOICES)]
        for choice in choices:
            self.finish_reason = choice.text("finish_reason", 64, default="") or self.finish_reason
        if document.has("usage"):
            given = document.within("usage")
            names = ("prompt_tokens", "completion_tokens", "total_tokens")
            self.usage = Usage(*(given.integer(name) if given.has(name) else None for name in names))
        return choices if document.has("choices") else None

    def _check(self) -> Failure | None:
        usage = self.usage
        if self.finish_reason == "abort":
            return Failure(Loss.ABORTED, "finish_reason is abort: the server gave the request up, or is being stopped")
        if not self.finish_reason:
            return Failure(Loss.UNFINISHED, "there is no finish_reason")
        if usage is None:
            return _NO_USAGE
        if usage.prompt is None or usage.completion is None or usage.total is None:
            return Failure(Loss.NOT_UNDERSTOOD, f"usage is not whole: {usage}")
        if usage.completion != self._asked:
            given = f"{usage.completion} tokens of {self._asked}; finish_reason is {self.finish_reason}"
            return Failure(Loss.WRONG_LENGTH, given)
        if usage.prompt < 1 or usage.total != usage.prompt + usage.completion:
            return Failure(Loss.NOT_UNDERSTOOD, f"usage does not add up: {usage}")
        return None


_NO_USAGE = Failure(Loss.NOT_UNDERSTOOD, "there is no usage, which was asked for")
