"""What counts as a complete answer, whole or streamed; nothing that a server sends ends a load."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from llmservice_cli.load.answer import Answer, Failure, Loss, Usage, error_text

from tests.unit.hostile import texts

ASKED = 3
USAGE = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
CHOICE = {"index": 0, "text": "abc", "finish_reason": "length"}
NOT_UNDERSTOOD = Loss.NOT_UNDERSTOOD


def loss_of(failure: Failure | None) -> str | None:
    return None if failure is None else failure.loss


def body(finish: str | None = "length", **usage: Any) -> bytes:
    return json.dumps({"choices": [CHOICE | {"finish_reason": finish}], "usage": USAGE | usage}).encode()


BODIES: dict[str, tuple[bytes, str | None]] = {
    "complete": (body(), None),
    "a stop at the very length": (body("stop"), None),
    "aborted": (body("abort", completion_tokens=1), Loss.ABORTED),
    "no finish_reason": (body(None), Loss.UNFINISHED),
    "one token is missing": (body(completion_tokens=2), Loss.WRONG_LENGTH),
    "usage does not add up": (body(total_tokens=8), NOT_UNDERSTOOD),
    "a count is missing": (body(total_tokens=None), NOT_UNDERSTOOD),
    "no usage": (json.dumps({"choices": [CHOICE], "usage": None}).encode(), NOT_UNDERSTOOD),
    "cut JSON": (body()[:-9], NOT_UNDERSTOOD),
    "nothing": (b"", NOT_UNDERSTOOD),
    "no choice": (b'{"choices": []}', NOT_UNDERSTOOD),
}


@pytest.mark.parametrize(("answer", "loss"), BODIES.values(), ids=BODIES)
def test_a_whole_answer(answer: bytes, loss: str | None) -> None:
    assert loss_of(Answer(ASKED).check_whole(answer)) == loss


def piece(finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": "x", "finish_reason": finish}]}


TAIL: dict[str, Any] = {"choices": [], "usage": USAGE}
SHORT: dict[str, Any] = {"choices": [], "usage": {**USAGE, "completion_tokens": 1}}
STREAMS: dict[str, tuple[list[Any], str | None]] = {
    "complete, two tokens in one piece": ([piece(), piece("length"), TAIL, "[DONE]"], None),
    "no [DONE]": ([piece(), piece("length"), TAIL], Loss.NOT_DONE),
    "aborted": ([piece(), piece("abort"), "[DONE]"], Loss.ABORTED),
    "aborted, and no [DONE]": ([piece(), piece("abort")], Loss.ABORTED),
    "no finish_reason": ([piece(), TAIL, "[DONE]"], Loss.UNFINISHED),
    "no usage": ([piece("length"), "[DONE]"], NOT_UNDERSTOOD),
    "too few tokens": ([piece("length"), SHORT, "[DONE]"], Loss.WRONG_LENGTH),
    "an error inside": ([piece(), {"error": {"message": "dead"}}, "[DONE]"], Loss.STREAM_ERROR),
    "half an event": ([piece(), "{", TAIL, "[DONE]"], NOT_UNDERSTOOD),
    "no choices": ([{"object": "x"}, piece("length"), TAIL, "[DONE]"], NOT_UNDERSTOOD),
    "nothing but [DONE]": (["[DONE]"], NOT_UNDERSTOOD),
    "nothing": ([], Loss.NOT_DONE),
}


def streamed(events: list[Any], asked: int | None = ASKED) -> Answer:
    stream = Answer(asked)
    for event in events:
        stream.take(f"data: {event if isinstance(event, str) else json.dumps(event)}")
        stream.take("")
    return stream


@pytest.mark.parametrize(("events", "loss"), STREAMS.values(), ids=STREAMS)
def test_a_streamed_answer(events: list[Any], loss: str | None) -> None:
    assert loss_of(streamed(events).check()) == loss


def test_without_a_length_an_answer_needs_one_token_and_its_end() -> None:
    events = [{"object": "x"}, piece(), piece("stop")]
    assert streamed(events, None).check() is not None
    stream = streamed([*events, "[DONE]"], None)
    assert (stream.check(), stream.output_tokens, stream.prompt_tokens) == (None, 2, None)


READ: dict[str, tuple[Any, str | None, Usage | None, int]] = {
    # The finish_reason, the usage, and pieces.
    "whole": ({"choices": [CHOICE], "usage": USAGE}, "length", Usage(4, 3, 7), 1),
    "not over yet": ({"choices": [CHOICE | {"finish_reason": None}]}, None, None, 1),
    "usage in part": ({"choices": [], "usage": {"prompt_tokens": 4}}, None, Usage(4), 0),
    "no usage yet": ({"choices": [CHOICE], "usage": None, "error": None}, "length", None, 1),
    "no choices": ({"object": "x"}, None, None, 0),
    "an error": ({"error": {"message": "dead"}, "choices": [CHOICE], "usage": USAGE}, None, None, 0),
}


@pytest.mark.parametrize(("event", "finish", "usage", "pieces"), READ.values(), ids=READ)
def test_what_is_read(event: Any, finish: str | None, usage: Usage | None, pieces: int) -> None:
    found = streamed([event])
    assert (found.finish_reason, found.usage, found.pieces) == (finish, usage, pieces)


REFUSED = {
    "no JSON": "<html>",
    "a list": "[]",
    "half of a document": '{"choices": [',
    "a choice that is a word": '{"choices": ["a"]}',
    "choices that are a word": '{"choices": "a"}',
    "a finish_reason that is a number": '{"choices": [{"finish_reason": 7}]}',
    "usage that is a list": '{"choices": [], "usage": [1]}',
    "a count that is a word": '{"choices": [], "usage": {"completion_tokens": "3"}}',
    "a count below zero": '{"choices": [], "usage": {"completion_tokens": -3}}',
    "a count that no double holds": '{"choices": [], "usage": {"completion_tokens": 1e400}}',
    "a count of 5,000 digits": '{"choices": [], "usage": {"completion_tokens": ' + "9" * 5000 + "}}",
    "10,000 lists": "[" * 10_000,
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_one_failed_request(text: str) -> None:
    assert loss_of(Answer(ASKED).check_whole(text.encode())) == NOT_UNDERSTOOD
    assert loss_of(streamed([text]).check()) == NOT_UNDERSTOOD


def test_an_errors_message_is_kept_without_what_moves_a_cursor() -> None:
    failure = streamed([{"error": {"message": "EngineCore encountered an issue"}}]).check()
    assert failure is not None
    assert failure.error == "EngineCore encountered an issue"
    assert error_text('{"error": {"message": "a\\u001b[2Jb"}}') == "a [2Jb"
    assert error_text(b"\x1b[2J<html>") == "[2J<html>"


def test_what_is_not_understood_is_quoted_without_what_moves_a_cursor() -> None:
    failure = Answer(ASKED).check_whole(b"\x1b[2J<html>")
    assert failure is not None
    assert failure.error == "it is not JSON:  [2J<html>"


@given(texts({"choices": [CHOICE], "usage": USAGE}))
def test_nothing_else_is_raised(text: str) -> None:
    for asked in (ASKED, None):
        events = streamed([text], asked)
        events.check()
        assert events.output_tokens >= 0
    Answer(ASKED).check_whole(text.encode(errors="replace"))
    error_text(text)
