"""Reads a model's config.json with a limit of processor time: it may come from any repository."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from llmservice_operator.planner.model import config_json
from llmservice_operator.planner.model.architecture import Architecture

from .values import Refused

SECONDS = 10.0
"""Usual files take milliseconds."""


class TakesTooLong(Exception):
    """Reading was stopped."""


def read(document: Mapping[str, Any], *, seconds: float = SECONDS) -> Architecture:
    """`config_json.read`; Refused where it takes more processor time than that."""
    try:
        with limited(seconds):
            return config_json.read(document)
    except TakesTooLong:
        raise Refused(
            f"reading this config.json took more than {seconds:g} s of processor time, and was stopped.",
            "Take config.json as the model's publisher wrote it, or give the facts of the model one by one.",
        ) from None


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """So many seconds of processor time, then TakesTooLong. Signals are for the main thread: elsewhere no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TakesTooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
