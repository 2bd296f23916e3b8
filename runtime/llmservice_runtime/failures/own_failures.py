"""Failures that the supervisor detects itself, not from vLLM's log."""

from __future__ import annotations

from collections.abc import Sequence

from llmservice_runtime.contract import Failure, FailureReason
from llmservice_runtime.health.memory_events import MemoryEvents

_SLOW_STEPS = (
    (
        "loading the weights",
        "Reading the weights stopped: look at the storage that holds the model (a network volume that hangs, a node "
        "with I/O errors). spec.model.cache keeps a copy near the pod.",
    ),
    (
        "compiling",
        "Compilation stopped: set spec.compilation.enforceEager: true to see whether the model starts without it.",
    ),
    (
        "capturing CUDA graphs",
        "Capturing CUDA graphs stopped: set spec.compilation.cudaGraphs: none to see whether the model starts without "
        "them, and look for GPU errors on the node (dmesg, Xid).",
    ),
)
_MOST_STACKS, _LONGEST_STACK = 4, 600
_STOPPED = (
    "See the container's log for its last lines. Workers that wait for each other hint at the interconnect (NCCL, "
    "/dev/shm) or at a GPU that does not answer (dmesg, Xid on the node)."
)


def start_stopped(budget: float, last_seen: str, idle: float) -> Failure:
    """The start exceeded its budget, and made no progress for `idle` seconds."""
    remedy = next((text for words, text in _SLOW_STEPS if last_seen.startswith(words)), _STOPPED)
    return Failure(
        FailureReason.START_TIMEOUT,
        f"The start exceeded its budget of {budget:g} s and then stopped: for {idle:.0f} s there was no new line in "
        f"vLLM's log, no file read and no CPU use. Last step: {last_seen or 'starting'}.",
        remedy,
    )


def start_too_long(seconds: float, last_seen: str) -> Failure:
    """The start makes progress, but exceeds the limit of any start."""
    return Failure(
        FailureReason.START_TIMEOUT,
        f"The server did not start within {seconds:.0f} s, the limit of any start, though it made progress until the "
        f"end. Last step: {last_seen or 'starting'}.",
        "Bring the model nearer to the pod (spec.model.cache, faster storage), give the pod more CPU "
        "(spec.runtime.resources), or set spec.compilation.enforceEager: true.",
    )


def engine_hung(idle: float, stacks: Sequence[str] = ()) -> Failure:
    """Requests wait, and no counter of the engine changed for `idle` seconds; `stacks` show where it is stuck."""
    return Failure(
        FailureReason.ENGINE_HUNG,
        f"Requests were waiting, but no counter of the engine changed for {idle:.0f} s.",
        f"The server is restarted. {FailureReason.ENGINE_HUNG.remedy}",
        tuple(line[:_LONGEST_STACK] for line in stacks[:_MOST_STACKS]),
    )


def killed_for_memory(kills: MemoryEvents) -> Failure:
    """The kernel killed a process of the server for memory."""
    if kills.limit_hits == 0:
        return Failure(
            FailureReason.MEMORY_LIMIT_EXCEEDED,
            "The kernel killed a process of the server for memory, though the container was below its own limit: the "
            "node, or the pod as a whole, was out of memory.",
            "Raise the memory request (and limit) in spec.runtime.resources to what the server uses, so that it is "
            "scheduled to a node with that much, or remove other load from the node.",
        )
    return Failure(
        FailureReason.MEMORY_LIMIT_EXCEEDED,
        "The kernel killed a process of the server because the container reached its memory limit.",
        "Raise the memory limit in spec.runtime.resources, or use a smaller model, cache or context.",
    )


def engine_missing(error: OSError) -> Failure:
    """vLLM's command cannot be executed."""
    return Failure(
        FailureReason.ENGINE_MISSING,
        f"vLLM could not be started: {error}",
        "spec.runtime.image must be a vLLM image with python3.",
    )


def state_port_taken(port: int, error: OSError) -> Failure:
    """Another process has the port of the probes."""
    return Failure(
        FailureReason.INVALID_CONFIGURATION,
        f"The supervisor cannot listen on port {port}, which the pod's probes use: {error.strerror or error}.",
        f"Another container of the pod listens on port {port}, or with hostNetwork another process of the node does. "
        "Give that container of spec.podTemplate another port, or leave hostNetwork out.",
    )


def pod_addresses_refused(port: int, refused: Sequence[str]) -> Failure:
    """vLLM listens on loopback only, or in the wrong address family."""
    return Failure(
        FailureReason.INVALID_CONFIGURATION,
        f"vLLM is healthy, but refuses connections to port {port} of {', '.join(refused)}, where clients reach the "
        "pod: it listens at other addresses.",
        "vLLM has to listen at every address (--host ::), as the pod's args say: see what in spec.runtime.image or "
        "spec.podTemplate changes that.",
    )


def api_key_unusable(why: str) -> Failure:
    """API keys are required, but none is valid, or vLLM does not check them."""
    return Failure(
        FailureReason.API_KEY_UNUSABLE,
        f"API keys cannot be checked: {why}.",
        "Put the keys, one per line, into the Secret's key that spec.endpoint.apiKeySecretRef names. If they are "
        "there, spec.runtime.image must hold a vLLM of a supported version, which loads the operator's middleware.",
    )


def smoke_failed(error: object) -> Failure:
    """Healthy, but the first request failed."""
    return Failure(
        FailureReason.SMOKE_REQUEST_FAILED,
        f"vLLM came up, but its first request failed: {error}",
        "See the container's log. On CPUs spec.precision.dtype: float32 helps against unsupported instructions; "
        "elsewhere try spec.compilation.enforceEager: true.",
    )
