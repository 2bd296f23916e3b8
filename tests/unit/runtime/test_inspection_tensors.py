"""What a tensor is for, by the names that checkpoints of all families give them; and the sums."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from llmservice_planner.model.architecture import Tensors
from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.inspection.tensors import LENGTH_BYTES, PARTS, Sum, Tensor, layers_of, parse_header, part

NAMES = """
# llama, qwen, mistral
embedding: model.embed_tokens.weight
head: lm_head.weight
other: model.norm.weight model.layers.0.self_attn.rotary_emb.inv_freq
attention: model.layers.0.input_layernorm.weight model.layers.0.post_attention_layernorm.weight
  model.layers.31.self_attn.q_proj.weight model.layers.31.self_attn.q_proj.bias
  model.layers.31.self_attn.q_norm.weight
feedForward: model.layers.31.mlp.down_proj.weight model.layers.31.mlp.down_proj.weight_scale_inv
# awq and gptq
attention: model.layers.0.self_attn.o_proj.qweight
feedForward: model.layers.0.mlp.up_proj.qzeros model.layers.0.mlp.up_proj.scales model.layers.0.mlp.up_proj.g_idx
# mixture of experts
attention: model.layers.0.block_sparse_moe.gate.weight model.layers.5.mlp.gate.weight
  model.layers.5.mlp.gate.e_score_correction_bias model.layers.5.mlp.shared_expert_gate.weight
  model.layers.0.mlp.router.weight model.layers.0.feed_forward.router.weight
  model.layers.0.block_sparse_moe.router.layer.weight transformer.blocks.0.ffn.router.layer.weight
  transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight
experts: model.layers.0.block_sparse_moe.experts.7.w1.weight model.layers.5.mlp.experts.255.gate_proj.weight
  model.layers.0.mlp.experts.gate_up_proj_blocks model.layers.0.feed_forward.experts.down_proj
  model.layers.0.block_sparse_moe.input_linear.weight transformer.blocks.0.ffn.experts.mlp.w1
  model.layers.3.moe.up_proj.weight
feedForward: model.layers.5.mlp.shared_experts.up_proj.weight model.layers.5.mlp.shared_expert.up_proj.weight
  model.layers.0.feed_forward.shared_expert.down_proj.weight model.layers.0.shared_mlp.input_linear.weight
  model.layers.3.share_expert.up_proj.weight
# latent attention and further tokens (61 layers)
attention: model.layers.60.self_attn.kv_a_proj_with_mqa.weight
mtp: model.layers.61.eh_proj.weight model.layers.61.embed_tokens.weight model.layers.61.shared_head.head.weight
  model.layers.61.mlp.experts.0.up_proj.weight mtp.layers.0.self_attn.q_proj.weight mtp.fc.weight
  model.mtp_block.0.mlp.up_proj.weight model.mtp_emb_norm.0.weight
# gpt-2
embedding: wte.weight transformer.wte.weight
other: wpe.weight h.0.attn.bias ln_f.weight
attention: h.0.ln_1.weight h.0.attn.c_attn.weight h.0.attn.c_attn.bias
feedForward: transformer.h.11.mlp.c_fc.weight
# gpt-neox and pythia
embedding: gpt_neox.embed_in.weight
head: embed_out.weight
attention: gpt_neox.layers.0.attention.query_key_value.weight
other: gpt_neox.layers.0.attention.masked_bias
feedForward: gpt_neox.layers.0.mlp.dense_h_to_4h.weight
# falcon, bloom and mpt
embedding: transformer.word_embeddings.weight
other: transformer.word_embeddings_layernorm.weight
attention: transformer.h.0.self_attention.query_key_value.weight transformer.blocks.0.attn.Wqkv.weight
  transformer.blocks.0.norm_1.weight
feedForward: transformer.h.0.mlp.dense_4h_to_h.weight transformer.blocks.0.ffn.up_proj.weight
# opt
embedding: model.decoder.embed_tokens.weight
other: model.decoder.embed_positions.weight
attention: model.decoder.layers.0.self_attn.out_proj.weight model.decoder.layers.0.final_layer_norm.weight
feedForward: model.decoder.layers.0.fc1.weight
# internlm2 and chatglm
embedding: model.tok_embeddings.weight transformer.embedding.word_embeddings.weight
head: output.weight transformer.output_layer.weight
attention: model.layers.0.attention.wqkv.weight transformer.encoder.layers.0.self_attention.query_key_value.weight
feedForward: model.layers.0.feed_forward.w2.weight transformer.encoder.layers.0.mlp.dense_h_to_4h.weight
# mistral's own
embedding: tok_embeddings.weight
attention: layers.0.attention.wq.weight layers.0.gate.weight
feedForward: layers.0.feed_forward.w1.weight
experts: layers.0.experts.3.w1.weight
other: norm.weight
vision: vision_encoder.transformer.layers.0.attention.wq.weight vision_language_adapter.w_in.weight
# mamba and hybrids
embedding: backbone.embeddings.weight backbone.embedding.weight
attention: backbone.layers.0.mixer.in_proj.weight backbone.layers.0.mixer.A_log backbone.layers.1.mixer.gate.weight
  backbone.layers.7.mixer.q_proj.weight model.layers.0.mamba.in_proj.weight
  model.layers.0.linear_attn.in_proj_qkvz.weight model.layers.0.conv.in_proj.weight
feedForward: backbone.layers.1.mixer.up_proj.weight backbone.layers.1.mixer.shared_experts.up_proj.weight
experts: backbone.layers.1.mixer.experts.3.up_proj.weight
other: backbone.norm_f.weight
# pictures and sound
vision: visual.blocks.0.attn.qkv.weight model.visual.merger.linear_fc1.weight
  vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight
  model.vision_tower.transformer.layers.0.attention.q_proj.weight vision_model.model.layers.0.self_attn.q_proj.weight
  multi_modal_projector.linear_1.weight model.multi_modal_projector.mm_input_projection_weight mlp1.1.weight
  model.connector.modality_projection.proj.weight audio_tower.layers.0.self_attn.q_proj.weight
  model.embed_vision.embedding_projection.weight
feedForward: language_model.model.layers.0.mlp.up_proj.weight
experts: model.language_model.layers.0.mlp.experts.gate_up_proj
embedding: model.language_model.embed_tokens.weight language_model.model.embed_tokens.weight
head: language_model.lm_head.weight
attention: thinker.model.layers.0.self_attn.q_proj.weight
other: model.language_model.embed_tokens_per_layer.weight
# drafts
attention: midlayer.self_attn.q_proj.weight
feedForward: midlayer.mlp.up_proj.weight layers.0.mlp.up_proj.weight
other: fc.weight d2t 0.linear.weight
# deepseek v4
embedding: embed.weight
head: head.weight
other: norm.weight hc_head_fn hc_head_base
attention: layers.0.hc_attn_fn layers.2.attn.indexer.compressor.ape layers.2.attn.wq_b.scale layers.0.ffn.gate.tid2eid
experts: layers.0.ffn.experts.255.w1.scale
feedForward: layers.0.ffn.shared_experts.w2.weight
mtp: mtp.0.ffn.experts.0.w1.weight mtp.0.e_proj.weight
# encoders
embedding: bert.embeddings.word_embeddings.weight
other: bert.embeddings.position_embeddings.weight bert.embeddings.LayerNorm.weight pooler.dense.weight
attention: bert.encoder.layer.0.attention.self.query.weight bert.encoder.layer.0.attention.output.dense.weight
feedForward: bert.encoder.layer.0.intermediate.dense.weight bert.encoder.layer.0.output.dense.weight
"""
"""Names of tensors by part and family of checkpoints; of a model with 61 layers."""
PARTS_OF = re.findall(r"^(\w+): (.*(?:\n  .*)*)", NAMES, re.MULTILINE)


def test_part() -> None:
    assert {(name, part(name, 61)) for _, names in PARTS_OF for name in names.split()} == {
        (name, expected) for expected, names in PARTS_OF for name in names.split()
    }


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
