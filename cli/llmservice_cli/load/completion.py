"""What a server says of a completion, read with bounds: a whole answer, or one event of a streamed one.

The shape is the OpenAI API's `text_completion` and `chat.completion`, as vLLM writes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_runtime.bounded_json import Reader, Refused, clean, parse

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
