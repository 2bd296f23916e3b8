"""Nothing that a server answers ends a load: a completion is read, or refused with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from llmservice_cli.load.answer import Events, check_body
from llmservice_cli.load.completion import Completion, Usage, completion_of, error_text
from llmservice_cli.probe.sender import seconds
from llmservice_runtime.bounded_json import Refused

from tests.unit.hostile import texts

CHOICE = {"index": 0, "text": "x", "finish_reason": "length"}
USAGE = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}

READ: list[tuple[str, Any, Completion]] = [
    ("whole", {"choices": [CHOICE], "usage": USAGE}, Completion(("length",), Usage(4, 3, 7))),
    ("not over yet", {"choices": [CHOICE | {"finish_reason": None}]}, Completion((None,))),
    ("usage alone", {"choices": [], "usage": USAGE}, Completion((), Usage(4, 3, 7))),
    ("usage in part", {"choices": [], "usage": {"prompt_tokens": 4}}, Completion((), Usage(4))),
    ("no usage yet", {"choices": [CHOICE], "usage": None, "error": None}, Completion(("length",))),
    ("no choices", {"object": "x"}, Completion(None)),
    ("an error", {"error": {"message": "dead"}}, Completion(None, is_error=True)),
]

REFUSED: list[tuple[str, str]] = [
    ("no JSON", "<html>"),
    ("a list", "[]"),
    ("a number", "5"),
    ("half of a document", '{"choices": ['),
    ("a choice that is a word", '{"choices": ["a"]}'),
    ("choices that are a word", '{"choices": "a"}'),
    ("a finish_reason that is a number", '{"choices": [{"finish_reason": 7}]}'),
    ("usage that is a list", '{"choices": [], "usage": [1]}'),
    ("a count that is a word", '{"choices": [], "usage": {"completion_tokens": "3"}}'),
    ("a count below zero", '{"choices": [], "usage": {"completion_tokens": -3}}'),
    ("a count that no double holds", '{"choices": [], "usage": {"completion_tokens": 1e400}}'),
    ("a count of 5,000 digits", '{"choices": [], "usage": {"completion_tokens": ' + "9" * 5000 + "}}"),
    ("10,000 lists", "[" * 10_000),
]


@pytest.mark.parametrize(("given_", "expected"), [pytest.param(*row, id=name) for name, *row in READ])
def test_what_is_read(given_: Any, expected: Completion) -> None:
    assert completion_of(json.dumps(given_)) == expected


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in REFUSED])
def test_what_is_refused_is_one_failed_request(text: str) -> None:
    with pytest.raises(Refused):
        completion_of(text)
    wrong = check_body(text.encode(), 3)
    assert (wrong and wrong.loss) == "not-understood"
    stream = Events(3)
    stream.take(f"data: {text}")
    wrong = stream.check()
    assert (wrong and wrong.loss) == "not-understood"


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": 4, "completion_tokens": 3}, USAGE | {"total_tokens": None}])
def test_usage_that_is_not_whole_is_not_understood(usage: Any) -> None:
    wrong = check_body(json.dumps({"choices": [CHOICE], "usage": usage}).encode(), 3)
    assert (wrong and wrong.loss) == "not-understood"


def test_an_error_is_told_without_what_moves_a_cursor() -> None:
    assert error_text('{"error": {"message": "a\\u001b[2Jb"}}') == "a [2Jb"
    assert error_text(b"\x1b[2J<html>") == "[2J<html>"


@given(texts({"choices": [CHOICE], "usage": USAGE}))
def test_nothing_else_is_raised(text: str) -> None:
    for asked in (3, None):
        events = Events(asked)
        events.take(f"data: {text}")
        events.check()
        assert events.output_tokens >= 0
    check_body(text.encode(errors="replace"), 3)
    error_text(text)


@pytest.mark.parametrize(
    ("header", "expected"),
    [("2", 2.0), ("0", 0.0), ("nan", None), ("-1", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), (None, None)],
)
def test_a_retry_after_that_is_no_time_is_none(header: str | None, expected: float | None) -> None:
    assert seconds(header) == expected
