"""YaRN: from the model's config.json to vLLM's flags, or a refusal that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_runtime.preflight.model_checks import Extension, InvalidExtension, extension_arguments
from llmservice_runtime.supervisor.vllm_process import read_flags

LLAMA = {"model_type": "llama", "max_position_embeddings": 1024, "rope_theta": 10000.0}


def extended(config: dict[str, Any], text: str = "yarn:4", *args: str) -> tuple[str, ...]:
    return extension_arguments(config, Extension.parse(text), read_flags(args))


ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 10000.0}
STRETCHED: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a plain model": (LLAMA, "yarn:4", {"max_position_embeddings": 4096, "rope_parameters": ROPE}),
    "another original length": (
        LLAMA, "yarn:2:512",
        {"max_position_embeddings": 1024,
         "rope_parameters": {**ROPE, "factor": 2.0, "original_max_position_embeddings": 512}},
    ),
    "the parameters of newer files": (
        {**LLAMA, "rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "yarn:4",
        {"max_position_embeddings": 4096, "rope_parameters": {**ROPE, "rope_theta": 5e5}},
    ),
    "a multimodal model": (
        {"text_config": {**LLAMA, "rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}}, "yarn:4",
        {"text_config": {"max_position_embeddings": 4096, "rope_parameters": {**ROPE, "mrope_section": [1, 2]}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STRETCHED)
def test_what_vllm_is_told(case: str) -> None:
    config, text, overrides = STRETCHED[case]
    flag, overridden, length_flag, length = extended(config, text)
    assert (flag, length_flag) == ("--hf-overrides", "--max-model-len")
    assert json.loads(overridden) == overrides
    assert int(length) == overrides.get("text_config", overrides)["max_position_embeddings"]


@pytest.mark.parametrize("length", ["4096", "2k", "auto"])
def test_a_length_that_is_given_stays(length: str) -> None:
    assert "--max-model-len" not in extended(LLAMA, "yarn:4", "--max-model-len", length)


REFUSED: dict[str, tuple[dict[str, Any], str, tuple[str, ...], str]] = {
    "ALiBi": ({"model_type": "falcon", "alibi": True, "max_position_embeddings": 2048}, "yarn:4", (), "alibi"),
    "ALiBi, another way": ({"model_type": "x", "attn_config": {"alibi": True}}, "yarn:4", (), "alibi"),
    "learned positions": ({"model_type": "gpt2", "n_positions": 1024}, "yarn:4", (), "gpt2"),
    "stretched already": (
        {**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8}}, "yarn:4", (), "llama3 already",
    ),
    "of several kinds": (
        {**LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1}, "sliding_attention": {"rope_theta": 2}}},
        "yarn:4", (), "several kinds",
    ),
    "an unknown length": ({"model_type": "llama"}, "yarn:4", (), "does not say for how many tokens"),
    "beyond the factor": (LLAMA, "yarn:4", ("--max-model-len", "4097"), "to 4096"),
    "two overrides": (LLAMA, "yarn:4", ("--hf-overrides", "{}"), "--hf-overrides"),
    "no factor": (LLAMA, "yarn", (), "METHOD:FACTOR"),
    "a factor that stretches nothing": (LLAMA, "yarn:1", (), "not served"),
    "another method": (LLAMA, "ntk:4", (), "not served"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    config, text, args, words = REFUSED[case]
    with pytest.raises(InvalidExtension) as caught:
        extended(config, text, *args)
    assert words in caught.value.failure.message
    assert "spec.contextExtension" in caught.value.failure.remedy


def test_the_remedy_names_the_factor_that_would_do() -> None:
    with pytest.raises(InvalidExtension) as caught:
        extended(LLAMA, "yarn:2", "--max-model-len", "5000")
    assert "factor to 5" in caught.value.failure.remedy
    assert "at most 2048" in caught.value.failure.remedy


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_vllm_takes_it(tmp_path: Any) -> None:
    """Its own configuration of a real model folder: the length that it derives is the one that is promised."""
    from vllm.config import ModelConfig

    config = {
        **LLAMA, "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 32,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    overrides = json.loads(extended(config)[1])
    made = ModelConfig(str(tmp_path), hf_overrides=overrides, skip_tokenizer_init=True, dtype="float32")
    assert made.max_model_len == 4096
    assert made.hf_config.rope_parameters["rope_type"] == "yarn"
    assert made.hf_config.rope_parameters["original_max_position_embeddings"] == 1024
