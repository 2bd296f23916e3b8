"""What is wrong with a list of extra flags, before any pod: each problem with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from llmservice_runtime.bounded_json import flag_object
from llmservice_runtime.contract import FailureReason
from llmservice_vllm.flags import Ambiguous, FlagTable, Match, Unknown
from llmservice_vllm.versions import UnknownVersion, flag_table, known_versions

from llmservice_operator.api.errors import Problem
from llmservice_operator.api.flags import KEYED, OPERATOR_OWNED, TYPED
from llmservice_operator.api.reasons import Reason

# Flags of earlier versions that people still copy from old guides, and what took their place.
REMOVED: Mapping[str, str] = MappingProxyType(
    {
        "--swap-space": "Remove it; to keep cache blocks in the node's memory set spec.batching.kvOffloadingSize.",
        "--disable-log-requests": "Remove it: requests are not logged unless --enable-log-requests is given.",
        "--use-v2-block-manager": "Remove it: there is one block manager.",
        "--num-scheduler-steps": "Remove it; see --async-scheduling.",
        "--device": "Remove it and set spec.accelerator.type; the image decides the device.",
        "--task": "Set spec.model.runner (generate or pooling) and spec.model.convert.",
        "--rope-scaling": "Set spec.contextExtension, or use --hf-overrides with rope_parameters.",
        "--rope-theta": "Use --hf-overrides with rope_parameters.",
        "--guided-decoding-backend": "Use --structured-outputs-config.backend.",
        "--max-num-partial-prefills": "Remove it: chunked prefill has no such limit any more.",
        "--max-long-partial-prefills": "Remove it; see spec.batching.longPrefillTokenThreshold.",
        "--calculate-kv-scales": "Remove it; for an fp8 cache with scales use a checkpoint that holds them.",
        "--max-seq-len-to-capture": "Use --max-cudagraph-capture-size.",
        "--speculative-model": "Set spec.speculativeDecoding.model.",
        "--num-speculative-tokens": "Set spec.speculativeDecoding.numSpeculativeTokens.",
        "--preemption-mode": "Remove it: preempted requests are always computed again.",
        "--worker-use-ray": "Use --distributed-executor-backend ray.",
        "--enable-reasoning": "Set spec.generation.reasoningParser alone.",
    }
)


def check_extra_args(args: Sequence[str], version: str) -> tuple[Problem, ...]:
    """Every problem, in order. For a version without a table only those that hold for every version."""
    try:
        table, is_exact = flag_table(version), True
    except UnknownVersion:
        table, is_exact = flag_table(known_versions()[0]), False
    found = _problems(args, table, version)
    return tuple(problem for problem in found if is_exact or problem.reason is Reason.INVALID_SPEC)


def _problems(args: Sequence[str], table: FlagTable, version: str) -> Iterator[Problem]:
    for argument, resolution, values in table.grouped(args):
        if resolution is None:
            yield _stray(argument)
        elif isinstance(resolution, Unknown):
            yield _unknown(resolution, version)
        elif isinstance(resolution, Ambiguous):
            yield _ambiguous(resolution, version)
        else:
            yield from _about_match(argument, resolution, values)


def _problem(message: str, remedy: str, reason: Reason = Reason.INVALID_SPEC) -> Problem:
    return Problem("spec.runtime.extraArgs", message, remedy, reason)


def _stray(argument: str) -> Problem:
    if argument == "--":
        return _problem("-- ends the flags, so that vLLM would ignore what follows.", "Remove it.")
    return _problem(
        f"{argument!r} is the value of no flag; vLLM would take it for the model.",
        "Put it behind its flag, as an item of its own, or remove it.",
    )


def _unknown(unknown: Unknown, version: str) -> Problem:
    name = unknown.token.partition("=")[0]
    what = f"Did you mean {unknown.nearest[0]}?" if unknown.nearest else "Remove it."
    remedy = _replacement(name) or f"{what} spec.runtime.version says which vLLM's flags apply."
    return _problem(f"vLLM {version} has no flag {name}.", remedy, Reason.UNKNOWN_FLAG)


def _ambiguous(ambiguous: Ambiguous, version: str) -> Problem:
    name = ambiguous.token.partition("=")[0]
    if (replaced := _replacement(name)) is not None:
        return _problem(f"vLLM {version} has no flag {name}.", replaced, Reason.UNKNOWN_FLAG)
    message = f"{ambiguous.token} could be any of {', '.join(ambiguous.candidates)}."
    return _problem(message, "Write the flag out.", Reason.UNKNOWN_FLAG)


def _replacement(name: str) -> str | None:
    """What took the place of a flag of earlier versions."""
    return REMOVED.get(name.replace("_", "-"))


def _about_match(argument: str, match: Match, values: tuple[str, ...]) -> Iterator[Problem]:
    name = match.flag.name
    same = "" if argument == name else f" ({argument} is another spelling of it)"
    if name in TYPED:
        yield _problem(f"{name} has a field of its own{same}.", f"Set {TYPED[name]} instead.")
    elif name in OPERATOR_OWNED:
        yield _problem(f"{name} belongs to the operator{same}: {OPERATOR_OWNED[name]}.", "Remove it.")
    elif given := _fields_of_keys(argument, match, values):
        keys = " and ".join(given)
        yield _problem(f"{keys} of {name} has a field of its own.", f"Set {' and '.join(given.values())}.")
    elif "." not in argument.partition("=")[0]:
        for message, remedy in _about_values(match, values):
            yield _problem(message, remedy, _INVALID)


_INVALID = Reason(FailureReason.INVALID_FLAG)


def _fields_of_keys(argument: str, match: Match, values: tuple[str, ...]) -> Mapping[str, str]:
    """Keys that have a field, of a flag that takes JSON: `--flag.key value` or `--flag '{"key": value}'`."""
    fields = KEYED.get(match.flag.name, {})
    keys = argument.partition("=")[0].split(".")[1:2]
    if not keys:
        keys = [key for text in (values if match.value is None else (match.value,)) for key in flag_object(text)]
    return {key: fields[key] for key in keys if key in fields}


def _about_values(match: Match, values: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """What is wrong with the values of a flag, and what to do about it."""
    flag = match.flag
    given = values if match.value is None else (match.value,)
    if flag.values == 0 and given:
        yield f"{match.spelling} takes no value.", "Remove the value."
    elif flag.values in (1, "+") and not given:
        yield f"{flag.name} needs a value.", "Add it as the next item."
    for value in given if flag.values != 0 else ():
        if flag.choices and value not in flag.choices:
            yield f"{flag.name} does not take {value!r}.", f"Use one of: {', '.join(flag.choices)}."
        elif not _is_kind(value, flag.kind):
            kind = {"int": "a whole number", "float": "a number"}[flag.kind]
            yield f"{flag.name} needs {kind}, not {value!r}.", "Correct the value."


def _is_kind(value: str, kind: str) -> bool:
    if kind not in ("int", "float"):
        return True
    try:
        int(value) if kind == "int" else float(value)
    except ValueError:
        return False
    return True
