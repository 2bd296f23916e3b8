"""What commands cost: each one is measured while it succeeds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.cli import COMMANDS, ROOT, UNIT, cpu, measure


def test_each_command_is_measured_against_a_server_that_answers(tmp_path: Path) -> None:
    (found,) = measure([ROOT], 1, str(tmp_path)).values()
    assert [*found] == [UNIT, *COMMANDS]
    assert 0 < found[UNIT] < found["status -A"] < 6 * found[UNIT], (
        "an HTTP client that is imported costs three of these"
    )


def test_a_command_that_fails_is_no_figure() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        cpu(["-c", "raise SystemExit(3)"], os.environ)
