"""The time before the port opens: vLLM's own log lines, at the pace that is asked for."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.stand_in.behaviour import Behaviour
from tests.support.stand_in.command_line import Arguments
from tests.support.stand_in.lines import api_server, core, worker

_BEFORE_SHARDS = 3
"""Steps up to the line that no shard is loaded yet."""


def run(behaviour: Behaviour, arguments: Arguments, engine: int) -> None:
    """Print, and let the time pass. `engine` is the pid of the engine's process."""
    resumed = list[int]()
    signal.signal(signal.SIGUSR1, lambda number, _frame: resumed.append(number))
    began = time.monotonic()
    steps = iter([[Path(behaviour.log).read_text()]]) if behaviour.log else _steps(behaviour, arguments, engine)
    count = 1 if behaviour.log else behaviour.shards + 5
    for number, lines in enumerate(steps, start=1):
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
        _sleep_until(began + number * behaviour.start_seconds / count)
        if behaviour.stalls_at is not None and number == _BEFORE_SHARDS + behaviour.stalls_at:
            while not resumed:
                time.sleep(0.02)


def _steps(behaviour: Behaviour, arguments: Arguments, engine: int) -> Iterator[list[str]]:
    """Lines that come together."""
    pid, limits = os.getpid(), arguments.limits
    place = "api_utils.py:347"
    yield [
        api_server(pid, "INFO", place, "       █     █     █▄   ▄█") + "\n",
        api_server(pid, "INFO", place, " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0") + "\n",
        api_server(pid, "INFO", place, f"  █▄█▀ █     █     █     █  model   {arguments.model}") + "\n",
        api_server(pid, "INFO", "model.py:733", "Resolved architecture: LlamaForCausalLM") + "\n",
        api_server(pid, "INFO", "model.py:2152", f"Using max model len {limits.max_model_len}") + "\n",
    ]
    yield [
        core(engine, "INFO", "core.py:133", "Initializing a V1 LLM engine (v0.32.0) with config: "
             f"model={arguments.model!r}") + "\n",
        worker(engine, "INFO", "cpu_model_runner.py:68", f"Starting to load model {arguments.model}...") + "\n",
    ]  # fmt: skip
    for done in range(behaviour.shards + 1):
        yield [f"\rLoading safetensors checkpoint shards: {100 * done // behaviour.shards:3d}% Completed | "
               f"{done}/{behaviour.shards} [00:00<?, ?it/s]\n"]  # fmt: skip
    took = behaviour.start_seconds
    yield [
        worker(engine, "INFO", "default_loader.py:501", f"Loading weights took {took:.2f} seconds") + "\n",
        core(engine, "INFO", "kv_cache_utils.py:2327", f"CPU KV cache size: {limits.kv_cache_tokens:,} tokens, "
             f"Maximum concurrency for {limits.max_model_len:,} tokens per request: "
             f"{limits.kv_cache_tokens / limits.max_model_len:.2f}x") + "\n",
        core(engine, "INFO", "core.py:402", "init engine (profile, create kv cache, warmup model) took "
             f"{took / 2:.2f} s") + "\n",
    ]  # fmt: skip
    yield [
        api_server(pid, "INFO", "entry.py:136", "Supported tasks: ['generate']") + "\n",
        api_server(pid, "INFO", "entry.py:140", f"Starting vLLM server on http://0.0.0.0:{arguments.port}") + "\n",
    ]


def _sleep_until(moment: float) -> None:
    while (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, 3600))
