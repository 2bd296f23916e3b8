"""Small models of every kind of KV cache, as config.json: enough for vLLM to make them up with weights of noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LENGTH = 4096
Config = Mapping[str, Any]
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": LENGTH,
    "torch_dtype": "bfloat16",
}


def _model(name: str, model_type: str, **more: Any) -> Config:
    return {**_LLAMA, "architectures": [name], "model_type": model_type, **more}


def _types(count: int, every: int, others: str = "sliding_attention") -> list[str]:
    """Of layers, of which each `every`th attends to everything."""
    return ["full_attention" if (place + 1) % every == 0 else others for place in range(count)]


_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
CONFIGS: Mapping[str, Config] = {
    "mha": {**_LLAMA, "num_key_value_heads": 8},
    "mqa": {**_LLAMA, "num_key_value_heads": 1},
    "gqa": _LLAMA,
    "five layers": {**_LLAMA, "num_hidden_layers": 5},
    "wide heads, tied": {**_LLAMA, "head_dim": 128, "num_hidden_layers": 3, "tie_word_embeddings": True},
    "sliding": _model("MistralForCausalLM", "mistral", sliding_window=64),
    "sliding and full": _model(
        "Gemma3ForCausalLM",
        "gemma3_text",
        num_hidden_layers=7,
        sliding_window=512,
        layer_types=_types(7, 6),
        query_pre_attn_scalar=32,
        hidden_activation="gelu_pytorch_tanh",
    ),
    "heads that differ": _model(
        "Gemma4ForCausalLM",
        "gemma4_text",
        num_hidden_layers=6,
        sliding_window=512,
        layer_types=_types(6, 6),
        global_head_dim=64,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        num_kv_shared_layers=0,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=512,
        enable_moe_block=False,
        hidden_activation="gelu_pytorch_tanh",
        rope_parameters={"full_attention": _ROPE, "sliding_attention": _ROPE},
    ),
    "layers that share": _model(
        "Gemma4ForCausalLM",
        "gemma4_text",
        num_hidden_layers=6,
        sliding_window=512,
        layer_types=_types(6, 3),
        global_head_dim=64,
        num_kv_shared_layers=3,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=512,
        enable_moe_block=False,
        hidden_activation="gelu_pytorch_tanh",
        rope_parameters={"full_attention": _ROPE, "sliding_attention": _ROPE},
    ),
    "mla": _model(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        num_hidden_layers=3,
        num_key_value_heads=8,
        head_dim=64,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=64,
        v_head_dim=64,
        first_k_dense_replace=3,
        n_routed_experts=4,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        **_EXPERTS,
    ),
    "moe": _model("MixtralForCausalLM", "mixtral", num_local_experts=4, num_experts_per_tok=2),
    "gated delta net": _model(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        num_experts=4,
        shared_expert_intermediate_size=64,
        partial_rotary_factor=0.25,
        layer_types=_types(4, 4, "linear_attention"),
        decoder_sparse_step=1,
        mlp_only_layers=[],
        norm_topk_prob=True,
        rms_norm_eps=1e-6,
        hidden_act="silu",
        **_EXPERTS,
    ),
    "mamba 2": _model(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        layer_types=["mamba", "mamba", "attention", "mamba"],
        mamba_n_heads=8,
        mamba_d_head=64,
        mamba_d_state=32,
        mamba_n_groups=1,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_chunk_size=64,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=256,
        position_embedding_type="nope",
    ),
    "attention beside mamba 2": _model(
        "FalconH1ForCausalLM",
        "falcon_h1",
        mamba_d_ssm=512,
        mamba_n_heads=8,
        mamba_d_head=64,
        mamba_d_state=32,
        mamba_n_groups=1,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_chunk_size=64,
    ),
    "short convolution": _model(
        "Lfm2ForCausalLM",
        "lfm2",
        conv_L_cache=3,
        conv_bias=False,
        conv_dim=256,
        conv_dim_out=256,
        conv_use_xavier_init=True,
        block_ff_dim=256,
        block_multiple_of=256,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=False,
        block_use_swiglu=True,
        norm_eps=1e-5,
        layer_types=["conv", "conv", "full_attention", "conv"],
    ),
    "mamba alone": _model(
        "MambaForCausalLM",
        "mamba",
        state_size=16,
        conv_kernel=4,
        expand=2,
        time_step_rank=16,
        intermediate_size=512,
        use_conv_bias=True,
        use_bias=False,
        residual_in_fp32=False,
        layer_norm_epsilon=1e-5,
    ),
}
