"""Checks of a model's folder before vLLM reads it: config.json and the files."""

from __future__ import annotations

import getpass
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmservice_vllm.quantization import NOT_READ_BY_FP8, ONLINE

from llmservice_runtime import bounded_json
from llmservice_runtime.bounded_json import Refused, clean
from llmservice_runtime.contract import Failure, FailureReason
from llmservice_runtime.inspection.other_formats import of_files
from llmservice_runtime.inspection.tensors import INDEX_BYTES, read_header, shards
from llmservice_runtime.supervisor.vllm_process import Flags

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_LFS = b"version https://git-lfs"
CONFIG_BYTES = 4 << 20
CONFIG_DEPTH = 32
CONFIG_PARTS = 500_000
Config = Mapping[str, Any]


def check_files(folder: Path, *, needs_weights: bool) -> Iterator[Failure]:
    """Failures of missing, incomplete or unreadable files. Does not raise."""
    try:
        yield from _check_files(folder, needs_weights)
    except OSError as error:
        yield _broken(f"{folder} cannot be read: {error.filename or ''} {error.strerror or error}.")


def _check_files(folder: Path, needs_weights: bool) -> Iterator[Failure]:
    if not folder.exists():
        yield _not_found(folder, _what_exists(folder))
        return
    if not os.access(folder, os.R_OK | os.X_OK):
        yield _unreadable(folder)
        return
    files = [path for path in sorted(folder.iterdir()) if not path.is_dir()] if folder.is_dir() else [folder]
    for path in files:
        if path.suffix in (*WEIGHT_SUFFIXES, ".json") and not os.access(path, os.R_OK):
            yield _unreadable(path)
            return
    if folder.is_dir() and not any((folder / name).exists() for name in ("config.json", "params.json")):
        yield _not_a_model(folder, files)
        return
    weights = [path for path in files if path.suffix in WEIGHT_SUFFIXES]
    if needs_weights:
        yield from _check_weights(folder, weights)


def _not_a_model(folder: Path, files: list[Path]) -> Failure:
    def read(name: str) -> Config:
        try:
            return read_object(folder / name, CONFIG_BYTES)
        except (OSError, ValueError):
            return {}

    other = of_files((path.name for path in files), read)
    if other is not None:
        return Failure(FailureReason.MODEL_NOT_FOUND, f"{folder} {other.what}.", other.remedy)
    return _not_found(folder / "config.json", f"The folder holds: {_some(path.name for path in files)}.")


def _check_weights(folder: Path, weights: list[Path]) -> Iterator[Failure]:
    if not weights:
        yield _broken(f"Cannot find any model weights with `{folder}`.")
    for path in weights:
        if not path.is_file():
            yield _broken(f"{path} is not a file.")
            return
        if path.stat().st_size < 1024 and path.read_bytes().startswith(_LFS):
            yield _broken(f"{path} is a git-lfs pointer, not the weights.")
            return
    index = folder / "model.safetensors.index.json"
    if index.exists() and (failure := _check_index(index, weights)):
        yield failure
        return
    for path in weights:
        if path.suffix == ".safetensors":
            yield from _check_whole(path)


def _check_index(index: Path, weights: list[Path]) -> Failure | None:
    try:
        with bounded_json.opened(index) as file:
            named = shards(file.read(INDEX_BYTES + 1))
    except Refused as why:
        return _broken(f"{index} is not readable: {why}.")
    if missing := sorted(named - {path.name for path in weights}):
        return _broken(f"{index.name} names files that are not in {index.parent}: {_some(missing)}.")
    return None


def _check_whole(path: Path) -> Iterator[Failure]:
    try:
        read_header(path)
    except Refused as error:
        yield Failure(
            FailureReason.MODEL_CORRUPT,
            f"{path} is damaged or was cut short: {error}.",
            "Copy or upload this file again to where the uri points; if it is whole there, empty the model cache.",
        )


def read_config(folder: Path) -> Config:
    """The model's config.json with bounded numbers, size and depth; empty where it is missing or invalid."""
    try:
        config = read_object(folder / "config.json", CONFIG_BYTES)
    except (OSError, ValueError):
        return {}
    return config


def read_object(path: Path, most_bytes: int, most_parts: int = CONFIG_PARTS) -> dict[str, Any]:
    """A JSON object from a model's folder; numbers out of range become null. Refused; OSError."""
    found = bounded_json.read(path, most_bytes, CONFIG_DEPTH, most_parts, drops_numbers=True)
    if not isinstance(found, dict):
        raise Refused("it is not an object")
    return found


def text_config(config: Config) -> Config:
    """The language model's part; multimodal models have it as a section."""
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def check_config(config: Config, flags: Flags, weights: str, *, stretched: bool = False) -> Iterator[Failure]:
    """Failures where the flags do not match the model. `stretched`: the length is checked by the context extension."""
    text = text_config(config)
    heads, size = text.get("num_attention_heads"), flags.tensor_parallel_size
    if isinstance(heads, int) and size > 0 and heads % size:
        fitting = ", ".join(str(n) for n in range(1, min(heads, 16) + 1) if heads % n == 0)
        yield Failure(
            FailureReason.PARALLELISM_MISMATCH,
            f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({size}).",
            f"Set spec.parallelism.tensorParallelSize to one of {fitting}.",
        )
    if not stretched:
        yield from _check_length(text, flags)
    yield from _check_quantization(config.get("quantization_config"), flags, weights)


def _check_length(text: Config, flags: Flags) -> Iterator[Failure]:
    """Check the length of models without position scaling; vLLM checks the others."""
    longest = text.get("max_position_embeddings")
    stretched = any(_is_stretched(text.get(key)) for key in ("rope_scaling", "rope_parameters"))
    if not isinstance(longest, int) or stretched or flags.overrides_config or flags.max_model_len is None:
        return
    if flags.max_model_len > longest and os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        yield Failure(
            FailureReason.MAX_MODEL_LEN_TOO_LARGE,
            f"User-specified max_model_len ({flags.max_model_len}) is greater than the derived max_model_len "
            f"(max_position_embeddings={longest} in model's config.json).",
            f"Set spec.batching.maxModelLen to at most {longest}, or to auto.",
        )


def _is_stretched(rope: object) -> bool:
    return isinstance(rope, dict) and rope.get("rope_type", rope.get("type", "default")) != "default"


def _check_quantization(quantized: object, flags: Flags, weights: str) -> Iterator[Failure]:
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    method = clean(method[:64]) if isinstance(method, str) else None
    converts = flags.quantization in ONLINE
    if method and (converts or (flags.quantization == "fp8" and method in NOT_READ_BY_FP8)):
        yield Failure(
            FailureReason.QUANTIZATION_MISMATCH,
            f"Quantization method specified in the model config ({method}) does not match the quantization method "
            f"specified in the `quantization` argument ({flags.quantization}).",
            "The checkpoint is quantized already: set spec.precision.weights to auto.",
        )
    if quantized is None and flags.quantization is None and weights in ("int8", "int4"):
        yield Failure(
            FailureReason.QUANTIZATION_MISMATCH,
            f"The checkpoint is not quantized, and vLLM has no method that makes {weights} weights of it at load.",
            f"Use a checkpoint with {weights} weights, or set spec.precision.weights: fp8.",
        )


def _what_exists(path: Path) -> str:
    parent = next((p for p in path.parents if p.exists()), Path("/"))
    try:
        names = _some(sorted(entry.name for entry in parent.iterdir()))
    except OSError as error:
        return f"{parent} cannot be read: {error.strerror}."
    return f"{parent} holds: {names}."


def _some(names: Any) -> str:
    listed = [clean(str(name)[:128]) for name in names]
    shown = ", ".join(listed[:8])
    return f"{shown}, ..." if len(listed) > 8 else shown or "nothing"


def _not_found(path: Path, context: str) -> Failure:
    return Failure(
        FailureReason.MODEL_NOT_FOUND,
        f"There is no {path} in the container. {context}",
        "Check the path in spec.model.uri; for pvc:// it is relative to the claim's root.",
    )


def _broken(message: str) -> Failure:
    return Failure(
        FailureReason.WEIGHTS_UNREADABLE,
        message,
        "The copy of the model is incomplete: copy it again, and check spec.model.uri.",
    )


def _unreadable(path: Path) -> Failure:
    if not path.exists():
        return _broken(f"{path} is a link to nothing.")
    facts = path.stat()
    mode, kind = stat.filemode(facts.st_mode), "folder" if path.is_dir() else "file"
    return Failure(
        FailureReason.WEIGHTS_UNREADABLE,
        f"Permission denied: {path} has mode {mode}, owner {facts.st_uid} and group {facts.st_gid}; the server runs as "
        f"{_user()}.",
        f"Make the {kind} readable, for example with chmod -R a+rX on the model's folder, or set "
        "spec.podTemplate.spec.securityContext.fsGroup to its group.",
    )


def _user() -> str:
    groups = ", ".join(str(group) for group in sorted({os.getgid(), *os.getgroups()}))
    try:
        name = f" ({getpass.getuser()})"
    except (KeyError, OSError):
        name = ""
    return f"user {os.getuid()}{name} in groups {groups}"
