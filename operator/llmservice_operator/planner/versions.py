"""Which vLLM an image holds, and whether that one has the flags that the spec asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from llmservice_runtime.flags import Flag, flag_table, known_versions
from llmservice_runtime.flags.table import series

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
    age = "newer" if _order(version) > _order(newest) else "older"
    return Problem(
        "spec.runtime.version",
        f"vLLM {version} is {age} than what this operator knows the flags of ({oldest} to {newest}).",
        f"Use an image with one of {', '.join(known_versions())}"
        f"{', or a newer operator' if age == 'newer' else ''}; where the image holds another version than its tag "
        "says, set spec.runtime.version to that.",
        Reason.UNKNOWN_VERSION,
    )


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _missing(arguments: Sequence[str], version: str) -> Iterator[Problem]:
    """Flags that stand for fields, and values of them, that this version of vLLM would refuse.

    Other flags are passed over: the operator's own are in every table, extraArgs have checks of their own.
    """
    table = flag_table(version).by_spelling
    for index, token in enumerate(arguments):
        field = _field(token)
        if field is None:
            continue
        value = arguments[index + 1] if index + 1 < len(arguments) else ""
        flag = table.get(token)
        if flag is None:
            yield _absent(field, token, _having(token, None), version)
        elif not _takes(flag, value):
            yield _absent(field, f"{token} {value}", _having(token, value), version)


def _absent(field: str, what: str, versions: Sequence[str], version: str) -> Problem:
    having = f"vLLM {', '.join(versions)}" if versions else "no vLLM that this operator knows"
    return Problem(
        field,
        f"it stands for {what}, which vLLM {version} does not have; {having} does.",
        "Remove it, or use such an image.",
        Reason.UNKNOWN_FLAG,
    )


def _takes(flag: Flag, value: str) -> bool:
    return not flag.choices or flag.values != 1 or value in flag.choices


def _having(spelling: str, value: str | None) -> tuple[str, ...]:
    """The versions with the flag, or with the value of it, newest first."""
    flags = {version: flag_table(version).by_spelling.get(spelling) for version in known_versions()}
    return tuple(v for v, flag in flags.items() if flag is not None and (value is None or _takes(flag, value)))


def _field(token: str) -> str | None:
    """The field for a flag; --no-X has that of --X. None where no field stands for it."""
    flag = f"--{token.removeprefix('--no-')}" if token.startswith("--no-") else token
    return " or ".join(KEYED[flag].values()) if flag in KEYED else TYPED.get(flag)
