"""The planner's counts against the classes themselves: transformers' models on the meta device, and vLLM's own rules.

Configurations are the classes' defaults, which for most are those of a published model. Counted to the parameter: what
has a tolerance says why.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Kind

# vLLM and torch warn while they are imported; that is theirs.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

_CLASSES = """
    llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5_text qwen3_5_moe_text gemma gemma2
    gemma3_text gemma3n_text gemma4_text phi phi3 phimoe gpt_oss deepseek_v2 deepseek_v3 kimi_linear glm glm4 glm4_moe
    granite granitemoe granitemoehybrid falcon falcon_h1 bloom mpt opt gpt2 gpt_bigcode starcoder2 gpt_neox gptj jamba
    bamba mamba mamba2 falcon_mamba nemotron_h cohere cohere2 olmo olmo2 olmoe stablelm llama4_text minimax_m2 exaone4
    smollm3 seed_oss ernie4_5 ernie4_5_moe lfm2 arcee jais2 cwm vaultgemma deepseek_v4
"""
TEXT: dict[str, dict[str, Any]] = {name: {} for name in _CLASSES.split()} | {
    "opt": {"word_embed_proj_dim": 512, "hidden_size": 1024, "num_attention_heads": 16, "do_layer_norm_before": False}
}
WITHOUT_A_CACHE = dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "modernbert", "nomic_bert"), 0.0)
WITHOUT_A_CACHE |= {"gte": 1e-4}
"""The difference as a share: the biases of gte's last projections are left out."""
_ENCODERS = """
    qwen2_vl qwen2_5_vl qwen3_vl qwen3_5 qwen3_5_moe gemma3 paligemma llava llava_next llava_onevision llama4 glm4v
"""
PICTURES = dict.fromkeys(_ENCODERS.split(), 1e-4) | {"cohere2_vision": 1e-3}
"""The difference as a share of the encoder: its first and last norms are counted roughly."""
_SAVED_BUFFERS = ("e_score_correction_bias", "tid2eid")
_BEYOND = {"deepseek_v4": 3 * 256}
"""Layers whose experts a table picks have no correction, and are counted as the others."""
_NOT_LOADED = ("vision_tower.head", "rotary_emb", "pooler")
"""vLLM leaves SigLIP's pooling head out, and BERT's pooler."""


@pytest.fixture(scope="module")
def torch() -> Any:
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    return torch


def real(torch: Any, config: Any, kind: str) -> int:
    """Parameters of the class, with the routers' corrections and tables: buffers, and in checkpoints all the same."""
    import transformers

    with torch.device("meta"):
        model = getattr(transformers, kind).from_config(config)
    model.tie_weights()
    named = {
        id(one): one
        for name, one in model.named_parameters()
        if not name.removeprefix("model.").startswith(_NOT_LOADED)
    }
    corrections = [one for name, one in model.named_buffers() if name.endswith(_SAVED_BUFFERS)]
    return sum(one.numel() for one in (*named.values(), *corrections))


def config_of(model_type: str, more: dict[str, Any]) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type](**more)


def document(config: Any) -> dict[str, Any]:
    """As it would be saved."""
    found: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return found


@pytest.mark.parametrize("model_type", TEXT)
def test_parameters_of_a_language_model(torch: Any, model_type: str) -> None:
    config = config_of(model_type, TEXT[model_type])
    counted = config_json.read(document(config)).counted_parameters
    assert counted - _BEYOND.get(model_type, 0) == real(torch, config, "AutoModelForCausalLM")


@pytest.mark.parametrize("model_type", WITHOUT_A_CACHE)
def test_parameters_of_an_encoder(torch: Any, model_type: str) -> None:
    config = config_of(model_type, {})
    made, parameters = config_json.read(document(config)), real(torch, config, "AutoModel")
    assert abs(made.counted_parameters - parameters) <= WITHOUT_A_CACHE[model_type] * parameters
    assert {layer.attention.kind for layer in made.layers} == {Kind.ENCODER}


@pytest.mark.parametrize("model_type", PICTURES)
def test_parameters_with_an_encoder(torch: Any, model_type: str) -> None:
    config = config_of(model_type, {})
    made = config_json.read(document(config))
    difference = made.counted_parameters - real(torch, config, "AutoModelForImageTextToText")
    assert abs(difference) <= PICTURES[model_type] * made.encoder.parameters


@pytest.mark.parametrize("model_type", ["gemma3", "gemma4", "llava", "llava_onevision", "mistral3"])
def test_a_saved_nested_file_keeps_only_what_differs(model_type: str) -> None:
    """What it leaves out is read as the class has it."""
    config = config_of(model_type, {})
    short = json.loads(json.dumps(config.to_diff_dict(), default=str))
    assert len(short.get("text_config") or {}) < len(document(config)["text_config"])
    full, found = config_json.read(document(config)), config_json.read({"text_config": {}} | short)
    assert found.counted_parameters == full.counted_parameters
    assert found.max_position_embeddings == full.max_position_embeddings


ROPES: dict[str, dict[str, Any]] = {
    "none": {"max_position_embeddings": 8192},
    "llama3": {
        "max_position_embeddings": 131072,
        "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    },
    "linear": {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "dynamic": {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
    "yarn": {
        "max_position_embeddings": 131072,
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
    "longrope": {
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
    },
    "several keys": {"max_position_embeddings": 8192, "seq_length": 4096},
    "model_max_length": {"max_position_embeddings": 8192, "model_max_length": 131072},
    "nothing": {},
}


@pytest.mark.parametrize(
    ("model_type", "name"), [("llama", name) for name in ROPES] + [("gemma3_text", "linear"), ("gemma3_text", "none")]
)
def test_the_longest_request_is_vllms(torch: Any, name: str, model_type: str) -> None:
    """Against _get_and_verify_max_len: what it takes by itself, and the longest that it lets pass."""
    from vllm.config.model import _get_and_verify_max_len
    from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

    ropes = ROPES[name].get("rope_parameters")
    hf = SimpleNamespace(model_type=model_type, **ROPES[name])
    derived = ModelArchConfigConvertorBase(hf, hf).derive_max_model_len_and_key()
    arch = SimpleNamespace(derived_max_model_len_and_key=derived)

    def taken(length: int | None) -> int:
        found: int = _get_and_verify_max_len(hf, arch, None, length, False, None)
        return found

    plain = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
    made = config_json.read(plain | {"intermediate_size": 64, "model_type": model_type} | ROPES[name])
    assert (made.default_max_len or made.max_position_embeddings) == taken(None), ropes
    if name == "nothing" or made.max_position_embeddings is None:
        return
    assert taken(made.max_position_embeddings) == made.max_position_embeddings
    with pytest.raises(ValueError, match="greater than the derived"):
        taken(made.max_position_embeddings + 1)


def _mamba2(width: int, groups: int, dim: int, state: int) -> tuple[str, dict[str, int]]:
    sizes = {"intermediate_size": width, "n_groups": groups, "head_dim": dim, "state_size": state}
    return "mamba2", sizes | {"num_heads": 128, "conv_kernel": 4}


STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("mamba1", {"intermediate_size": 1536, "state_size": 16, "conv_kernel": 4}),
    "jamba": ("mamba1", {"intermediate_size": 8192, "state_size": 16, "conv_kernel": 4}),
    "mamba2": _mamba2(8192, 8, 64, 128),
    "falcon_h1": _mamba2(1024, 1, 8, 256),
    "nemotron_h": _mamba2(8192, 8, 64, 128),
    "granitemoehybrid": _mamba2(8192, 1, 64, 256),
    "qwen3_next": (
        "gated_delta_net",
        {"num_k_heads": 16, "num_v_heads": 32, "head_k_dim": 128, "head_v_dim": 128, "conv_kernel_size": 4},
    ),
    "kimi_linear": ("kda", {"num_heads": 32, "head_dim": 128, "conv_kernel_size": 4}),
}


@pytest.mark.parametrize("model_type", STATES)
def test_states_have_vllms_sizes(torch: Any, model_type: str) -> None:
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator

    kind, sizes = STATES[model_type]
    ranks = {"tp_size": 1} if kind == "linear" else {"tp_world_size": 1}
    shapes = getattr(MambaStateShapeCalculator, f"{kind}_state_shape")(**ranks, **sizes)
    values = [int(torch.Size(shape).numel()) for shape in shapes]
    layers = config_json.read(document(config_of(model_type, {}))).layers
    held = {
        (one.attention.conv_values, one.attention.recurrent_values) for one in layers if one.attention.recurrent_values
    }
    assert held == {tuple(values)}


def test_layers_without_a_state_hold_none() -> None:
    """Nemotron-H counts its MLPs as layers."""
    layers = config_json.read(document(config_of("nemotron_h", {}))).layers
    mlps = [one for one in layers if one.attention.kind is Kind.STATE and not one.attention.recurrent_values]
    assert mlps
    assert all(one.attention.conv_values == 0 for one in mlps)
