"""Options of how much is sent: the same words and bounds in each command that has them."""

from __future__ import annotations

import pytest
from llmservice_cli.app import options_of
from llmservice_cli.errors import ExitCode

from tests.unit.cli_world import Command

COMMANDS = ("bench", "probe")
READ = {
    ("--rate", "0.5"): ("rate", 0.5),
    ("--rate", "100000"): ("rate", 100_000.0),
    ("--concurrency", "10000"): ("concurrency", 10_000),
    ("--output-tokens", "8,8,32"): ("output_tokens", (8, 8, 32)),
}
REFUSED = {
    ("--rate", "0"): "must be a number above 0 and of at most 100000, not '0'",
    ("--rate", "100001"): "must be a number above 0 and of at most 100000, not '100001'",
    ("--rate", "nan"): "must be a number above 0 and of at most 100000, not 'nan'",
    ("--rate", "1e400"): "must be a number above 0 and of at most 100000, not '1e400'",
    ("--concurrency", "10001"): "must be an integer of at least 1 and at most 10000, not '10001'",
    ("--concurrency", "1.5"): "must be an integer of at least 1 and at most 10000, not '1.5'",
    ("--output-tokens", "8,0"): "must be an integer of at least 1 and at most 10000000, not '0'",
    ("--output-tokens", "8,"): "must be an integer of at least 1 and at most 10000000, not ''",
    ("--output-tokens", "9" * 5000): f"at most 10000000, not '{'9' * 60}...'",
    ("--output-tokens", ",".join(["1"] * 1001)): "has more than 1000 values: '1,1,1",
}


@pytest.mark.parametrize(("words", "expected"), READ.items(), ids=map(" ".join, READ))
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_read(command: str, words: tuple[str, str], expected: tuple[str, object]) -> None:
    name, value = expected
    found = getattr(options_of((command, "chat", *words)), name)
    is_sweep = command == "bench" and name != "output_tokens"
    assert found == ((value,) if is_sweep else value)


@pytest.mark.parametrize(("words", "why"), REFUSED.items(), ids=[" ".join(words)[:30] for words in REFUSED])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_refused(command: str, words: tuple[str, str], why: str, llmservice: Command) -> None:
    ran = llmservice(command, "chat", *words)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert why in ran.err
    assert len(ran.err) < 500


def test_each_command_says_the_same_of_them(llmservice: Command) -> None:
    pages = [" ".join(llmservice(command, "--help").out.split()) for command in COMMANDS]
    for text in (
        "requests a second, sent on time however slow the answers are",
        "instead of --rate: clients, each of which sends when it has its answer",
        "lengths of answers",
    ):
        assert all(text in page for page in pages), text
