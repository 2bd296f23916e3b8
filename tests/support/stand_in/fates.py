"""How an engine ends or fails in the middle of its work, in the words that the real one wrote."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from tests.support.stand_in.behaviour import Fate
from tests.support.stand_in.lines import api_server, core

_WORDS = re.compile(r"@(die|exit0|hang|sigill|error|no-compiler|memory)\b")
HELD = "@held"
"""In a prompt: after the first token of its answer nothing more comes until SIGUSR1."""
_SLOW = re.compile(r"@slow:(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Met:
    """What happens, and what the log says of it."""

    name: Fate
    words: tuple[str, ...] = ()


def prefill_seconds(prompt: str) -> float:
    """What a prompt with @slow:SECONDS asks for."""
    found = _SLOW.search(prompt)
    return float(found[1]) if found else 0.0


def fate_of(prompt: str, otherwise: Fate) -> Met:
    """By the word in the prompt."""
    found = _WORDS.search(prompt)
    name: Fate = found[1] if found else otherwise  # type: ignore[assignment]
    return Met(name, _said(name))


def _said(name: Fate) -> tuple[str, ...]:
    pid = os.getpid()
    if name == "die":
        return (
            core(pid, "ERROR", "core.py:1512", "RuntimeError: Worker failed with error 'CPU Generator does not use "
                 "offset', please check the stack trace above for the root cause"),
            api_server(pid, "ERROR", "async_llm.py:906", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
                       "encountered an issue. See stack trace (above) for the root cause."),
        )  # fmt: skip
    if name == "no-compiler":
        text = "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in g++"
        return (core(pid, "ERROR", "core.py:1512", text),)
    if name == "sigill":
        return (
            "Fatal Python error: Illegal instruction",
            core(pid, "ERROR", "multiproc_executor.py:321", "Worker proc VllmWorker-0 died unexpectedly (exit code: "
                 "-4), shutting down executor."),
        )  # fmt: skip
    return ()
