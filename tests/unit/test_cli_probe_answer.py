"""What counts as an answer that is whole: a table of bodies and of streams."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_cli.load.answer import Events, Loss, check_body

ASKED = 3
USAGE = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}


def body(finish: str | None = "length", usage: Any = USAGE) -> bytes:
    return json.dumps({"choices": [{"text": "abc", "finish_reason": finish}], "usage": usage}).encode()


@pytest.mark.parametrize(
    ("given", "loss"),
    [
        pytest.param(body(), None, id="whole"),
        pytest.param(body("stop"), None, id="a stop at the very length"),
        pytest.param(body("abort", {**USAGE, "completion_tokens": 1}), Loss.ABORTED, id="aborted"),
        pytest.param(body(None), Loss.UNFINISHED, id="no finish_reason"),
        pytest.param(body(usage={**USAGE, "completion_tokens": 2}), Loss.WRONG_LENGTH, id="one token is missing"),
        pytest.param(body(usage={**USAGE, "total_tokens": 8}), Loss.NOT_UNDERSTOOD, id="usage does not add up"),
        pytest.param(body(usage=None), Loss.NOT_UNDERSTOOD, id="no usage"),
        pytest.param(body()[:-9], Loss.NOT_UNDERSTOOD, id="cut JSON"),
        pytest.param(b"", Loss.NOT_UNDERSTOOD, id="nothing"),
        pytest.param(b'{"choices": []}', Loss.NOT_UNDERSTOOD, id="no choice"),
    ],
)
def test_an_answer_of_one_piece(given: bytes, loss: str | None) -> None:
    wrong = check_body(given, ASKED)
    assert (wrong and wrong.loss) == loss


def piece(finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": "x", "finish_reason": finish}]}


TAIL: dict[str, Any] = {"choices": [], "usage": USAGE}


@pytest.mark.parametrize(
    ("events", "loss"),
    [
        pytest.param([piece(), piece("length"), TAIL, "[DONE]"], None, id="whole, two tokens in one piece"),
        pytest.param([piece(), piece("length"), TAIL], Loss.NOT_DONE, id="no [DONE]"),
        pytest.param([piece(), piece("abort"), "[DONE]"], Loss.ABORTED, id="aborted"),
        pytest.param([piece(), piece("abort")], Loss.ABORTED, id="aborted, and no [DONE]"),
        pytest.param([piece(), TAIL, "[DONE]"], Loss.UNFINISHED, id="no finish_reason"),
        pytest.param([piece("length"), "[DONE]"], Loss.NOT_UNDERSTOOD, id="no usage"),
        pytest.param(
            [piece("length"), {"choices": [], "usage": {**USAGE, "completion_tokens": 1}}, "[DONE]"],
            Loss.WRONG_LENGTH, id="too few tokens",
        ),
        pytest.param([piece(), {"error": {"message": "dead"}}, "[DONE]"], Loss.STREAM_ERROR, id="an error inside"),
        pytest.param([piece(), "{", TAIL, "[DONE]"], Loss.NOT_UNDERSTOOD, id="half an event"),
        pytest.param([{"object": "x"}, piece("length"), TAIL, "[DONE]"], Loss.NOT_UNDERSTOOD, id="no choices"),
        pytest.param(["[DONE]"], Loss.NOT_UNDERSTOOD, id="nothing but [DONE]"),
        pytest.param([], Loss.NOT_DONE, id="nothing"),
    ],
)  # fmt: skip
def test_a_streamed_answer(events: list[Any], loss: str | None) -> None:
    stream = Events(ASKED)
    for event in events:
        stream.take(f"data: {event if isinstance(event, str) else json.dumps(event)}")
        stream.take("")
    wrong = stream.check()
    assert (wrong and wrong.loss) == loss


def test_the_message_of_an_error_inside_a_stream_is_told() -> None:
    stream = Events(ASKED)
    stream.take('data: {"error": {"message": "EngineCore encountered an issue"}}')
    wrong = stream.check()
    assert wrong is not None
    assert wrong.error == "EngineCore encountered an issue"


def test_without_a_length_to_hold_it_to_an_answer_needs_one_token_and_its_end() -> None:
    stream = Events(None)
    for event in ({"object": "x"}, piece(), piece("stop")):
        stream.take(f"data: {json.dumps(event)}")
    assert stream.check() is not None
    stream.take("data: [DONE]")
    assert (stream.check(), stream.output_tokens, stream.prompt_tokens) == (None, 2, None)
