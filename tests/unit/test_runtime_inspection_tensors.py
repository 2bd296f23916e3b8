"""What a tensor is for, by the names that checkpoints of all families give them; and the sums."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_operator.planner.model.tensors import Tensors
from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.inspection.safetensors_header import LENGTH_BYTES, Tensor, parse_header
from llmservice_runtime.inspection.tensors import PARTS, Sum, layers_of, part

NAMES: dict[str, dict[str, str]] = {
    "llama, qwen, mistral": {
        "model.embed_tokens.weight": "embedding",
        "lm_head.weight": "head",
        "model.norm.weight": "other",
        "model.layers.0.input_layernorm.weight": "attention",
        "model.layers.0.post_attention_layernorm.weight": "attention",
        "model.layers.31.self_attn.q_proj.weight": "attention",
        "model.layers.31.self_attn.q_proj.bias": "attention",
        "model.layers.31.self_attn.q_norm.weight": "attention",
        "model.layers.31.mlp.down_proj.weight": "feedForward",
        "model.layers.31.mlp.down_proj.weight_scale_inv": "feedForward",
        "model.layers.0.self_attn.rotary_emb.inv_freq": "other",
    },
    "awq and gptq": {
        "model.layers.0.self_attn.o_proj.qweight": "attention",
        "model.layers.0.mlp.up_proj.qzeros": "feedForward",
        "model.layers.0.mlp.up_proj.scales": "feedForward",
        "model.layers.0.mlp.up_proj.g_idx": "feedForward",
    },
    "mixture of experts": {
        "model.layers.0.block_sparse_moe.gate.weight": "attention",
        "model.layers.0.block_sparse_moe.experts.7.w1.weight": "experts",
        "model.layers.5.mlp.gate.weight": "attention",
        "model.layers.5.mlp.gate.e_score_correction_bias": "attention",
        "model.layers.5.mlp.experts.255.gate_proj.weight": "experts",
        "model.layers.5.mlp.shared_experts.up_proj.weight": "feedForward",
        "model.layers.5.mlp.shared_expert.up_proj.weight": "feedForward",
        "model.layers.5.mlp.shared_expert_gate.weight": "attention",
        "model.layers.0.mlp.experts.gate_up_proj_blocks": "experts",
        "model.layers.0.mlp.router.weight": "attention",
        "model.layers.0.feed_forward.experts.down_proj": "experts",
        "model.layers.0.feed_forward.shared_expert.down_proj.weight": "feedForward",
        "model.layers.0.feed_forward.router.weight": "attention",
        "model.layers.0.block_sparse_moe.input_linear.weight": "experts",
        "model.layers.0.block_sparse_moe.router.layer.weight": "attention",
        "model.layers.0.shared_mlp.input_linear.weight": "feedForward",
        "transformer.blocks.0.ffn.experts.mlp.w1": "experts",
        "transformer.blocks.0.ffn.router.layer.weight": "attention",
        "transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight": "attention",
        "model.layers.3.moe.up_proj.weight": "experts",
        "model.layers.3.share_expert.up_proj.weight": "feedForward",
    },
    "latent attention and further tokens (61 layers)": {
        "model.layers.60.self_attn.kv_a_proj_with_mqa.weight": "attention",
        "model.layers.61.eh_proj.weight": "mtp",
        "model.layers.61.embed_tokens.weight": "mtp",
        "model.layers.61.shared_head.head.weight": "mtp",
        "model.layers.61.mlp.experts.0.up_proj.weight": "mtp",
        "mtp.layers.0.self_attn.q_proj.weight": "mtp",
        "mtp.fc.weight": "mtp",
        "model.mtp_block.0.mlp.up_proj.weight": "mtp",
        "model.mtp_emb_norm.0.weight": "mtp",
    },
    "gpt-2": {
        "wte.weight": "embedding",
        "transformer.wte.weight": "embedding",
        "wpe.weight": "other",
        "h.0.ln_1.weight": "attention",
        "h.0.attn.c_attn.weight": "attention",
        "h.0.attn.c_attn.bias": "attention",
        "h.0.attn.bias": "other",
        "transformer.h.11.mlp.c_fc.weight": "feedForward",
        "ln_f.weight": "other",
    },
    "gpt-neox and pythia": {
        "gpt_neox.embed_in.weight": "embedding",
        "embed_out.weight": "head",
        "gpt_neox.layers.0.attention.query_key_value.weight": "attention",
        "gpt_neox.layers.0.attention.masked_bias": "other",
        "gpt_neox.layers.0.mlp.dense_h_to_4h.weight": "feedForward",
    },
    "falcon, bloom and mpt": {
        "transformer.word_embeddings.weight": "embedding",
        "transformer.word_embeddings_layernorm.weight": "other",
        "transformer.h.0.self_attention.query_key_value.weight": "attention",
        "transformer.h.0.mlp.dense_4h_to_h.weight": "feedForward",
        "transformer.blocks.0.attn.Wqkv.weight": "attention",
        "transformer.blocks.0.ffn.up_proj.weight": "feedForward",
        "transformer.blocks.0.norm_1.weight": "attention",
    },
    "opt": {
        "model.decoder.embed_tokens.weight": "embedding",
        "model.decoder.embed_positions.weight": "other",
        "model.decoder.layers.0.self_attn.out_proj.weight": "attention",
        "model.decoder.layers.0.fc1.weight": "feedForward",
        "model.decoder.layers.0.final_layer_norm.weight": "attention",
    },
    "internlm2 and chatglm": {
        "model.tok_embeddings.weight": "embedding",
        "output.weight": "head",
        "model.layers.0.attention.wqkv.weight": "attention",
        "model.layers.0.feed_forward.w2.weight": "feedForward",
        "transformer.embedding.word_embeddings.weight": "embedding",
        "transformer.encoder.layers.0.self_attention.query_key_value.weight": "attention",
        "transformer.encoder.layers.0.mlp.dense_h_to_4h.weight": "feedForward",
        "transformer.output_layer.weight": "head",
    },
    "mistral's own": {
        "tok_embeddings.weight": "embedding",
        "layers.0.attention.wq.weight": "attention",
        "layers.0.feed_forward.w1.weight": "feedForward",
        "layers.0.experts.3.w1.weight": "experts",
        "layers.0.gate.weight": "attention",
        "norm.weight": "other",
        "vision_encoder.transformer.layers.0.attention.wq.weight": "vision",
        "vision_language_adapter.w_in.weight": "vision",
    },
    "mamba and hybrids": {
        "backbone.embeddings.weight": "embedding",
        "backbone.embedding.weight": "embedding",
        "backbone.layers.0.mixer.in_proj.weight": "attention",
        "backbone.layers.0.mixer.A_log": "attention",
        "backbone.layers.1.mixer.up_proj.weight": "feedForward",
        "backbone.layers.1.mixer.experts.3.up_proj.weight": "experts",
        "backbone.layers.1.mixer.shared_experts.up_proj.weight": "feedForward",
        "backbone.layers.1.mixer.gate.weight": "attention",
        "backbone.layers.7.mixer.q_proj.weight": "attention",
        "backbone.norm_f.weight": "other",
        "model.layers.0.mamba.in_proj.weight": "attention",
        "model.layers.0.linear_attn.in_proj_qkvz.weight": "attention",
        "model.layers.0.conv.in_proj.weight": "attention",
    },
    "pictures and sound": {
        "visual.blocks.0.attn.qkv.weight": "vision",
        "model.visual.merger.linear_fc1.weight": "vision",
        "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight": "vision",
        "model.vision_tower.transformer.layers.0.attention.q_proj.weight": "vision",
        "vision_model.model.layers.0.self_attn.q_proj.weight": "vision",
        "multi_modal_projector.linear_1.weight": "vision",
        "model.multi_modal_projector.mm_input_projection_weight": "vision",
        "mlp1.1.weight": "vision",
        "model.connector.modality_projection.proj.weight": "vision",
        "audio_tower.layers.0.self_attn.q_proj.weight": "vision",
        "model.embed_vision.embedding_projection.weight": "vision",
        "language_model.model.layers.0.mlp.up_proj.weight": "feedForward",
        "model.language_model.layers.0.mlp.experts.gate_up_proj": "experts",
        "model.language_model.embed_tokens.weight": "embedding",
        "language_model.model.embed_tokens.weight": "embedding",
        "language_model.lm_head.weight": "head",
        "thinker.model.layers.0.self_attn.q_proj.weight": "attention",
        "model.language_model.embed_tokens_per_layer.weight": "other",
    },
    "drafts": {
        "midlayer.self_attn.q_proj.weight": "attention",
        "midlayer.mlp.up_proj.weight": "feedForward",
        "layers.0.mlp.up_proj.weight": "feedForward",
        "fc.weight": "other",
        "d2t": "other",
        "0.linear.weight": "other",
    },
    "encoders": {
        "bert.embeddings.word_embeddings.weight": "embedding",
        "bert.embeddings.position_embeddings.weight": "other",
        "bert.embeddings.LayerNorm.weight": "other",
        "bert.encoder.layer.0.attention.self.query.weight": "attention",
        "bert.encoder.layer.0.attention.output.dense.weight": "attention",
        "bert.encoder.layer.0.intermediate.dense.weight": "feedForward",
        "bert.encoder.layer.0.output.dense.weight": "feedForward",
        "pooler.dense.weight": "other",
    },
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(name, expected, id=f"{family}: {name}")
        for family, names in NAMES.items()
        for name, expected in names.items()
    ],
)
def test_part(name: str, expected: str) -> None:
    assert part(name, 61) == expected


def test_layers_behind_the_last_are_known_by_the_config_alone() -> None:
    assert part("model.layers.61.mlp.experts.0.up_proj.weight") == "experts"


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        pytest.param({"num_hidden_layers": 7}, 7, id="plain"),
        pytest.param({"n_layer": 7}, 7, id="gpt-2"),
        pytest.param({"text_config": {"num_hidden_layers": 7}}, 7, id="with pictures"),
        pytest.param({"thinker_config": {"text_config": {"num_hidden_layers": 7}}}, 7, id="twice within"),
        pytest.param({"num_hidden_layers": "7", "text_config": 3}, None, id="nonsense"),
        pytest.param({"num_hidden_layers": True}, None, id="true is no number"),
        pytest.param({}, None, id="nothing"),
    ],
)
def test_layers_of(config: dict[str, Any], layers: int | None) -> None:
    assert layers_of(config) == layers


def test_the_sum() -> None:
    summed = Sum(layers=2)
    summed.add({"model.embed_tokens.weight": Tensor("BF16", (50,), 100), "lm_head.weight": Tensor("BF16", (50,), 100)})
    summed.add({"model.layers.1.mlp.up_proj.weight": Tensor("F8_E4M3", (999,), 999)})
    summed.add({"model.layers.1.mlp.up_proj.weight_scale_inv": Tensor("F32", (1,), 4)})
    summed.add({"model.layers.2.eh_proj.weight": Tensor("BF16", (5,), 10)})
    document = summed.to_document()
    assert document == {
        "embedding": 100,
        "head": 100,
        "feedForward": 1003,
        "mtp": 10,
        "parameters": 1105,
        "dtype": "float8_e4m3fn",
    }
    assert summed.dtype == "float32", "vLLM takes the widest of what the files hold"
    read = Tensors.from_document(document)
    assert (read.total, read.feed_forward, read.mtp, read.parameters) == (1213, 1003, 10, 1105)


def test_the_planner_knows_all_parts() -> None:
    read = Tensors.from_document({name: 10**number for number, name in enumerate(PARTS)})
    assert read.total == sum(10**number for number in range(len(PARTS)))


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"dtype": "U8", "shape": [2], "data_offsets": [4, 2]}, id="a negative size"),
        pytest.param({"dtype": "U8", "shape": [-2], "data_offsets": [0, 2]}, id="a negative shape"),
        pytest.param({"dtype": "U8", "shape": "ab", "data_offsets": [0, 2]}, id="no shape"),
        pytest.param({"dtype": "U8", "data_offsets": [0, 2]}, id="a shape left out"),
        pytest.param({"dtype": "U8", "shape": [2], "data_offsets": [0]}, id="one offset"),
        pytest.param({"dtype": "U8", "shape": [2], "data_offsets": [-(10**30), 2]}, id="before its beginning"),
        pytest.param({"dtype": "U8", "shape": [2**60], "data_offsets": [0, 2**60]}, id="more than any file has"),
        pytest.param({"dtype": "U8", "shape": [2**63, 2**63], "data_offsets": [0, 2]}, id="more values than bytes"),
        pytest.param({"dtype": "U8" * 20, "shape": [2], "data_offsets": [0, 2]}, id="no type's name"),
        pytest.param({"dtype": "U8", "shape": [1] * 17, "data_offsets": [0, 1]}, id="too many extents"),
    ],
)
def test_a_header_that_says_the_impossible(entry: dict[str, Any]) -> None:
    text = json.dumps({"x": entry}).encode()
    with pytest.raises(Refused, match="its header is not readable"):
        parse_header(text, LENGTH_BYTES + len(text) + 2)
