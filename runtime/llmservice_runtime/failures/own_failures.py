"""What the supervisor itself finds wrong, without a word of vLLM's."""

from __future__ import annotations

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
_STOPPED = (
    "See the container's log for its last lines. Workers that wait for each other hint at the interconnect (NCCL, "
    "/dev/shm) or at a GPU that does not answer (dmesg, Xid on the node)."
)


def start_stopped(budget: float, last_seen: str, still: float) -> Failure:
    """Past its budget, and for so many seconds nothing has moved."""
    remedy = next((text for words, text in _SLOW_STEPS if last_seen.startswith(words)), _STOPPED)
    return Failure(
        FailureReason.START_TIMEOUT,
        f"The start used up its budget of {budget:g} s and then stopped: for {still:.0f} s there was no new line in "
        f"vLLM's log, nothing was read, and no process worked. It stood at: {last_seen or 'starting'}.",
        remedy,
    )


def start_too_long(seconds: float, last_seen: str) -> Failure:
    """It moves, but no pod may start for longer."""
    return Failure(
        FailureReason.START_TIMEOUT,
        f"The server did not answer within {seconds:.0f} s, the longest that any start may take, though it moved until "
        f"the end. It stood at: {last_seen or 'starting'}.",
        "Bring the model nearer to the pod (spec.model.cache, faster storage), give the pod more CPU "
        "(spec.runtime.resources), or set spec.compilation.enforceEager: true.",
    )


def engine_hung(still: float) -> Failure:
    """Requests wait, and for so many seconds nothing moved."""
    return Failure(
        FailureReason.ENGINE_HUNG,
        f"Requests were waiting, but no counter of the engine moved for {still:.0f} s.",
        "The server is restarted. If this repeats, look for GPU errors on the node (dmesg, Xid), and try "
        "spec.compilation.enforceEager: true or another vLLM version.",
    )


def killed_for_memory(kills: MemoryEvents) -> Failure:
    """The kernel killed a process of the server, whatever else became of that."""
    if kills.limit_hits == 0:
        return Failure(
            FailureReason.MEMORY_LIMIT_EXCEEDED,
            "The kernel killed a process of the server for memory, though the container had not reached its own limit: "
            "the node, or the pod as a whole, had none left.",
            "Raise the memory request (and limit) in spec.runtime.resources to what the server really takes, so that "
            "it comes to a node that has it, or end what else fills the node.",
        )
    return Failure(
        FailureReason.MEMORY_LIMIT_EXCEEDED,
        "The kernel killed a process of the server because the container reached its memory limit.",
        "Raise the memory limit in spec.runtime.resources, or use a smaller model, cache or context.",
    )


def smoke_unanswered(still: float) -> Failure:
    """Healthy, and no answer; for so many seconds nothing has moved."""
    return smoke_failed(f"no answer, and for {still:.0f} s nothing in the server moved")


def engine_missing(error: OSError) -> Failure:
    """Its command cannot be run."""
    return Failure(
        FailureReason.ENGINE_MISSING,
        f"vLLM could not be started: {error}",
        "spec.runtime.image must be a vLLM image with python3.",
    )


def state_port_taken(port: int, error: OSError) -> Failure:
    """The pod's containers share their ports, and the probes ask this one."""
    return Failure(
        FailureReason.INVALID_CONFIGURATION,
        f"The supervisor cannot listen on port {port}, which the pod's probes ask: {error.strerror or error}.",
        f"Another container of the pod listens on port {port}, or with hostNetwork another process of the node does. "
        "Give that container of spec.podTemplate another port, or leave hostNetwork out.",
    )


def api_key_unusable(why: str) -> Failure:
    """Clients are to show a key, and none could, or none has to."""
    return Failure(
        FailureReason.API_KEY_UNUSABLE,
        f"Clients cannot be asked for an API key: {why}.",
        "Put the keys, one a line, into the Secret's key that spec.endpoint.apiKeySecretRef names. Where they are "
        "there, spec.runtime.image must hold a vLLM of a supported version, which loads the operator's middleware.",
    )


def smoke_failed(error: object) -> Failure:
    """Healthy, and no use."""
    return Failure(
        FailureReason.SMOKE_REQUEST_FAILED,
        f"vLLM came up, but its first request failed: {error}",
        "See the container's log. On CPUs spec.precision.dtype: float32 helps against unsupported instructions; "
        "elsewhere try spec.compilation.enforceEager: true.",
    )
