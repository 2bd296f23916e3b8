"""Checks of a server's models by their configurations, before weights are fetched or read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from llmservice_runtime import context_extension
from llmservice_runtime.contract import Failure
from llmservice_runtime.preflight import draft_models, model_files
from llmservice_runtime.supervisor.vllm_process import Flags, is_local

# vLLM's default where the speculative configuration names no method.
_DEFAULT_METHOD = "draft_model"


def of_configuration(
    flags: Flags, model: Path | None, draft: Path | None, weights: str, extension: str | None
) -> Iterator[Failure]:
    """Failures of the configurations. `model` and `draft` are fetched folders; None: use local paths of the flags."""
    model = model or _local(flags.model)
    draft = draft or _local(flags.draft_model)
    if model is None:
        return
    config = model_files.read_config(model)
    if not config:
        return
    stretched = extended(config, flags, extension)
    if isinstance(stretched, Failure):
        yield stretched
    yield from model_files.check_config(config, flags, weights, stretched=extension is not None)
    if draft is not None:
        yield from draft_models.check(model, draft, flags.speculative_method or _DEFAULT_METHOD)


def extended(config: model_files.Config, flags: Flags, extension: str | None) -> Failure | tuple[str, ...]:
    """Additional flags for the context extension (METHOD:FACTOR[:ORIGINAL]), or the failure where it is invalid."""
    if extension is None:
        return ()
    try:
        return context_extension.arguments(config, context_extension.Extension.parse(extension), flags)
    except context_extension.Invalid as invalid:
        return invalid.failure


def _local(path: str) -> Path | None:
    return Path(path) if path and is_local(path) else None
