"""The termination message: what Kubernetes keeps of an ended container."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def write_termination_message(path: str, message: str, log: Callable[[str], None]) -> None:
    """Write it; a file that cannot be written is logged."""
    try:
        Path(path).write_text(message, encoding="utf-8")
    except OSError as error:
        log(f"{path} cannot be written: {error}")
