"""Whether an answer is whole. Pure: bytes in, what is wrong with them out."""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_runtime.bounded_json import Refused

from llmservice_cli.completion import Completion, Usage, completion_of, error_text

from .row import Loss


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with an answer."""

    loss: str
    error: str


_NO_USAGE = Wrong(Loss.NOT_UNDERSTOOD, "there is no usage, which was asked for")


def check_body(body: bytes, asked: int) -> Wrong | None:
    """An answer that came in one piece; `asked` is the number of tokens that it has to have."""
    try:
        answer = completion_of(body)
    except Refused as why:
        return _not_understood(str(why), body.decode(errors="replace"))
    if answer.finish_reasons is None or len(answer.finish_reasons) != 1:
        return _not_understood("there is not one choice", body.decode(errors="replace"))
    return _check(answer.finish_reasons[0], answer.usage, asked)


def _not_understood(why: str, text: str) -> Wrong:
    return Wrong(Loss.NOT_UNDERSTOOD, f"{why}: {text[:200]}")


class Events:
    """The events of one streamed answer, taken as they come."""

    def __init__(self, asked: int) -> None:
        self._asked = asked
        self._usage: Usage | None = None
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
            event = completion_of(data)
        except Refused as why:
            self._wrong = self._wrong or _not_understood(str(why), data)
            return
        if event.is_error:
            self._wrong = self._wrong or Wrong(Loss.STREAM_ERROR, error_text(data))
        elif event.finish_reasons is None:
            self._wrong = self._wrong or _not_understood("there are no choices", data)
        else:
            self._read(event, event.finish_reasons)

    def _read(self, event: Completion, finish_reasons: tuple[str | None, ...]) -> None:
        for reason in finish_reasons:
            self.has_begun = True
            self._finish_reason = reason or self._finish_reason
        self._usage = event.usage or self._usage

    def check(self) -> Wrong | None:
        """After the last line."""
        if self._wrong is not None:
            return self._wrong
        if self._finish_reason == "abort":
            return _check(self._finish_reason, None, self._asked)
        if not self._is_done:
            return Wrong(Loss.NOT_DONE, "the stream ended without [DONE]")
        if self._usage is None:
            return _NO_USAGE
        return _check(self._finish_reason, self._usage, self._asked)


def _check(finish_reason: str | None, usage: Usage | None, asked: int) -> Wrong | None:
    if finish_reason == "abort":
        return Wrong(Loss.ABORTED, "finish_reason is abort: the server gave the request up")
    if not finish_reason:
        return Wrong(Loss.UNFINISHED, "there is no finish_reason")
    if usage is None:
        return _NO_USAGE
    if usage.prompt is None or usage.completion is None or usage.total is None:
        return Wrong(Loss.NOT_UNDERSTOOD, f"usage is not whole: {usage}")
    if usage.completion != asked:
        return Wrong(Loss.WRONG_LENGTH, f"{usage.completion} tokens of {asked}; finish_reason is {finish_reason}")
    if usage.prompt < 1 or usage.total != usage.prompt + usage.completion:
        return Wrong(Loss.NOT_UNDERSTOOD, f"usage does not add up: {usage}")
    return None
