"""What is wrong with a list of extra flags, before any pod: each problem with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from llmservice_runtime.bounded_json import Refused, parse
from llmservice_runtime.flags.table import (
    Ambiguous,
    FlagTable,
    Match,
    Unknown,
    UnknownVersion,
    flag_table,
    known_versions,
)

from llmservice_operator.api.flags import KEYED, OPERATOR_OWNED, TYPED

_JSON_BYTES = 2 << 20
_JSON_DEPTH = 200
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


@dataclass(frozen=True)
class FlagProblem:
    """One thing wrong with one token of extraArgs; `certain` is what holds for every version of vLLM."""

    argument: str
    message: str
    remedy: str
    certain: bool = True


def check_extra_args(args: Sequence[str], version: str) -> tuple[FlagProblem, ...]:
    """Every problem, in order. For a version without a table only what is typed or owned is looked for."""
    try:
        table, exact = flag_table(version), True
    except UnknownVersion:
        table, exact = flag_table(known_versions()[0]), False
    return tuple(problem for problem in _problems(args, table, version) if exact or problem.certain)


def _problems(args: Sequence[str], table: FlagTable, version: str) -> Iterator[FlagProblem]:
    for argument, resolution, values in table.grouped(args):
        if resolution is None:
            yield _stray(argument)
        elif isinstance(resolution, Unknown):
            yield _unknown(resolution, version)
        elif isinstance(resolution, Ambiguous):
            yield _ambiguous(resolution, version)
        else:
            yield from _about_match(argument, resolution, values)


def _stray(argument: str) -> FlagProblem:
    if argument == "--":
        return FlagProblem(argument, "-- ends the flags, so that vLLM would ignore what follows.", "Remove it.")
    return FlagProblem(
        argument,
        f"{argument!r} is the value of no flag; vLLM would take it for the model.",
        "Put it behind its flag, as an item of its own, or remove it.",
    )


def _removed(token: str, version: str) -> FlagProblem | None:
    name = token.partition("=")[0]
    replaced = REMOVED.get(name.replace("_", "-"))
    return FlagProblem(token, f"vLLM {version} has no flag {name}.", replaced, certain=False) if replaced else None


def _unknown(unknown: Unknown, version: str) -> FlagProblem:
    name = unknown.token.partition("=")[0]
    what = f"Did you mean {unknown.nearest[0]}?" if unknown.nearest else "Remove it."
    remedy = f"{what} spec.runtime.version says which vLLM's flags apply."
    problem = FlagProblem(unknown.token, f"vLLM {version} has no flag {name}.", remedy, certain=False)
    return _removed(unknown.token, version) or problem


def _ambiguous(ambiguous: Ambiguous, version: str) -> FlagProblem:
    message = f"{ambiguous.token} could be any of {', '.join(ambiguous.candidates)}."
    problem = FlagProblem(ambiguous.token, message, "Write the flag out.", certain=False)
    return _removed(ambiguous.token, version) or problem


def _about_match(argument: str, match: Match, values: tuple[str, ...]) -> Iterator[FlagProblem]:
    name = match.flag.name
    same = "" if argument == name else f" ({argument} is another spelling of it)"
    if name in TYPED:
        yield FlagProblem(argument, f"{name} has a field of its own{same}.", f"Set {TYPED[name]} instead.")
    elif name in OPERATOR_OWNED:
        yield FlagProblem(argument, f"{name} belongs to the operator{same}: {OPERATOR_OWNED[name]}.", "Remove it.")
    elif given := _fields_of_keys(argument, match, values):
        keys = " and ".join(given)
        yield FlagProblem(argument, f"{keys} of {name} has a field of its own.", f"Set {' and '.join(given.values())}.")
    elif "." not in argument.partition("=")[0]:
        yield from _about_values(argument, match, values)


def _fields_of_keys(argument: str, match: Match, values: tuple[str, ...]) -> Mapping[str, str]:
    """Keys that have a field, of a flag that takes JSON: `--flag.key value` or `--flag '{"key": value}'`."""
    fields = KEYED.get(match.flag.name, {})
    keys = argument.partition("=")[0].split(".")[1:2]
    if not keys:
        keys = [key for text in (values if match.value is None else (match.value,)) for key in _json_keys(text)]
    return {key: fields[key] for key in keys if key in fields}


def _json_keys(text: str) -> list[str]:
    try:
        document = parse(text, _JSON_BYTES, _JSON_DEPTH, drops_numbers=True)
    except Refused:
        return []
    return list(document) if isinstance(document, dict) else []


def _about_values(argument: str, match: Match, values: tuple[str, ...]) -> Iterator[FlagProblem]:
    flag = match.flag
    given = values if match.value is None else (match.value,)
    if flag.values == 0 and given:
        yield FlagProblem(argument, f"{match.spelling} takes no value.", "Remove the value.", certain=False)
    elif flag.values in (1, "+") and not given:
        yield FlagProblem(argument, f"{flag.name} needs a value.", "Add it as the next item.", certain=False)
    for value in given if flag.values != 0 else ():
        yield from _about_value(argument, match, value)


def _about_value(argument: str, match: Match, value: str) -> Iterator[FlagProblem]:
    flag = match.flag
    if flag.choices and value not in flag.choices:
        allowed = ", ".join(flag.choices)
        yield FlagProblem(argument, f"{flag.name} does not take {value!r}.", f"Use one of: {allowed}.", certain=False)
    elif not _is_kind(value, flag.kind):
        wanted = {"int": "a whole number", "float": "a number"}[flag.kind]
        yield FlagProblem(argument, f"{flag.name} needs {wanted}, not {value!r}.", "Correct the value.", certain=False)


def _is_kind(value: str, kind: str) -> bool:
    if kind not in ("int", "float"):
        return True
    try:
        int(value) if kind == "int" else float(value)
    except ValueError:
        return False
    return True
