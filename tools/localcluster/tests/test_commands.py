"""A program that fails is a ClusterError with what it said, however it is run."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

from localcluster.__main__ import DELEGATED
from localcluster.commands import run, run_logged
from localcluster.errors import ClusterError
from localcluster.progress import Step


@pytest.mark.parametrize("module", [module for module, _ in DELEGATED.values()])
def test_a_command_with_a_parser_of_its_own_is_there(module: str) -> None:
    assert callable(import_module(module).main)


def test_what_a_program_prints_comes_back() -> None:
    assert run("sh", "-c", "cat; echo $A", stdin="in ", environment={**os.environ, "A": "b"}) == "in b\n"


@pytest.mark.parametrize(
    ("command", "timeout", "message"),
    [
        pytest.param(("sh", "-c", "echo no room >&2; exit 3"), None, "it failed: no room\n  Do this.", id="a code"),
        pytest.param(("sh", "-c", "echo told; exit 3"), None, "it failed: told\n  Do this.", id="on standard output"),
        pytest.param(("no-such-program",), None, "no-such-program is not on the PATH\n  Do this.", id="missing"),
        pytest.param(("sleep", "60"), 0.1, "it failed: it did not end within 0.1 s\n  Do this.", id="too slow"),
    ],
)
def test_a_failure_has_what_was_said_and_the_remedy(
    command: tuple[str, ...], timeout: float | None, message: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        run(*command, failure="it failed", remedy="Do this.", timeout=timeout)
    assert str(caught.value) == message


def test_lines_go_to_the_log_and_the_step_shows_the_last_that_says_something(tmp_path: Path) -> None:
    log, step = tmp_path / "logs" / "x.log", Step("building")
    lines = "echo one >&2; echo two >&2; echo >&2"
    run_logged(("sh", "-c", lines), log, step, lambda line: line.strip() or None, failure="", environment=os.environ)
    assert (log.read_text(), step.detail) == ("one\ntwo\n\n", "two")


def test_a_logged_failure_has_the_end_of_its_log(tmp_path: Path) -> None:
    log, command = tmp_path / "x.log", ("sh", "-c", "seq 20 >&2; exit 1")
    with pytest.raises(ClusterError) as caught:
        run_logged(command, log, Step(""), lambda _: None, failure="building x failed", environment=os.environ)
    tail = "\n    ".join(map(str, range(6, 21)))
    assert str(caught.value) == f"building x failed\n  end of {log}:\n    {tail}"
