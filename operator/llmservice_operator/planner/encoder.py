"""What an engine profiles an encoder with: one item of the kind that becomes most tokens, a picture or a video.

As vllm/multimodal/encoder_budget.py chooses it (MultiModalBudget.get_modality_with_max_tokens), with what the models
answer there (models/qwen2_vl.py and qwen3_vl.py, get_mm_max_tokens_per_item). With --limit-mm-per-prompt
'{"video": 0}' a model that takes both is profiled with pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmservice_operator.planner.engines import Engine
from llmservice_operator.planner.model.architecture import Architecture

_WORDS_OF_FRAMES = 12.5
"""Tokens that stood for one of a video where its times were counted in (vLLM 0.11, qwen3_vl.py,
get_max_video_tokens): with the 12,288 of a whole video a budget of 153,600."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """In tokens."""

    encoded: int
    """That the encoder works on at a time."""
    kept: int
    """For which its results are kept while the language model runs."""


def profiled(
    model: Architecture,
    engine: Engine,
    length: int | None,
    step_tokens: int,
    without: frozenset[str] = frozenset(),
) -> Profiled:
    """Of one step with `step_tokens`; `length` is the longest request, None: unlimited. `without`: kinds of input that
    the model is started without."""
    picture = 0 if "image" in without else model.tokens_per_image
    is_filmed = engine.profiles_videos != "no" and "video" not in without
    video = _video(model, length) if is_filmed else 0
    if not model.vision_values or not (picture or video):
        return Profiled(0, 0)
    has_words = engine.profiles_videos == "with their times" and not model.tokens_per_frames
    counted = int(video * _WORDS_OF_FRAMES) if has_words else video
    if video and counted >= picture:
        return Profiled(max(video, step_tokens), max(counted, step_tokens))
    most = max(step_tokens, picture)
    return Profiled(most, most)


def _video(model: Architecture, length: int | None) -> int:
    """The longest video that a request can hold: pairs of frames, or as many tokens as all frames share."""
    each = model.tokens_per_frames
    if not each or length is None:
        return model.tokens_per_video
    return min(model.tokens_per_video, max(1, length // each) * each)
