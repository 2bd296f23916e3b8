"""What a supervisor is given instead of reaching for it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from llmservice_runtime import engine


@dataclass(frozen=True)
class Pace:
    """How often things are looked at, and how long a stop may take."""

    poll_seconds: float = 0.5
    watch_seconds: float = 5.0
    in_flight_seconds: float = 0.05
    adapters_seconds: float = 2.0
    adapter_retry_seconds: float = 5.0
    stop_loading_seconds: float = 2.0
    stop_serving_seconds: float = 8.0
    preflight_seconds: float = 300.0


def _preflight() -> tuple[str, ...]:
    return (sys.executable, "-m", "llmservice_runtime", "preflight")


def _fetch() -> tuple[str, ...]:
    return (sys.executable, "-m", "llmservice_runtime", "fetch")


@dataclass(frozen=True)
class Surroundings:
    """Commands, environment, time, and where the log goes."""

    command: Sequence[str] = field(default_factory=engine.command)
    preflight: Sequence[str] = field(default_factory=_preflight)
    fetch: Sequence[str] = field(default_factory=_fetch)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    clock: Callable[[], float] = time.monotonic
    pace: Pace = field(default_factory=Pace)
    output: int = 1
