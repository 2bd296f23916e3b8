"""`python -m scripts.paused`: it stops what a command starts, lets it go on, and says how the command ended."""

from __future__ import annotations

import subprocess
import sys

from tests.support.patience import PATIENCE

PARENT = """
import pathlib, subprocess, sys
with subprocess.Popen(["sleep", "1000"]) as child:
    stat = pathlib.Path(f"/proc/{child.pid}/stat")
    for state in "TST":
        while stat.read_text().rpartition(")")[2].split()[0] != state:
            pass
    child.kill()
sys.exit(7)
"""


def test_a_child_is_stopped_and_goes_on_and_the_commands_own_process_is_never_stopped() -> None:
    command = [sys.executable, "-m", "scripts.paused", sys.executable, "-c", PARENT]
    paused = subprocess.run(command, check=False, timeout=PATIENCE)
    assert paused.returncode == 7
