"""The supervisor's injected dependencies: commands, environment, clock, limits."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmservice_runtime import contract
from llmservice_runtime.health import start_watch
from llmservice_runtime.health.start_watch import StallLimits, Usage
from llmservice_runtime.supervisor import addresses, vllm_process


@dataclass(frozen=True)
class Timing:
    """Poll intervals and time limits, in seconds."""

    poll_seconds: float = 0.5
    health_seconds: float = 0.1
    volume_seconds: float = 20.0
    """For the start cache's volume, which may hang."""
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
    """For the fetch container's socket. Long, because the kubelet backs off before it restarts a container."""
    fetch_retry_seconds: float = 1.0
    """After an interrupted fetch; doubled after each further interruption."""
    unprobed_seconds: float = 6.0
    """Three periods of the readiness probe."""
    stuck_seconds: float = 60.0
    """The watchdog ends a supervisor whose event loop is blocked for this long."""


def _preflight() -> tuple[str, ...]:
    return (sys.executable, "-m", "llmservice_runtime", "preflight")


@dataclass(frozen=True)
class Dependencies:
    """Dependencies of the supervisor, which tests replace. `output` is the log's file descriptor."""

    command: Sequence[str] = field(default_factory=vllm_process.command)
    headless: Sequence[str] = field(default_factory=lambda: vllm_process.command(vllm_process.HEADLESS_ENTRY))
    """Of a rank without an API."""
    preflight: Sequence[str] = field(default_factory=_preflight)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    clock: Callable[[], float] = time.monotonic
    usage: Callable[[int], Mapping[int, Usage]] = start_watch.usage_of_group
    """Process group -> usage by process id."""
    pod_addresses: Callable[[], tuple[str, ...]] = addresses.of_pod
    timing: Timing = field(default_factory=Timing)
    stall_limits: StallLimits = field(default_factory=StallLimits)
    cgroup: Path = Path("/sys/fs/cgroup")
    output: int = 1
