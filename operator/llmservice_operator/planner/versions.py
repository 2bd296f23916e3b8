"""Which vLLM an image holds, and whether that one has the flags, values and parsers that the spec asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from llmservice_vllm.flags import Match
from llmservice_vllm.versions import flag_table, known_versions, order, series, words

from llmservice_operator.api.errors import Problem
from llmservice_operator.api.flags import KEYED, TYPED
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.spec import LLMServiceSpec
from llmservice_operator.planner.extra_args import check_extra_args

# v0.31.0, 0.31.0-cu128, v0.32.1rc1, and AMD's rocm7.0_ubuntu24.04_vllm_0.31.0_20261001
_TAG = re.compile(
    r":(?:[\w.-]*vllm[_-])?v?(\d+\.\d+\.\d+)(?:(?:rc|dev|post)\d+)?(?:[-+._][\w.-]*)?(?:@sha256:[0-9a-f]+)?$"
)


def image_version(image: str) -> str | None:
    """The version that an image's tag names; None for a digest alone, `latest`, and tags of other kinds."""
    tag = _TAG.search(image)
    return tag[1] if tag else None


def problems(spec: LLMServiceSpec, vllm_version: str, arguments: Sequence[str]) -> Iterator[Problem]:
    """An image whose vLLM is not known, fields that its vLLM has no flag for, and wrong extraArgs."""
    image = spec.runtime.image
    if spec.runtime.version is None and image is not None and image_version(image) is None:
        yield _unread(image)
    elif series(vllm_version) not in known_versions():
        yield _unknown(vllm_version)
    else:
        yield from _missing(arguments, vllm_version)
        yield from _parsers(spec, vllm_version)
        # Making the table costs more than all else here; most services add no flag.
        if spec.runtime.extra_args:
            yield from check_extra_args(spec.runtime.extra_args, vllm_version)


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
"""Flags whose values vLLM's configuration checks after its parser took any, and the list of a version's values."""
_SPECULATION = "--speculative-config"
_INSTEAD = {"medusa": "eagle3 or ngram"}
"""What serves in place of a word that newer versions dropped."""


def _missing(arguments: Sequence[str], version: str) -> Iterator[Problem]:
    """Flags that stand for fields, and values of them, that this version of vLLM would refuse.

    Other flags are passed over: the operator's own are in every table, extraArgs have checks of their own.
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
    """Whether a version has the flag, and takes the value."""
    flag = flag_table(version).by_spelling.get(spelling)
    if flag is None:
        return False
    if spelling in _WORDS:
        return value in words(version, _WORDS[spelling])
    if (method := _method(spelling, value)) is not None:
        return method in words(version, "speculativeMethods")
    return not flag.choices or flag.values != 1 or value in flag.choices


def _parsers(spec: LLMServiceSpec, version: str) -> Iterator[Problem]:
    """Parsers of tool calls and of thinking that this vLLM does not have; a plugin in extraArgs may bring any."""
    generation = spec.generation
    for field, name, listed, plugin in (
        ("toolCallParser", generation.tool_call_parser, "toolCallParsers", "--tool-parser-plugin"),
        ("reasoningParser", generation.reasoning_parser, "reasoningParsers", "--reasoning-parser-plugin"),
    ):
        known = words(version, listed)
        if name is not None and name not in known and not _is_given(spec, plugin, version):
            near = get_close_matches(name, sorted(known), n=3) or sorted(known)
            yield Problem(
                f"spec.generation.{field}",
                f"vLLM {version} has no such parser: {name}.",
                f"Use one of {', '.join(near)}, or bring your own with {plugin} in spec.runtime.extraArgs.",
            )


def _is_given(spec: LLMServiceSpec, flag: str, version: str) -> bool:
    table = flag_table(version)
    found = (table.resolve(argument) for argument in spec.runtime.extra_args)
    return any(isinstance(match, Match) and match.flag.name == flag for match in found)


def _field(token: str, version: str) -> str | None:
    """The field of a flag, in a spelling of this version or another one; None where none stands for it."""
    if not token.startswith("--"):
        return None
    tables = (flag_table(known).by_spelling for known in (version, *known_versions()))
    name = next((table[token].name for table in tables if token in table), token)
    return " or ".join(KEYED[name].values()) if name in KEYED else TYPED.get(name)
