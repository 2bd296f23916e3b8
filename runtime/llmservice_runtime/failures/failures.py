"""Classifies the end of vLLM: a pure function of its exit status, phase and last log lines."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmservice_runtime.contract import Failure, FailureReason, Phase
from llmservice_runtime.failures import own_failures
from llmservice_runtime.failures.failure_rules import RULES
from llmservice_runtime.health.memory_events import NO_EVENTS, MemoryEvents
from llmservice_runtime.supervisor.log_reader import Line, messages

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


def classify(end: End, tail: Sequence[str]) -> Failure:
    """The failure: reason, vLLM's decisive line as message, remedy, and the lines before it as evidence."""
    lines = list(messages(list(tail)))
    if end.memory.kills or end.signal == signal.SIGKILL:
        return _killed(end, lines)
    for rule in RULES:
        if rule.exit_codes and end.code not in rule.exit_codes:
            continue
        for index, line in enumerate(lines):
            if _is_message(line) and rule.pattern.search(line.text):
                return _failure(rule.reason, clean(line.text), rule.remedy, end, _context(lines, index))
    if end.signal is not None:
        return _signalled(end, lines)
    return _unknown(end, lines)


def clean(text: str) -> str:
    """A message without class names, pydantic's suffix and long lists, at most MESSAGE_LIMIT characters."""
    for _ in range(3):
        text = _NOISE.sub("", text)
    text = re.sub(r"(Supported architectures: ).*", r"\1see vLLM's documentation.", text).strip()
    text = re.sub(r"\(choose from .{200,}\)", "(see vLLM's documentation for the choices)", text)
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def _killed(end: End, lines: Sequence[Line]) -> Failure:
    if end.memory.kills:
        found = own_failures.killed_for_memory(end.memory)
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
    "See the container's log (kubectl logs --previous). If it repeats, try spec.compilation.enforceEager: true or "
    "another vLLM version in spec.runtime.image."
)


def _unknown(end: End, lines: Sequence[Line]) -> Failure:
    """No rule matches: the message is the last informative line that looks like an exception."""
    index = next((i for i in reversed(range(len(lines))) if _is_informative(lines[i])), None)
    how = f"vLLM ended with exit code {end.code}"
    serving = end.phase in (Phase.SERVING, Phase.SMOKE, Phase.DRAINING)
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
    return line.level in ("", "ERROR", "CRITICAL") and not line.text.startswith(("    ", '  File "'))


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
