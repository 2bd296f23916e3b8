"""What an engine profiles an encoder with: one item of the kind that becomes most tokens, a picture or a video.

As vllm/multimodal/encoder_budget.py chooses it (MultiModalBudget.get_modality_with_max_tokens), with what the models
answer there (models/qwen2_vl.py and qwen3_vl.py, get_mm_max_tokens_per_item). With --limit-mm-per-prompt
'{"video": 0}' a model that takes both is profiled with pictures.
"""

from __future__ import annotations

from llmservice_operator.planner.model.architecture import Architecture, Encoder


def profiled_tokens(
    model: Architecture, length: int | None, step_tokens: int, without: frozenset[str] = frozenset()
) -> int:
    """Tokens that the encoder works on at a time, and whose results are kept while the language model runs.

    `step_tokens`: of one step; `length`: of the longest request, None: unlimited; `without`: kinds of input (image,
    video) that the model is started without. 0 where nothing is encoded.
    """
    image = 0 if "image" in without else model.encoder.tokens
    video = 0 if "video" in without else _video_tokens(model.encoder, length)
    return max(step_tokens, image, video) if model.encoder.values and (image or video) else 0


def whole_item(model: Architecture, without: frozenset[str] = frozenset()) -> tuple[int, str]:
    """Tokens of the largest item that has to be in one step, and what it is; 0: items may be cut."""
    encoder = model.encoder
    items = {"image": encoder.tokens, "video": encoder.video} if encoder.is_whole else {}
    left = [(tokens, kind) for kind, tokens in items.items() if kind not in without]
    return max(left, default=(0, ""))


def _video_tokens(encoder: Encoder, length: int | None) -> int:
    """The longest video that a request can hold: pairs of frames, or as many tokens as all frames share."""
    each = encoder.frames
    if not each or length is None:
        return encoder.video
    return min(encoder.video, max(1, length // each) * each)
