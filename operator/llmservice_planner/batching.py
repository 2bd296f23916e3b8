"""The scheduler's limits, where the spec sets none (vLLM's engine/arg_utils.py, get_batch_defaults)."""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_vllm.facts import facts

from llmservice_planner.model.architecture import Architecture, Encoder, Kind
from llmservice_planner.plan import Request

# An encoder is profiled with one item of the kind with the most tokens, an image or a video:
# vllm/multimodal/encoder_budget.py (MultiModalBudget.get_modality_with_max_tokens), with get_mm_max_tokens_per_item of
# models/qwen2_vl.py and qwen3_vl.py. With --limit-mm-per-prompt '{"video": 0}' a model that takes both is profiled with
# images.


def profiled_tokens(
    model: Architecture, length: int | None, step_tokens: int, disabled_inputs: frozenset[str] = frozenset()
) -> int:
    """Tokens that the encoder processes at a time, and whose results are kept while the language model runs.

    `step_tokens`: of one step; `length`: of the longest request, None: unlimited; `disabled_inputs`: input kinds
    (image, video) that are switched off. 0 where nothing is encoded.
    """
    image = 0 if "image" in disabled_inputs else model.encoder.tokens
    video = 0 if "video" in disabled_inputs else _video_tokens(model.encoder, length)
    return max(step_tokens, image, video) if model.encoder.values and (image or video) else 0


def whole_item(model: Architecture, disabled_inputs: frozenset[str] = frozenset()) -> tuple[int, str]:
    """Tokens of the largest item that must be in one step, and its kind; 0: items may be cut."""
    encoder = model.encoder
    items = {"image": encoder.tokens, "video": encoder.video} if encoder.is_whole else {}
    left = [(tokens, kind) for kind, tokens in items.items() if kind not in disabled_inputs]
    return max(left, default=(0, ""))


def _video_tokens(encoder: Encoder, length: int | None) -> int:
    """The longest video in a request: pairs of frames, or the number of tokens that all frames share."""
    each = encoder.frames
    if not each or length is None:
        return encoder.video
    return min(encoder.video, max(1, length // each) * each)


_CPU = (128, 2048)
_SMALL = (256, 2048)
_LARGE = (1024, 8192)
_LARGEST = (1024, 16384)
LARGER_FROM = (70, 160)
"""GiB of a GPU from which on these are taken."""


@dataclass(frozen=True, slots=True)
class Batching:
    sequences: int
    """max_num_seqs."""
    tokens: int
    """max_num_batched_tokens."""


def batching(request: Request) -> Batching:
    """As requested, else the default of vLLM's OpenAI server. Without a device: the default of GPUs below 70 GiB."""
    sequences, tokens = _defaults(request)
    if request.device is not None and request.device.is_cpu:
        ranks = request.tensor_parallel_size * request.pipeline_parallel_size
        sequences, tokens = sequences * ranks, tokens * ranks
    sequences = request.max_num_seqs or sequences
    if request.max_num_batched_tokens is not None:
        return Batching(sequences, request.max_num_batched_tokens)
    if request.architecture is not None and not (request.device is not None and request.device.is_cpu):
        tokens = max(tokens, whole_item(request.architecture, request.disabled_inputs)[0])
    length = longest_length(request)
    if length is None:
        return Batching(sequences, tokens)
    if request.chunked_prefill is False or _is_encoder(request):  # a step holds the longest prompt
        tokens = max(tokens, length)
    return Batching(sequences, min(tokens, sequences * length))


def _is_encoder(request: Request) -> bool:
    """Whether tokens attend to later ones too, so that a prompt cannot be cut into steps."""
    model = request.architecture
    return model is not None and any(layer.attention.kind is Kind.ENCODER for layer, _ in model.distinct_layers)


def longest_length(request: Request) -> int | None:
    """The requested length, else the model's maximum; None: unlimited."""
    if isinstance(request.max_model_len, int):
        return request.max_model_len
    model = request.architecture
    return None if model is None else model.max_position_embeddings or model.default_max_len


def _defaults(request: Request) -> tuple[int, int]:
    device = request.device
    if device is None or device.capability in facts(request.vllm_version).small_batch_capabilities:
        return _SMALL
    if device.is_cpu:
        return _CPU
    large, largest = LARGER_FROM
    if device.memory_gib >= largest:
        return _LARGEST
    # Large batches slow an A100 down (vLLM PR 17885).
    if device.memory_gib >= large and "a100" not in device.name.lower():
        return _LARGE
    return _SMALL


def steps_in_flight(request: Request) -> int:
    """Batches that are scheduled and not finished: one per stage, and one more with asynchronous scheduling.

    vLLM schedules asynchronously except on CPUs, and except for speculation whose drafts are not made on the GPU.
    """
    runs_ahead = request.device is None or not request.device.is_cpu
    if request.draft is not None and request.draft.method in facts(request.vllm_version).methods_in_turn:
        runs_ahead = False
    return request.pipeline_parallel_size + (1 if runs_ahead else 0)
