"""What vLLM profiles an encoder with, a picture or a video: the planner's tokens against vLLM's own functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from llmservice_planner.batching import profiled_tokens
from llmservice_planner.model import config_json

from tests.unit.planner_models import CONFIGS

QWEN_25, QWEN_3 = CONFIGS["qwen2.5-vl"], CONFIGS["qwen3_vl_moe"]
# As the preprocessors of the checkpoints say.
PICTURES = {"qwen2_5_vl": 12_845_056, "qwen3_vl_moe": 16_777_216}
VIDEOS = {"qwen3_vl_moe": 25_165_824}


def vllms(config: dict[str, Any], length: int) -> dict[str, int]:
    """Tokens of each kind, by the processing info of the model's class."""
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLProcessingInfo
    from vllm.model_executor.models.qwen3_vl import Qwen3VLProcessingInfo

    kind = config["model_type"]
    base = Qwen2_5_VLProcessingInfo if kind == "qwen2_5_vl" else Qwen3VLProcessingInfo
    pictures = SimpleNamespace(size={"shortest_edge": 1024, "longest_edge": PICTURES[kind]})
    videos = object.__new__(Qwen3VLVideoProcessor)
    videos.__dict__.update(size={"shortest_edge": 4096, "longest_edge": VIDEOS.get(kind, 0)}, temporal_patch_size=2)

    class Info(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            """Without a checkpoint's files."""

        def get_hf_config(self) -> Any:
            return SimpleNamespace(vision_config=SimpleNamespace(**config["vision_config"]))

        def get_image_processor(self, **_: object) -> Any:
            return pictures

        def get_video_processor(self, **_: object) -> Any:
            return videos

        def _merge_and_resolve_mm_processor_kwargs(self, *_: object) -> dict[str, object]:
            return {}

        def _get_vision_size(self, *_: object, default_size: Any, **__: object) -> Any:
            return default_size

    found: dict[str, int] = Info().get_mm_max_tokens_per_item(length, {"image": 1, "video": 1})
    return found


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("length", [8192, 65536, 262144])
@pytest.mark.parametrize("config", [QWEN_25, QWEN_3], ids=["Qwen2.5-VL", "Qwen3-VL"])
def test_the_kind_with_most_tokens_as_vllm_counts_them(config: dict[str, Any], length: int) -> None:
    most = max(vllms(config, length).values())
    assert profiled_tokens(config_json.read(config), length, 2048) == most


BOTH = frozenset({"image", "video"})
PROFILED: dict[str, tuple[dict[str, Any], int, frozenset[str], int]] = {
    "a short request has no room for more than two frames": (QWEN_25, 8192, frozenset(), 16_384),
    "a long one has room for fourteen": (QWEN_25, 128_000, frozenset(), 114_688),
    "no more than fourteen": (QWEN_25, 1_000_000, frozenset(), 114_688),
    "a picture, since a video's frames get smaller": (QWEN_3, 32_768, frozenset(), 16_384),
    "without videos": (QWEN_25, 128_000, frozenset({"video"}), 16_384),
    "without pictures": (QWEN_25, 128_000, frozenset({"image"}), 114_688),
    "without both": (QWEN_25, 128_000, BOTH, 0),
    "a text model": (CONFIGS["qwen2.5-7b"], 4096, frozenset(), 0),
}


@pytest.mark.parametrize(("config", "length", "without", "tokens"), PROFILED.values(), ids=PROFILED)
def test_profiled_tokens(config: dict[str, Any], length: int, without: frozenset[str], tokens: int) -> None:
    assert profiled_tokens(config_json.read(config), length, 2048, without) == tokens
