"""The keys of config.json that memory depends on, under the names of all model families.

Tests compare this list with the keys that the planner reads.
"""

from __future__ import annotations

# Grouped by meaning. A key with two meanings in two families is listed once.
_NAMES = "architectures model_type torch_dtype dtype is_encoder_decoder n_predict"
_SIZES = """
    hidden_size n_embd n_embed d_model model_dim dim num_hidden_layers n_layer n_layers num_layers num_decoder_layers
    vocab_size padded_vocab_size vocab_size_per_layer_input draft_vocab_size truncated_vocab_size embedding_size
    word_embed_proj_dim tie_word_embeddings weight_tying total_parameters num_parameters hidden_size_per_layer_input
    laurel_rank altup_num_inputs type_vocab_size add_cross_attention position_embedding_type alibi bias
    attention_bias mlp_bias use_bias add_bias_linear encoder_layers decoder_layers encoder_attention_heads
    decoder_attention_heads encoder_ffn_dim decoder_ffn_dim max_source_positions max_target_positions
    use_cache_sharing num_kv_shared_layers yoco_local_kv_layer yoco_global_kv_layer per_layer_config
    block_configs layers emb_neighbor_num do_layer_norm_before
"""
_QWEN4 = """
    hc_count hc_lowrank ple_conv_kernel_size ngram_size heads_per_ngram
    indexer_n_heads indexer_kv_heads indexer_head_dim indexer_compress_ratio
"""
_DEEPSEEK_V4 = """
    compress_rates o_groups o_lora_rank hc_mult num_hash_layers expert_dtype vision_n_layers
"""
_LENGTHS = """
    max_position_embeddings n_positions n_ctx max_seq_len max_seq_length max_sequence_length seq_length seq_len
    model_max_length original_max_position_embeddings rope_scaling rope_parameters rope_theta max_model_len
"""
_ATTENTION = """
    num_attention_heads n_head n_heads num_heads num_key_value_heads n_head_kv num_kv_heads n_kv_heads
    multi_query multi_query_attention multi_query_group_num num_attention_groups new_decoder_architecture head_dim
    kv_channels hidden_size_per_head attention_head_dim attn_config partial_rotary_factor rotary_dim
    rotary_pct rope_pct rope_local_base_freq use_qk_norm qkv_bias use_qkv_bias add_qkv_bias attention_layers
    sliding_window use_sliding_window max_window_layers sliding_window_size sliding_window_pattern sliding_layers
    sliding_window_layers interleaved_sliding_window window_size layer_types attention_chunk_size no_rope_layers
    no_rope_layer_interval swa_num_key_value_heads swa_num_attention_heads swa_head_dim swa_v_head_dim
    swa_attention_sink_bias
    global_head_dim num_global_key_value_heads attention_k_eq_v attention_other_setting attn_type_list
    hybrid_layer_pattern num_attention_heads_per_layer num_key_value_heads_per_layer share_q_dim attn_output_gate
    q_lora_rank kv_lora_rank qk_rope_head_dim qk_nope_head_dim qk_head_dim v_head_dim rope_head_dim mla
    index_topk index_n_heads index_head_dim compress_ratios index_topk_freq index_topk_pattern index_skip_topk_offset
    is_causal use_bidirectional_attention qkv_proj_bias
"""
_FEED_FORWARD = """
    intermediate_size n_inner ffn_dim ffn_hidden_size feed_forward_hidden_size hidden_dim intermediate_size_mlp
    d_ff gated_mlp ffn_config expansion_ratio mlp_ratio is_gated_act hidden_act activation_function hidden_activation
    feed_forward_proj parallel_attn block_ff_dim block_multiple_of block_ffn_dim_multiplier block_auto_adjust_ff_dim
    intermediate_size_per_layer mlp_hidden_act mlp_layer_types
    num_experts num_local_experts n_routed_experts moe_num_experts num_moe_experts num_experts_per_tok
    num_experts_per_token moe_top_k moe_topk moe_k top_k_experts num_selected_experts moe_intermediate_size
    expert_intermediate_size moe_ffn_hidden_size expert_ffn_hidden_size expert_hidden_dim expert_hidden_size
    n_shared_experts num_shared_experts num_shared_expert moe_num_shared_experts
    shared_expert_intermediate_size
    shared_intermediate_size moe_shared_expert_intermediate_size share_expert_dim share_expert_dims
    moe_latent_size first_k_dense_replace first_k_dense num_dense_layers moe_layer_freq moe_layer_interval
    moe_layer_start_index moe_layer_end_index decoder_sparse_step mlp_only_layers interleave_moe_layer_step moe_layers
    moe_layers_enum expert_layer_period expert_layer_offset layers_num_experts use_moe enable_moe_block
    dense_intermediate_size zero_expert_num moe_every_n_layers
"""
_STATE = """
    state_size ssm_state_size mamba_d_state mamba_d_conv mamba_expand mamba_n_heads mamba_num_heads n_mamba_heads
    mamba_d_head mamba_head_dim mamba_headdim mamba_n_groups mamba_ngroups mamba_d_ssm mamba_dt_rank
    mamba2_num_heads use_conv_bias mamba_proj_bias mamba_conv_bias mamba_rms_norm
    mamba_chunk_size mamba_cache_dtype mamba_ssm_cache_dtype mamba_ssm_dtype mamba_intermediate_size mamba_config
    conv_kernel conv_dim conv_dim_out conv_L_cache n_groups expand time_step_rank d_state
    d_conv d_inner chunk_size
    attn_layer_period attn_layer_offset attn_layer_indices hybrid_override_pattern layers_block_type block_types
    attention_layers_idx full_attn_idxs full_attention_interval linear_attention linear_attn_config
    linear_conv_kernel_dim linear_head_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads
    linear_value_head_dim hybrid_layer_ids num_mem_blocks attention_hidden_size use_shared_attention_adapter
    adapter_rank lru_width conv1d_width layer_group_size group_norm_size short_conv_kernel_size mamba_layers ssm_cfg
    d_intermediate
"""
_MTP = """
    num_nextn_predict_layers num_mtp_modules mtp_num_layers mtp_num_hidden_layers num_speculative_tokens
    mtp_hybrid_override_pattern medusa_num_heads
"""
_PICTURES = """
    mm_tokens_per_image vision_soft_tokens_per_image image_seq_length image_seq_len tokens_per_image
    num_image_token force_image_size downsample_ratio max_dynamic_patch use_thumbnail
    spatial_merge_size scale_factor num_query_tokens query_num vision_parameters
"""
_QUANTIZED = "quantization_config compression_config"
_TABLES = """
    ple_layer_ids ple_embed_dim ple_embedding_dtype ngram_vocab_size_base engram_layer_ids engram_num_embeddings
    engram_head_dim
"""

# Nested configurations, of which the same keys are kept.
SECTION_KEYS = (
    "text_config", "llm_config", "language_config", "language_model_config", "thinker_config", "model_config",
    "transformer_layer_config",
    "decoder", "decoder_config", "text_model", "vision_config", "audio_config", "visual", "vit_config",
    "vision_tower_config", "encoder_config",
)  # fmt: skip
# Keys kept in sections of encoders only: their sizes, for models without readable tensors.
_ENCODERS = """
    model_type torch_dtype dtype hidden_size intermediate_size num_hidden_layers num_layers layers heads num_heads
    num_attention_heads num_key_value_heads spatial_merge_size mlp_ratio d_model encoder_attention_heads encoder_ffn_dim
    depth num_blocks embed_dim width image_size patch_size temporal_patch_size out_hidden_size output_dim
    num_position_embeddings in_channels num_channels fullatt_block_indexes hidden_stride encoder_layers
    deepstack_visual_indexes pooling_kernel_size default_output_length
"""

_OF_ALL = (_NAMES, _SIZES, _LENGTHS, _ATTENTION, _FEED_FORWARD, _STATE, _MTP, _PICTURES, _QUANTIZED, _TABLES)
_ALL = (*_OF_ALL, _QWEN4, _DEEPSEEK_V4)
INSPECTED_KEYS = frozenset(word for text in _ALL for word in text.split())
ENCODER_SECTIONS = frozenset({"vision_config", "audio_config", "visual", "vit_config", "vision_tower_config"})
ENCODER_KEYS = frozenset(_ENCODERS.split())
