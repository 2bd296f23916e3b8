"""Programs that are run to their end; their failure is a ClusterError with what they said."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.progress import Step


def run(
    *command: str,
    failure: str = "",
    remedy: str = "",
    stdin: str | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    timeout: float | None = None,
) -> str:
    """What the command printed; a ClusterError with what it said where it fails or takes longer than `timeout` seconds.

    `failure` is what the error calls it, the first words of the command unless given.
    """
    failure = failure or f"{' '.join(command[:6])} failed"
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, cwd=cwd, env=dict(environment), timeout=timeout
        )
    except FileNotFoundError as missing:
        raise ClusterError(f"{command[0]} is not on the PATH", remedy or "Install it.") from missing
    except subprocess.TimeoutExpired as slow:
        raise ClusterError(f"{failure}: it did not end within {timeout:g} s", remedy) from slow
    if done.returncode != 0:
        raise ClusterError(f"{failure}: {(done.stderr or done.stdout).strip()}", remedy)
    return done.stdout


def run_logged(
    command: Sequence[str],
    log: Path,
    step: Step,
    detail: Callable[[str], str | None],
    *,
    failure: str,
    environment: Mapping[str, str],
    cwd: Path | None = None,
) -> None:
    """Standard error goes to `log`, and what `detail` makes of each line, unless that is None, to the step."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as written,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=cwd,
            env=dict(environment),
        ) as child,
    ):  # fmt: skip
        assert child.stderr is not None
        for line in child.stderr:
            written.write(line)
            step.detail = detail(line) or step.detail
    if child.returncode != 0:
        tail = "\n    ".join(log.read_text().splitlines()[-15:])
        raise ClusterError(failure, f"end of {log}:\n    {tail}")
