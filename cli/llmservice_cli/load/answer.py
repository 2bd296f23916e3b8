"""Whether an answer is whole. Pure: bytes in, what is wrong with them out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from llmservice_runtime.bounded_json import Reader, Refused, clean, parse

# Cuts a streamed answer into lines, with bounds: the server is not trusted. Pure.

LONGEST_EVENT = 2**20
"""Bytes of a line."""


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


# What a server says of a completion, read with bounds: a whole answer, or one event of a streamed one.
#
# The shape is the OpenAI API's `text_completion` and `chat.completion`, as vLLM writes them.

LONGEST = 32 << 20
"""Bytes of an answer: the longest contexts' text is a tenth of it."""
_MOST_CHOICES = 1024
_ERROR_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens; None for those that the server does not give."""

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion, or an event of one."""

    finish_reasons: tuple[str | None, ...] | None
    """One for each choice; None where there is no list of choices."""
    usage: Usage | None = None
    is_error: bool = False
    """There is an error in place of a completion."""


def completion_of(text: str | bytes) -> Completion:
    """Raises Refused where the text is no such document."""
    return completion_in(Reader(parse(text, LONGEST), "the answer"))


def completion_in(document: Reader) -> Completion:
    """The same of a document that was parsed."""
    if document.has("error"):
        return Completion(None, is_error=True)
    choices = [Reader(choice, "a choice") for choice in document.items("choices", _MOST_CHOICES)]
    return Completion(
        tuple(choice.text("finish_reason", 64, default="") or None for choice in choices)
        if document.has("choices")
        else None,
        _usage(document.within("usage")) if document.has("usage") else None,
    )


def _usage(given: Reader) -> Usage:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return Usage(*(given.integer(name) if given.has(name) else None for name in names))


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


_NO_USAGE = Failure(Loss.NOT_UNDERSTOOD, "there is no usage, which was asked for")


def check_body(body: bytes, asked: int) -> Failure | None:
    """An answer that came in one piece; `asked` is the number of tokens that it has to have."""
    try:
        answer = completion_of(body)
    except Refused as why:
        return _not_understood(str(why), body.decode(errors="replace"))
    if answer.finish_reasons is None or len(answer.finish_reasons) != 1:
        return _not_understood("there is not one choice", body.decode(errors="replace"))
    return _check(answer.finish_reasons[0], answer.usage, asked)


def _not_understood(why: str, text: str) -> Failure:
    return Failure(Loss.NOT_UNDERSTOOD, f"{why}: {clean(text[:200])}")


class Events:
    """The events of one streamed answer, taken as they come.

    `asked` is the number of tokens that the answer has to have. None: any number above zero will do, and neither
    usage nor a finish_reason is required.
    """

    def __init__(self, asked: int | None) -> None:
        self._asked = asked
        self._failure: Failure | None = None
        self._is_done = False
        self._usage: Usage | None = None
        self.finish_reason: str | None = None
        self.pieces = 0

    @property
    def prompt_tokens(self) -> int | None:
        """By the server's count."""
        return None if self._usage is None else self._usage.prompt

    @property
    def output_tokens(self) -> int:
        """By the server's count; without one, a token for each piece."""
        counted = None if self._usage is None else self._usage.completion
        return self.pieces if counted is None else counted

    def take(self, line: str) -> None:
        if not line.startswith("data:"):
            return
        data = line[5:].strip()
        if data == "[DONE]":
            self._is_done = True
            return
        try:
            event = completion_of(data)
        except Refused as why:
            self._failure = self._failure or _not_understood(str(why), data)
            return
        if event.is_error:
            self._failure = self._failure or Failure(Loss.STREAM_ERROR, error_text(data))
            return
        if event.finish_reasons is None and self._asked is not None:
            self._failure = self._failure or _not_understood("there are no choices", data)
        for reason in event.finish_reasons or ():
            self.pieces += 1
            self.finish_reason = reason or self.finish_reason
        self._usage = event.usage or self._usage

    def check(self) -> Failure | None:
        if self._failure is not None:
            return self._failure
        if self.finish_reason == "abort":
            return _check(self.finish_reason, None, 0)
        if not self._is_done:
            return Failure(Loss.NOT_DONE, "the stream ended without [DONE]")
        if self._asked is not None:
            return _NO_USAGE if self._usage is None else _check(self.finish_reason, self._usage, self._asked)
        return None if self.pieces else Failure(Loss.NOT_UNDERSTOOD, "no token came")


def _check(finish_reason: str | None, usage: Usage | None, asked: int) -> Failure | None:
    if finish_reason == "abort":
        return Failure(Loss.ABORTED, "finish_reason is abort: the server gave the request up, or is being stopped")
    if not finish_reason:
        return Failure(Loss.UNFINISHED, "there is no finish_reason")
    if usage is None:
        return _NO_USAGE
    if usage.prompt is None or usage.completion is None or usage.total is None:
        return Failure(Loss.NOT_UNDERSTOOD, f"usage is not whole: {usage}")
    if usage.completion != asked:
        return Failure(Loss.WRONG_LENGTH, f"{usage.completion} tokens of {asked}; finish_reason is {finish_reason}")
    if usage.prompt < 1 or usage.total != usage.prompt + usage.completion:
        return Failure(Loss.NOT_UNDERSTOOD, f"usage does not add up: {usage}")
    return None
