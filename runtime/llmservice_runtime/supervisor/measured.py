"""What a start reports of itself: measurements from vLLM's log, and the start cache; part of /state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_runtime.bounded_json import Reader


@dataclass(frozen=True)
class Measured:
    """Values of this start; None while unknown."""

    vllm_version: str | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    model_load_seconds: float | None = None
    model_memory_gib: float | None = None
    kv_cache_memory_gib: float | None = None
    engine_init_seconds: float | None = None
    start_seconds: float | None = None
    start_cache: str | None = None
    """New, Reused or Unused."""
    start_cache_message: str | None = None
    """Why it is unused, and what to do."""

    def to_document(self) -> dict[str, Any]:
        """The known values under their JSON names."""
        document = {json_name: getattr(self, name) for name, json_name in _NAMES.items()}
        return {key: value for key, value in document.items() if value is not None}

    @classmethod
    def from_document(cls, document: object) -> Measured:
        """The reverse; names of a later version are ignored. Refused where a value is not of its type and range."""
        given = Reader(document, "measured")
        found: dict[str, Any] = {}
        for name, json_name in _NAMES.items():
            if given.has(json_name):
                found[name] = _KINDS.get(name, Reader.number)(given, json_name)
        return cls(**found)


_NAMES: Mapping[str, str] = {
    "vllm_version": "vllmVersion",
    "kv_cache_tokens": "kvCacheTokens",
    "max_concurrency": "maxConcurrency",
    "max_model_len": "maxModelLen",
    "model_load_seconds": "modelLoadSeconds",
    "model_memory_gib": "modelMemoryGiB",
    "kv_cache_memory_gib": "kvCacheMemoryGiB",
    "engine_init_seconds": "engineInitSeconds",
    "start_seconds": "startSeconds",
    "start_cache": "startCache",
    "start_cache_message": "startCacheMessage",
}
# All others are floats.
_KINDS: Mapping[str, Callable[[Reader, str], Any]] = {
    "vllm_version": Reader.word,
    "start_cache": Reader.word,
    "start_cache_message": Reader.text,
    "kv_cache_tokens": Reader.integer,
    "max_model_len": Reader.integer,
}
