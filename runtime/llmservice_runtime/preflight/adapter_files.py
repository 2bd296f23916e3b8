"""Checks that a folder holds a LoRA adapter that this server can load, before vLLM loads it.

vLLM loads an adapter of a smaller model without an error and then generates nonsense. The files are untrusted: any
content gives a result and never an exception.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from llmservice_runtime import bounded_json, contract
from llmservice_runtime.bounded_json import Reader, Refused
from llmservice_runtime.inspection.tensors import Header, read_header
from llmservice_runtime.preflight.model_files import text_config

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")
_PLACE = 4
"""Column of the mount's path in mountinfo."""


def mount_of(path: Path) -> Path:
    """The innermost mount of an absolute, unresolved path; the root where mounts cannot be listed."""
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return Path("/")
    mounts = {Path(_ESCAPED.sub(_byte, line.split(b" ")[_PLACE]).decode(errors="surrogateescape")) for line in lines}
    return next((parent for parent in (path, *path.parents) if parent in mounts), Path("/"))


def _byte(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8)])


CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
_CONFIG_BYTES = 1 << 20
_CONFIG_PARTS = 100_000
# Adapters of every expert of the largest models have some 100,000 tensors.
_HEADER_BYTES = 24 << 20
_MOST_TARGETS = 65_536
_MOST_PATTERNS = 4_096
_LONGEST_WORD = 1024
_LONGEST_PATTERN = 256
_LARGEST_RANK = 2**31
_LORA_A = ".lora_A.weight"
_LAYER = re.compile(r"\.layers\.(\d{1,9})\.")
# Modules whose input is the hidden state in every architecture.
_OF_HIDDEN_SIZE = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "qkv_proj", "gate_up_proj"})
_REPEATED_GROUP = re.compile(r"\)[*+?{]")
_REPEATS = re.compile(r"[*+{]|(?<!\()\?")
_MOST_REPEATS = 2
_MOST_GROUPS = 3
_SAVE_AGAIN = "Save it again with PEFT's save_pretrained."
_NAME_A_FOLDER = "Its uri must name the folder of a PEFT LoRA adapter."
_COPY_AGAIN = "The copy of the adapter is incomplete: copy it again."
_ASK_FOR_RIGHTS = "Make the adapter's folder readable, for example with chmod -R a+rX."

Json = Mapping[str, Any]
MountOf = Callable[[Path], Path]


class _Invalid(Exception):
    """The adapter cannot be served; message and remedy."""


def problem(folder: Path, *, max_rank: int, base: Json, mount: MountOf = mount_of) -> str | None:
    """The problem with its remedy; None where none was found. `base` is the base model's config.json.

    `mount` maps a path to its mount: links may only lead to other folders of the adapter's own volume.
    """
    try:
        _check(folder, max_rank, base, mount)
    except _Invalid as invalid:
        return str(invalid)
    except OSError as error:
        return f"{error.filename or folder} cannot be read: {error.strerror or error}. {_ASK_FOR_RIGHTS}"
    return None


def _check(folder: Path, max_rank: int, base: Json, mount: MountOf) -> None:
    if not folder.is_dir():
        raise _Invalid(f"There is no folder {folder} in the container. Check its uri in spec.adapters.")
    _check_config(_config(folder, mount), max_rank)
    weights = next((folder / name for name in WEIGHTS if os.path.lexists(folder / name)), None)
    if weights is None:
        raise _Invalid(f"{folder} has none of {', '.join(WEIGHTS)}. {_COPY_AGAIN}")
    _check_place(folder, weights, mount)
    if not weights.is_file():
        raise _Invalid(f"{weights} is not a file. {_COPY_AGAIN}")
    if not os.access(weights, os.R_OK):
        raise _Invalid(f"{weights} may not be read by user {os.getuid()}. {_ASK_FOR_RIGHTS}")
    # Pickled files are not checked here: vLLM loads only tensors from them.
    if weights.suffix == ".safetensors":
        _check_weights(weights, max_rank, base)


def _check_place(folder: Path, file: Path, mount: MountOf) -> None:
    """Refuse links that leave the adapter's volume: the pod mounts others, with files of other owners."""
    # The second one if the volume itself is reached through a link.
    own = {mount(folder.absolute()), mount(_resolved(folder.parent))}
    if folder.is_relative_to(contract.ARTIFACTS_DIR):
        # Only the fetch container writes there, and its links lead into the cache.
        own.add(Path(contract.MODELS_DIR))
    if mount(_resolved(file)) not in own:
        raise _Invalid(f"{file} is a link that leaves the volume of the adapter. Put the file itself there.")


def _resolved(path: Path) -> Path:
    """The resolved path. Unlike Path.resolve it does not raise for cyclic links."""
    return Path(os.path.realpath(path))


def _config(folder: Path, mount: MountOf) -> Reader:
    file = folder / CONFIG
    try:
        _check_place(folder, file, mount)
        return Reader(bounded_json.read(file, _CONFIG_BYTES, max_items=_CONFIG_PARTS, drops_numbers=True))
    except OSError as error:
        why = error.strerror or str(error)
    except Refused as refused:
        why = str(refused)
    raise _Invalid(f"{folder} has no {CONFIG} that can be read: {why}. {_NAME_A_FOLDER}")


def _check_config(config: Reader, max_rank: int) -> None:
    try:
        kind = config.word("peft_type", _LONGEST_WORD, "LORA")
        ranks = (*_ranks(config), config.integer("r", 1, _LARGEST_RANK))
        config.number("lora_alpha", -_LARGEST_RANK, _LARGEST_RANK)
        _check_targets(config)
    except Refused as why:
        raise _Invalid(f"Its {CONFIG} is not that of a LoRA adapter: {why}. {_SAVE_AGAIN}") from None
    if kind != "LORA":
        raise _Invalid(f"It is a PEFT adapter of type {kind}. vLLM serves LoRA adapters only.")
    _check_rank(max(ranks), max_rank)


def _ranks(config: Reader) -> Iterator[int]:
    """Ranks of single modules; also checks alpha_pattern. vLLM matches the keys of both as regular expressions."""
    for name in ("rank_pattern", "alpha_pattern"):
        patterns = config.value(name)
        if patterns is None:
            continue
        given = Reader(patterns, name)
        if len(patterns) > _MOST_PATTERNS:
            raise Refused(f"{name} has more than {_MOST_PATTERNS} entries")
        for key in patterns:
            if len(key) > _LONGEST_PATTERN or _may_take_for_ever(key):
                raise Refused(f"{name} has a regular expression that may take very long")
            if name == "rank_pattern":
                yield given.integer(key, 1, _LARGEST_RANK)
            else:
                given.number(key, -_LARGEST_RANK, _LARGEST_RANK)


def _may_take_for_ever(pattern: str) -> bool:
    """Whether a regular expression may backtrack for more than a few milliseconds, which would block the engine."""
    return (
        bool(_REPEATED_GROUP.search(pattern))
        or len(_REPEATS.findall(pattern)) > _MOST_REPEATS
        or pattern.count("(") > _MOST_GROUPS
    )


def _check_targets(config: Reader) -> None:
    targets = config.value("target_modules")
    if isinstance(targets, str) and targets:
        return
    if not config.words("target_modules", _MOST_TARGETS, _LONGEST_WORD):
        raise Refused("it names no target_modules")


def _check_rank(rank: int, max_rank: int) -> None:
    if rank > max_rank:
        raise _Invalid(
            f"Its rank {rank} exceeds {max_rank}, the server's limit. "
            "Raise spec.lora.maxLoraRank, which restarts the server."
        )


def _check_weights(weights: Path, max_rank: int, base: Json) -> None:
    """Compare the tensors' shapes with the base model."""
    try:
        header = read_header(weights, _HEADER_BYTES)
    except Refused as why:
        raise _Invalid(f"{weights} is damaged: {why}. {_COPY_AGAIN}") from None
    _check_shapes(header, max_rank, text_config(base))


def _check_shapes(header: Header, max_rank: int, base: Json) -> None:
    hidden, layers = base.get("hidden_size"), base.get("num_hidden_layers")
    for name, tensor in header.items():
        found = _LAYER.search(name)
        if found is None or not name.endswith(_LORA_A):
            continue
        if isinstance(layers, int) and int(found[1]) >= layers:
            raise _other_base(f"{name} is for layer {found[1]}, and the base model has {layers} layers")
        module = name.removesuffix(_LORA_A).rpartition(".")[2]
        if module not in _OF_HIDDEN_SIZE or len(tensor.shape) != 2:
            continue
        rank, width = tensor.shape
        if isinstance(hidden, int) and width != hidden:
            raise _other_base(f"{name} has input size {width}, and the base model's hidden size is {hidden}")
        _check_rank(rank, max_rank)


def _other_base(evidence: str) -> _Invalid:
    return _Invalid(f"It was made for another base model: {evidence}. Use an adapter trained on spec.model.uri.")
