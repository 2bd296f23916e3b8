"""What commands print: nothing that a terminal would obey, and one message where nothing can be printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from llmservice_cli.documents import show, written

ESCAPES = "a\x1b]0;pwned\x07b\x9b2Jc\x7fd"


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_nothing_that_a_terminal_obeys_is_printed(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(output, lambda: [f"told: {ESCAPES}"], lambda: {"told": ESCAPES})
    said = capsys.readouterr().out
    assert not {character for character in said if not character.isprintable()} - {"\n"}
    assert "pwned" in said


def test_json_is_read_back_as_it_was() -> None:
    assert json.loads(written("json", {"told": ESCAPES})) == {"told": ESCAPES}
    assert yaml.safe_load(written("yaml", {"told": "ü\n1"})) == {"told": "ü\n1"}


PLAN = [sys.executable, "-m", "llmservice_cli", "plan", "--parameters", "7B", "--gpu", "L4"]


def test_a_terminal_that_takes_no_utf8_gets_escapes(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(PLAN, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 3)
    assert done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [[*PLAN, "-o", "json"], [*PLAN[:3], "--help"]], ids=["plan", "help"])
def test_a_disk_that_is_full_is_one_message(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the output cannot be written: No space left on device")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("command", [[*PLAN, "-o", "json"], [*PLAN[:3], "--help"]], ids=["plan", "help"])
def test_a_reader_that_has_seen_enough_ends_nothing_badly(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
