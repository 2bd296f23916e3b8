"""Classifies the end of vLLM: a pure function of its exit status, phase and last log lines; and the failures that the
supervisor detects itself, not from vLLM's log.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmservice_runtime.contract import Failure, FailureReason, Phase
from llmservice_runtime.failures.rules import FOLLOWING, PLACES, RULES, Place, Rule
from llmservice_runtime.health.memory_events import NO_EVENTS, MemoryEvents
from llmservice_runtime.supervisor.log_reader import Line, messages

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


def group_member_lost(rank: int, pod: str, seconds: float) -> Failure:
    """A member of the group is not heard of; `pod` is empty where it never was."""
    who = f"rank {rank} of the group ({pod})" if pod else f"rank {rank} of the group"
    return Failure(
        FailureReason.GROUP_MEMBER_LOST,
        f"{who} has not been heard of for {seconds:.0f} s.",
        "Look at that pod, its node and the network between the pods of this replica.",
    )


def leader_unresolved(why: str, seconds: float) -> Failure:
    """The leader of the group was never heard; `why`: what this pod waits for."""
    reason = FailureReason.LEADER_ADDRESS_UNRESOLVED
    return Failure(reason, f"After {seconds:.0f} s still {why}.", reason.remedy)


def interface_without_address(name: str, there: Sequence[str]) -> Failure:
    """The pod has no such network interface, or one without an address; without a name: none with an address that the
    others reach. `there`: those that it has."""
    asked = f"network interface {name} with an address" if name else "address that other pods reach"
    return Failure(
        FailureReason.INVALID_CONFIGURATION,
        f"The pod has no {asked}; its interfaces with one: {', '.join(there) or 'none'}.",
        "Set spec.parallelism.network.interface to one of them, or remove it.",
    )


def group_member_failed(rank: int, pod: str) -> Failure:
    """A member said that it failed, and nothing that could be read of why."""
    reason = FailureReason.ENGINE_DIED
    return Failure(reason, f"rank {rank} of the group ({pod}) failed and did not say why.", reason.remedy)


def engine_left_behind(what: str, seconds: float) -> Failure:
    """vLLM was killed, and something of it is still there, which the end of the container removes."""
    return Failure(
        FailureReason.ENGINE_DIED,
        f"{seconds:.0f} s after vLLM was killed {what}, so that it cannot start again.",
        "The container is started again. If that does not help, look at the node: a process that waits for a device or "
        "a volume cannot be killed, and with hostNetwork a port may be that of another program of the node.",
    )


def group_member_restarted(rank: int, pod: str) -> Failure:
    """A member's container started anew while the group ran."""
    return Failure(
        FailureReason.GROUP_MEMBER_LOST,
        f"rank {rank} of the group ({pod}) started anew.",
        "Its last state says why: kubectl describe pod.",
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


MESSAGE_LIMIT = 600
EVIDENCE_LINES = 6

# Lines that only refer to a failure elsewhere.
_UNINFORMATIVE = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|EngineCore encountered an issue|"
    r"See (?:stack trace|root cause)|EngineDeadError|leaked (?:semaphore|shared_memory)|^During handling of|"
    r"ExceptionGroup|KeyboardInterrupt|SystemExit|CancelledError"
)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning|Timeout)?: .+")
_NOISE = re.compile(
    r"^\S+: error: |\s*\[type=\w+, input_value=.*$|^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception): |^\s*Value error, "
)
_SOURCE = re.compile(r"^(?:    |  File \"|  warnings\.warn)|^Traceback |^non-default args|Warning: ")


@dataclass(frozen=True)
class End:
    """How vLLM ended, without having been stopped by the supervisor."""

    code: int | None
    signal: int | None
    phase: Phase
    memory: MemoryEvents = NO_EVENTS
    """OOM events since vLLM last made progress."""
    arguments: tuple[str, ...] = ()
    """vLLM's command line, to recognise the flag that an error message names."""
    image_cuda: str = ""
    """The image's variable CUDA_VERSION; empty: none."""
    driver: str = ""
    """Version of the node's NVIDIA driver; empty: unknown."""


def classify(end: End, tail: Sequence[str]) -> Failure:
    """The failure: reason, vLLM's decisive line as message, remedy, and the lines before it as evidence."""
    lines = list(messages(list(tail)))
    if end.memory.kills or end.signal == signal.SIGKILL:
        return _killed(end, lines)
    found = _by_rules(RULES, end, lines) or _by_place(end, lines) or _by_rules(FOLLOWING, end, lines)
    if found is not None:
        return found
    if end.signal is not None:
        return _signalled(end, lines)
    return _unknown(end, lines)


def _by_rules(rules: Sequence[Rule], end: End, lines: Sequence[Line]) -> Failure | None:
    for rule in rules:
        if rule.exit_codes and end.code not in rule.exit_codes:
            continue
        for index, line in enumerate(lines):
            if (_is_message(line) or (rule.warns and line.level == "WARNING")) and rule.matches(line.text):
                message = clean(line.text)
                if rule.reason is FailureReason.DRIVER_MISMATCH:
                    message += versions(line.text, end.image_cuda, end.driver)
                return _failure(rule.reason, message, rule.remedy, end, _context(lines, index))
    return None


def driver_mismatch(text: str, image_cuda: str, driver: str) -> Failure | None:
    """The failure for a warning or error of torch about a mismatch of driver, image and GPU; None for others."""
    rules = [rule for rule in RULES if rule.reason is FailureReason.DRIVER_MISMATCH]
    lines = [Line("", line) for line in text.splitlines()]
    return _by_rules(rules, End(None, None, Phase.PREFLIGHT, image_cuda=image_cuda, driver=driver), lines)


def versions(text: str, image_cuda: str, driver: str) -> str:
    """The known versions of driver and image as a sentence."""
    known = [f"the node's driver is {driver}"] if driver else []
    said = re.search(r"\(found version (\d{4,6})\)", text)
    known += [f"the driver supports CUDA {int(said[1]) // 1000}.{int(said[1]) % 1000 // 10}"] if said else []
    if re.fullmatch(r"\d{1,3}(?:\.\d{1,4}){0,3}", image_cuda):
        known.append(f"the image is built for CUDA {image_cuda}")
    return f" (Here {', '.join(known)}.)" if known else ""


def _by_place(end: End, lines: Sequence[Line]) -> Failure | None:
    """By the vLLM module that raised the last exception of a start. Further lines of its message are not exceptions."""
    raised = (i for i in reversed(range(1, len(lines))) if _is_informative(lines[i]) and _is_source(lines[i - 1]))
    index = next(raised, None)
    if index is None or _is_serving(end) or _named_flag(lines[index].text, end.arguments) is not None:
        return None
    name = lines[index].text.partition(":")[0].rpartition(".")[2]
    frame = next((line.text for line in reversed(lines[:index]) if line.text.startswith('  File "')), "")
    file = frame.partition('"')[2].partition('"')[0].rpartition("/vllm/")[2]
    place = next((place for place in PLACES if _is_from(place, name, file)), None)
    if place is None:
        return None
    return _failure(place.reason, clean(lines[index].text), place.remedy, end, _context(lines, index))


def _is_from(place: Place, exception: str, file: str) -> bool:
    return file.startswith(place.files) and (exception in place.exceptions or not place.exceptions)


def clean(text: str) -> str:
    """A message without class names, pydantic's suffix and long lists, at most MESSAGE_LIMIT characters."""
    for _ in range(3):
        text = _NOISE.sub("", text)
    text = re.sub(r"(Supported architectures: ).*", r"\1see vLLM's documentation.", text).strip()
    text = re.sub(r"\(choose from .{200,}\)", "(see vLLM's documentation for the choices)", text)
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def _killed(end: End, lines: Sequence[Line]) -> Failure:
    if end.memory.kills:
        found = killed_for_memory(end.memory)
        return _failure(found.reason, found.message, found.remedy, end, _evidence(lines))
    return _failure(
        FailureReason.ENGINE_DIED,
        "vLLM was killed with SIGKILL, and not for the container's memory limit.",
        "Something outside the container killed it: look at the node's log (out of memory, an administrator).",
        end,
        _evidence(lines),
    )


_SIGNAL_REASONS = {
    signal.SIGILL: FailureReason.ILLEGAL_INSTRUCTION,
    signal.SIGBUS: FailureReason.SHARED_MEMORY_TOO_SMALL,
}


def _signalled(end: End, lines: Sequence[Line]) -> Failure:
    """An end by a signal that no rule explains."""
    assert end.signal is not None
    reason = _SIGNAL_REASONS.get(signal.Signals(end.signal), FailureReason.ENGINE_DIED)
    remedy = next((rule.remedy for rule in RULES if rule.reason is reason), _LOOK_AT_LOG)
    return _failure(reason, f"vLLM ended with {signal.Signals(end.signal).name}.", remedy, end, _evidence(lines))


_LOOK_AT_LOG = (
    "See the container's log (kubectl logs --previous). If it repeats, try another vLLM version in spec.runtime.image."
)


def _is_serving(end: End) -> bool:
    return end.phase in (Phase.SERVING, Phase.SMOKE, Phase.DRAINING)


def _last_exception(lines: Sequence[Line]) -> int | None:
    """The last informative line that looks like an exception."""
    return next((i for i in reversed(range(len(lines))) if _is_informative(lines[i])), None)


def _unknown(end: End, lines: Sequence[Line]) -> Failure:
    """No rule matches: the message is the last informative line that looks like an exception."""
    index = _last_exception(lines)
    how = f"vLLM ended with exit code {end.code}"
    serving = _is_serving(end)
    reason = FailureReason.ENGINE_DIED if serving else FailureReason.STARTUP_FAILED
    if index is None:
        return _failure(reason, f"{how} and did not say why.", _LOOK_AT_LOG, end, _evidence(lines))
    flag = None if serving else _named_flag(lines[index].text, end.arguments)
    if flag is not None:
        remedy = f"Correct the value of {flag}: in spec.runtime.extraArgs, or in the field that it comes from."
        return _failure(FailureReason.INVALID_FLAG, clean(lines[index].text), remedy, end, _context(lines, index))
    return _failure(reason, clean(lines[index].text), _LOOK_AT_LOG, end, _context(lines, index))


def _named_flag(text: str, arguments: Sequence[str]) -> str | None:
    """The flag whose attribute (`tokenizer_mode`) the text names. One-word names are skipped as ambiguous."""
    for argument in arguments:
        flag = argument.partition("=")[0]
        attribute = flag.lstrip("-").replace("-", "_")
        if flag.startswith("--") and "_" in attribute and re.search(rf"\b{re.escape(attribute)}\b", text):
            return flag
    return None


def _is_message(line: Line) -> bool:
    """Whether a line may be an error message: not INFO or WARNING, and no source line of a traceback."""
    return line.level in ("", "ERROR", "CRITICAL") and not _is_source(line)


def _is_source(line: Line) -> bool:
    return line.text.startswith(("    ", '  File "'))


def _is_informative(line: Line) -> bool:
    return _is_message(line) and bool(_EXCEPTION.match(line.text)) and not _UNINFORMATIVE.search(line.text)


def _context(lines: Sequence[Line], index: int) -> tuple[str, ...]:
    """The decisive line and those before it, without source lines of the traceback."""
    return _evidence(lines[max(0, index - 30) : index + 1])


def last_words(tail: Sequence[str]) -> tuple[str, ...]:
    """The last informative lines of a log: evidence for failures that the supervisor detected."""
    return _evidence(messages(list(tail)))


def _evidence(lines: Iterable[Line]) -> tuple[str, ...]:
    kept = [line.text[:400] for line in lines if line.text.strip() and not _SOURCE.match(line.text)]
    return tuple(kept[-EVIDENCE_LINES:])


def _failure(reason: FailureReason, message: str, remedy: str, end: End, evidence: tuple[str, ...]) -> Failure:
    return Failure(reason, message, remedy, evidence, end.phase, end.code, end.signal)
