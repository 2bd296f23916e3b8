"""What vLLM profiles an encoder with, a picture or a video: the planner's tokens against vLLM's own functions."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from llmservice_operator.planner import gpus, memory
from llmservice_operator.planner.encoder import Profiled, profiled
from llmservice_operator.planner.engines import CURRENT, engine
from llmservice_operator.planner.model import config_json
from llmservice_operator.planner.model.architecture import Architecture
from llmservice_operator.planner.plan import Request

from tests.unit.inspected_configs import qwen3_vl_moe

QWEN_25: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 128000,
    "vision_config": {
        "model_type": "qwen2_5_vl",
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
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


def model(config: dict[str, Any]) -> Architecture:
    return config_json.read(config)


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("length", [8192, 32768, 65536, 128000, 262144])
@pytest.mark.parametrize("config", [QWEN_25, qwen3_vl_moe()], ids=["Qwen2.5-VL", "Qwen3-VL"])
def test_the_kind_with_most_tokens_as_vllm_counts_them(config: dict[str, Any], length: int) -> None:
    most = max(vllms(config, length).values())
    assert profiled(model(config), CURRENT, length, 2048) == Profiled(most, most)


AT = {
    "a short request has no room for more than two frames": (QWEN_25, "0.32.0", 8192, Profiled(16_384, 16_384)),
    "a long one has room for fourteen": (QWEN_25, "0.32.0", 128_000, Profiled(114_688, 114_688)),
    "no more than fourteen": (QWEN_25, "0.32.0", 1_000_000, Profiled(114_688, 114_688)),
    "a picture, since a video's frames get smaller": (qwen3_vl_moe(), "0.32.0", 32_768, Profiled(16_384, 16_384)),
    "a video with its times": (qwen3_vl_moe(), "0.11.0", 32_768, Profiled(12_288, 153_600)),
    "pictures alone": (qwen3_vl_moe(), "0.9.2", 32_768, Profiled(16_384, 16_384)),
}


@pytest.mark.parametrize(("config", "version", "length", "expected"), AT.values(), ids=AT)
def test_what_is_profiled(config: dict[str, Any], version: str, length: int, expected: Profiled) -> None:
    assert profiled(model(config), engine(version), length, 2048) == expected


def test_without_videos_it_is_pictures_and_without_both_nothing() -> None:
    seen = model(QWEN_25)
    assert profiled(seen, CURRENT, 128_000, 2048, frozenset({"video"})) == Profiled(16_384, 16_384)
    assert profiled(seen, CURRENT, 128_000, 2048, frozenset({"image"})) == Profiled(114_688, 114_688)
    assert profiled(seen, CURRENT, 128_000, 2048, frozenset({"image", "video"})) == Profiled(0, 0)


def test_a_text_model_has_nothing_to_encode() -> None:
    text = {name: value for name, value in QWEN_25.items() if name != "vision_config"} | {"model_type": "qwen2"}
    assert profiled(model(text | {"architectures": ["Qwen2ForCausalLM"]}), CURRENT, 4096, 2048) == Profiled(0, 0)


def test_a_published_start_of_a_vision_model() -> None:
    """Qwen3-VL-30B-A3B on an A100 of 80 GB with vLLM 0.11: 87,840 tokens; with pictures alone it was 126,000."""
    large = qwen3_vl_moe()
    text = {
        "hidden_size": 2048,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_hidden_layers": 48,
        "intermediate_size": 6144,
    }
    small = large | {
        "text_config": large["text_config"] | text,
        "vision_config": large["vision_config"] | {"out_hidden_size": 2048},
    }
    request = Request(model(small), gpus.device("NVIDIA-A100-SXM4-80GB"), vllm_version="0.11.0")
    plan = memory.plan(replace(request, max_model_len=32_768))
    assert plan.kv_cache_tokens == pytest.approx(87_840, rel=0.2)
