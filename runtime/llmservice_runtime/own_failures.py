"""What the supervisor itself finds wrong, without a word of vLLM's."""

from __future__ import annotations

from llmservice_runtime.contract import Failure, FailureReason


def start_timeout(budget: float, last_seen: str) -> Failure:
    """The start budget, in seconds, is used up."""
    return Failure(
        FailureReason.START_TIMEOUT,
        f"vLLM did not become healthy within {budget:g} s (last seen: {last_seen or 'nothing'}).",
        "See the container's log for what took so long. Slow storage is helped by spec.model.cache; a longer budget is "
        "the supervisor's --start-seconds.",
    )


def engine_hung(still: float) -> Failure:
    """Requests wait, and for so many seconds nothing moved."""
    return Failure(
        FailureReason.ENGINE_HUNG,
        f"Requests were waiting, but no counter of the engine moved for {still:.0f} s.",
        "The server is restarted. If this repeats, look for GPU errors on the node (dmesg, Xid), and try "
        "spec.compilation.enforceEager: true or another vLLM version.",
    )


def engine_missing(error: OSError) -> Failure:
    """Its command cannot be run."""
    return Failure(
        FailureReason.ENGINE_MISSING,
        f"vLLM could not be started: {error}",
        "spec.runtime.image must be a vLLM image with python3.",
    )


def smoke_failed(error: Exception) -> Failure:
    """Healthy, and no use."""
    return Failure(
        FailureReason.SMOKE_REQUEST_FAILED,
        f"vLLM came up, but its first request failed: {error}",
        "See the container's log. On CPUs spec.precision.dtype: float32 helps against unsupported instructions; "
        "elsewhere try spec.compilation.enforceEager: true.",
    )
