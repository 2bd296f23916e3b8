"""What a supervisor is given instead of reaching for it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmservice_runtime import contract
from llmservice_runtime.health import activity
from llmservice_runtime.health.activity import Usage
from llmservice_runtime.health.start_watch import Patience
from llmservice_runtime.supervisor import vllm_process


@dataclass(frozen=True)
class Pace:
    """How often things are looked at, and how long a stop may take."""

    poll_seconds: float = 0.5
    watch_seconds: float = 5.0
    in_flight_seconds: float = 0.05
    linger_seconds: float = contract.POOL_SECONDS
    lull_seconds: float = contract.LULL_SECONDS
    adapters_seconds: float = 2.0
    adapter_retry_seconds: float = 5.0
    stop_loading_seconds: float = 2.0
    stop_serving_seconds: float = 8.0
    preflight_seconds: float = 300.0
    fetch_wait_seconds: float = 300.0
    """For the fetch container's socket: the kubelet puts off a container that ends again and again."""
    fetch_retry_seconds: float = 1.0
    """After a fetch was cut; twice as long after each further cut."""
    stuck_seconds: float = 60.0
    """Longer than anything keeps the supervisor's loop busy: it is then ended."""


def _preflight() -> tuple[str, ...]:
    return (sys.executable, "-m", "llmservice_runtime", "preflight")


@dataclass(frozen=True)
class Surroundings:
    """Commands, environment, time, and where the log goes."""

    command: Sequence[str] = field(default_factory=vllm_process.command)
    preflight: Sequence[str] = field(default_factory=_preflight)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    clock: Callable[[], float] = time.monotonic
    usage: Callable[[int], Mapping[int, Usage]] = activity.of_group
    """What the processes of a group have used."""
    pace: Pace = field(default_factory=Pace)
    patience: Patience = field(default_factory=Patience)
    cgroup: Path = Path("/sys/fs/cgroup")
    output: int = 1
