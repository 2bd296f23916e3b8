"""Selects the files that vLLM needs: repositories hold the same weights in several formats."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import PurePosixPath

from llmservice_fetch.files import RemoteFile

# Copies of the weights for other runtimes, and files of the training.
_FOLDERS = frozenset({"original", "metal", "onnx", "openvino", "coreml", "gguf", "runs", ".git", ".cache"})
_NEVER = (
    "*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.tflite", "*.ot", "*.mlmodel", "*.mlpackage", "*.llamafile",
    "*.png", "*.jpg", "*.jpeg", "*.gif", "*.webp", "*.svg", "*.mp4", "*.pdf", "*.zip", "*.tar", "*.gz",
    ".gitattributes", "training_args.bin", "optimizer.*", "scheduler.pt", "rng_state*", "trainer_state.json", "*.lock",
)  # fmt: skip
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_MISTRAL = "consolidated*.safetensors"
# Smaller files whose names contain `token` count as tokenizer files.
_SMALL_BYTES = 64 << 20


def select(files: Sequence[RemoteFile], load_format: str = "auto") -> tuple[list[RemoteFile], list[RemoteFile]]:
    """(configuration, tokenizer and index files; weights).

    Formats in vLLM's order, per folder: Mistral's where it is complete, then safetensors, then PyTorch's.
    """
    wanted = [file for file in files if not _is_foreign(file.path)]
    weights = [file for file in wanted if _matches(file.path, *_WEIGHTS) and not _is_tokenizer(file)]
    small = [file for file in wanted if file not in weights]
    if load_format == "dummy":
        return small, []
    chosen: list[RemoteFile] = []
    for folder in dict.fromkeys(PurePosixPath(file.path).parent for file in weights):
        here = [file for file in weights if PurePosixPath(file.path).parent == folder]
        chosen += _best(here, load_format, has_params=any(file.path == str(folder / "params.json") for file in small))
    return small, chosen


def _best(files: list[RemoteFile], load_format: str, *, has_params: bool) -> list[RemoteFile]:
    mistral = [file for file in files if _matches(file.path, _MISTRAL)]
    plain = [file for file in files if _matches(file.path, "*.safetensors") and file not in mistral]
    if load_format in ("auto", "mistral") and mistral and has_params:
        return mistral
    if load_format in ("pt", "npcache", "gguf"):
        patterns = {"pt": ("*.pt", "*.bin", "*.pth"), "npcache": ("*.bin",), "gguf": ("*.gguf",)}[load_format]
        return [file for file in files if _matches(file.path, *patterns)]
    if plain or mistral:
        return plain or mistral
    torch = [file for file in files if _matches(file.path, "*.bin")] or [
        file for file in files if _matches(file.path, "*.pt", "*.pth")
    ]
    return torch or files


def _is_foreign(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(_FOLDERS.intersection(parts[:-1])) or _matches(path, *_NEVER)


def _is_tokenizer(file: RemoteFile) -> bool:
    """Whether a file with a suffix of weights is a tokenizer's, such as a token table."""
    return file.size < _SMALL_BYTES and "token" in PurePosixPath(file.path).name.lower()


def _matches(path: str, *patterns: str) -> bool:
    name = PurePosixPath(path).name
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
