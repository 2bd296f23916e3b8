"""The vLLM version of an image, and whether it has the flags, values and parsers that the spec uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from llmservice_api.errors import Problem
from llmservice_api.flags import KEYED, OPERATOR_OWNED, TYPED
from llmservice_api.reasons import Reason
from llmservice_api.spec import LLMServiceSpec
from llmservice_runtime.bounded_json import flag_object
from llmservice_runtime.contract import FailureReason
from llmservice_vllm.facts import facts
from llmservice_vllm.flags import Ambiguous, FlagTable, Match, Unknown
from llmservice_vllm.versions import (
    UnknownVersion,
    flag_table,
    flag_table_or_default,
    known_versions,
    order,
    series,
    words,
)

# Problems of extraArgs before any pod is created, each with a remedy.

# Flags of earlier versions in old guides, and their replacements.
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
            yield _unknown_argument(resolution, version)
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


def _unknown_argument(unknown: Unknown, version: str) -> Problem:
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
    """Keys with a field, of a flag that takes JSON: `--flag.key value` or `--flag '{"key": value}'`."""
    fields = KEYED.get(match.flag.name, {})
    keys = argument.partition("=")[0].split(".")[1:2]
    if not keys:
        keys = [key for text in (values if match.value is None else (match.value,)) for key in flag_object(text)]
    return {key: fields[key] for key in keys if key in fields}


def _about_values(match: Match, values: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Problems of a flag's values, with remedies."""
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


# v0.31.0, 0.31.0-cu128, v0.32.1rc1, and AMD's rocm7.0_ubuntu24.04_vllm_0.31.0_20261001
_TAG = re.compile(
    r":(?:[\w.-]*vllm[_-])?v?(\d+\.\d+\.\d+)(?:(?:rc|dev|post)\d+)?(?:[-+._][\w.-]*)?(?:@sha256:[0-9a-f]+)?$"
)


def image_version(image: str) -> str | None:
    """The version in an image's tag; None for a digest alone, `latest`, and other tags."""
    tag = _TAG.search(image)
    return tag[1] if tag else None


def problems(spec: LLMServiceSpec, vllm_version: str, arguments: Sequence[str]) -> Iterator[Problem]:
    """An image with an unknown vLLM, fields for which its vLLM has no flag, and wrong extraArgs."""
    image = spec.runtime.image
    if spec.runtime.version is None and image is not None and image_version(image) is None:
        yield _unread(image)
    elif series(vllm_version) not in known_versions():
        yield _unknown(vllm_version)
    else:
        yield from _missing(arguments, vllm_version)
        yield from _parsers(spec, vllm_version)
        # Building the table is expensive; most services add no flag.
        if spec.runtime.extra_args:
            yield from check_extra_args(spec.runtime.extra_args, vllm_version)
            yield from _conflicts_with_fields(spec, vllm_version)


def _unread(image: str) -> Problem:
    return Problem(
        "spec.runtime.version",
        f"the tag of {image} does not say which vLLM it holds, and so not which flags exist.",
        f"Set it to the version of vLLM in the image, one of {', '.join(known_versions())}, for example "
        f"{known_versions()[0]}.0.",
        Reason.UNKNOWN_VERSION,
    )


def _unknown(version: str) -> Problem:
    newest, oldest = known_versions()[0], known_versions()[-1]
    age = "newer" if order(version) > order(newest) else "older"
    return Problem(
        "spec.runtime.version",
        f"vLLM {version} is {age} than what this operator knows the flags of ({oldest} to {newest}).",
        f"Use an image with one of {', '.join(known_versions())}"
        f"{', or a newer operator' if age == 'newer' else ''}; where the image holds another version than its tag "
        "says, set spec.runtime.version to that.",
        Reason.UNKNOWN_VERSION,
    )


_WORDS = {
    "--attention-backend": "attentionBackends",
    "--dtype": "dtypes",
    "--kv-cache-dtype": "kvCacheDtypes",
    "--quantization": "quantizations",
}
"""Flags whose values vLLM's configuration checks after parsing, with the list of a version's values."""
_SPECULATION = "--speculative-config"
_INSTEAD = {"medusa": "eagle3 or ngram"}
"""Replacements of values that newer versions dropped."""


def _missing(arguments: Sequence[str], version: str) -> Iterator[Problem]:
    """Flags of fields, and their values, that this version of vLLM would refuse.

    The operator's own flags are in every table; extraArgs are checked separately.
    """
    for index, token in enumerate(arguments):
        field = _field(token, version)
        if field is None:
            continue
        value = arguments[index + 1] if index + 1 < len(arguments) else ""
        if token not in flag_table(version).by_spelling:
            yield _absent(field, token, None, version)
        elif not _takes(version, token, value):
            yield _absent(field, token, value, version)


def _absent(field: str, flag: str, value: str | None, version: str) -> Problem:
    if value is None:
        what, having = flag, [known for known in known_versions() if flag in flag_table(known).by_spelling]
    else:
        method = _method(flag, value)
        what = f"{flag} {value}" if method is None else f"method {method} of {flag}"
        having = [known for known in known_versions() if _takes(known, flag, value)]
        value = method or value
    does = f"vLLM {', '.join(having)} does" if having else "no vLLM that this operator knows does"
    instead = f"Use {_INSTEAD[value]}" if value in _INSTEAD else "Remove it"
    return Problem(
        field,
        f"it stands for {what}, which vLLM {version} does not have; {does}.",
        f"{instead}, or use such an image.",
        Reason.UNKNOWN_FLAG,
    )


def _method(flag: str, value: str) -> str | None:
    return str(json.loads(value).get("method")) if flag == _SPECULATION else None


def _takes(version: str, spelling: str, value: str) -> bool:
    """Whether a version has the flag, and accepts the value."""
    flag = flag_table(version).by_spelling.get(spelling)
    if flag is None:
        return False
    if spelling in _WORDS:
        return value in words(version, _WORDS[spelling])
    if (method := _method(spelling, value)) is not None:
        return method in words(version, "speculativeMethods")
    return not flag.choices or flag.values != 1 or value in flag.choices


def _parsers(spec: LLMServiceSpec, version: str) -> Iterator[Problem]:
    """Parsers of tool calls and reasoning that this vLLM lacks; a plugin in extraArgs may provide any."""
    generation = spec.generation
    for field, name, listed, plugin in (
        ("toolCallParser", generation.tool_call_parser, "toolCallParsers", "--tool-parser-plugin"),
        ("reasoningParser", generation.reasoning_parser, "reasoningParsers", "--reasoning-parser-plugin"),
    ):
        known = words(version, listed)
        if name is not None and name not in known and given(plugin, spec.runtime.extra_args, version) is None:
            near = get_close_matches(name, sorted(known), n=3) or sorted(known)
            yield Problem(
                f"spec.generation.{field}",
                f"vLLM {version} has no such parser: {name}.",
                f"Use one of {', '.join(near)}, or bring your own with {plugin} in spec.runtime.extraArgs.",
            )


def given(flag: str, arguments: Sequence[str], version: str) -> tuple[str, str, bool] | None:
    """A flag as written, its value, and whether it is negated, in every spelling of that vLLM's parser; of duplicates
    the last."""
    if not arguments:
        return None
    last = None
    for argument, found, following in flag_table_or_default(version).grouped(arguments):
        if isinstance(found, Match) and found.flag.name == flag:
            last = argument, found.value or next(iter(following), ""), found.is_negated
    return last


def is_on(flag: str, arguments: Sequence[str], version: str) -> bool:
    """Whether the arguments have a flag without negating it."""
    found = given(flag, arguments, version)
    return found is not None and not found[2]


def _conflicts_with_fields(spec: LLMServiceSpec, version: str) -> Iterator[Problem]:
    """Arguments that this vLLM refuses in combination with fields."""
    known, speculation, arguments = facts(version), spec.speculative_decoding, spec.runtime.extra_args
    method = "none" if speculation is None else speculation.method
    if is_on("--async-scheduling", arguments, version) and known.are_refusals_read:
        is_first = any(_FIRST_RUNNER.items() <= variable.items() for variable in spec.runtime.env)
        beside = None
        if method in known.methods_in_turn or (is_first and method == "ngram"):
            beside = f"spec.speculativeDecoding.method {method}"
        elif is_first and spec.parallelism.pipeline_parallel_size > 1:
            beside = "spec.parallelism.pipelineParallelSize above 1"
        runner = f" and {_FIRST_RUNNER['name']}=0" if is_first else ""
        if beside:
            yield _refused(
                f"vLLM {version} refuses --async-scheduling with {beside}{runner}.",
                "Remove --async-scheduling: vLLM schedules so by itself where it can.",
            )
    backend = (given("--moe-backend", arguments, version) or ("", "", False))[1].lower().replace("-", "_")
    if spec.is_lora_on and backend in known.moe_backends_without_lora:
        yield _refused(
            f"vLLM {version} has no LoRA with --moe-backend {backend}.",
            "Remove spec.lora and spec.adapters, or take another backend.",
        )
    transfer = flag_object((given("--kv-transfer-config", arguments, version) or ("", "", False))[1])
    if spec.runtime.sleep_mode and (why := _connector_without_sleep(transfer, known.sleep_with_connectors)) is not None:
        yield _refused(
            f"vLLM {version} refuses spec.runtime.sleepMode with {why} in --kv-transfer-config.",
            "Remove spec.runtime.sleepMode, or take another connector.",
        )


_FIRST_RUNNER = {"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}


def _connector_without_sleep(transfer: Mapping[str, Any], known: Mapping[str, tuple[str, object] | None]) -> str | None:
    """The connector of a configuration, possibly one of several, that does not support sleep; unknown ones may."""
    name, more = transfer.get("kv_connector"), transfer.get("kv_connector_extra_config")
    options = more if isinstance(more, dict) else {}
    if not isinstance(name, str) or transfer.get("kv_connector_module_path"):
        return None
    if name == "MultiConnector":
        each = options.get("connectors")
        several = (one for one in each if isinstance(one, dict)) if isinstance(each, list) else ()
        return next(filter(None, (_connector_without_sleep(one, known) for one in several)), None)
    if name not in known:
        return None
    if (needed := known[name]) is None:
        return name
    key, value = needed
    return None if options.get(key, value) == value else f"{name} without {key} {json.dumps(value)}"


def _refused(message: str, remedy: str) -> Problem:
    return Problem("spec.runtime.extraArgs", message, remedy, Reason.UNSUPPORTED_COMBINATION)


def _field(token: str, version: str) -> str | None:
    """The field of a flag, in a spelling of this or another version, or None."""
    if not token.startswith("--"):
        return None
    tables = (flag_table(known).by_spelling for known in (version, *known_versions()))
    name = next((table[token].name for table in tables if token in table), token)
    return " or ".join(KEYED[name].values()) if name in KEYED else TYPED.get(name)
