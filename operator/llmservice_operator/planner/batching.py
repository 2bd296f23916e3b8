"""The scheduler's limits where nobody set them (vLLM's engine/arg_utils.py, get_batch_defaults), and before."""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_operator.planner.engines import Engine, engine
from llmservice_operator.planner.model.architecture import Kind
from llmservice_operator.planner.plan import Device, Request

_CPU = (128, 2048)
_SMALL = (256, 2048)
_LARGE = (1024, 8192)
_LARGEST = (1024, 16384)


@dataclass(frozen=True, slots=True)
class Batching:
    """What one step works on at most."""

    sequences: int
    """max_num_seqs."""
    tokens: int
    """max_num_batched_tokens."""


def batching(request: Request) -> Batching:
    """Said or vLLM's default, for its OpenAI server. Without a device: the default of GPUs below 70 GiB."""
    generation = engine(request.vllm_version)
    if not generation.is_v1:
        return _batching_v0(request, generation)
    sequences, tokens = _defaults(request.device, generation)
    if request.device is not None and request.device.is_cpu:
        ranks = request.tensor_parallel_size * request.pipeline_parallel_size
        sequences, tokens = sequences * ranks, tokens * ranks
    sequences = request.max_num_seqs or sequences
    if request.max_num_batched_tokens is not None:
        return Batching(sequences, request.max_num_batched_tokens)
    length = longest_length(request)
    if length is None:
        return Batching(sequences, tokens)
    if request.chunked_prefill is False:  # a step holds the longest prompt
        tokens = max(tokens, length)
    return Batching(sequences, min(tokens, sequences * length))


def longest_length(request: Request) -> int | None:
    """The length that vLLM starts from: the one that is asked for, or the model's own longest; None: unlimited."""
    if isinstance(request.max_model_len, int):
        return request.max_model_len
    model = request.architecture
    return None if model is None else model.max_position_embeddings or model.default_max_len


def _batching_v0(request: Request, generation: Engine) -> Batching:
    """Without chunked prefill a step holds the longest request; from some length on prefill was chunked."""
    tokens = request.max_num_batched_tokens
    if tokens is None:
        length = longest_length(request) or generation.chunk_tokens
        is_chunked = generation.chunk_above is not None and length > generation.chunk_above and not _is_latent(request)
        tokens = generation.chunk_tokens if is_chunked else max(length, 2048)
    return Batching(request.max_num_seqs or _SMALL[0], tokens)


def _is_latent(request: Request) -> bool:
    """V0 engines switched chunked prefill off for MLA."""
    model = request.architecture
    return model is not None and any(layer.attention.kind is Kind.LATENT for layer, _ in model.distinct_layers)


def _defaults(device: Device | None, generation: Engine) -> tuple[int, int]:
    if device is None:
        return _SMALL
    if device.is_cpu:
        return _CPU
    if generation.seqs_large_default:
        return _LARGE[0], _SMALL[1]
    if device.memory_gib >= 160 and generation.graphs_in_budget:
        return _LARGEST
    # Large batches slow an A100 down (vLLM PR 17885).
    if device.memory_gib >= 70 and "a100" not in device.name.lower():
        return _LARGE
    return _SMALL


def steps_in_flight(request: Request) -> int:
    """Batches that are scheduled and not yet settled: a stage each, and one more where scheduling runs ahead.

    vLLM schedules ahead everywhere but on CPUs, and but for speculation that its GPU cannot draft by itself.
    """
    runs_ahead = request.device is None or not request.device.is_cpu
    if request.draft is not None and request.draft.method in ("ngram", "medusa", "suffix", "mlp_speculator"):
        runs_ahead = False
    return request.pipeline_parallel_size + (1 if runs_ahead else 0)
