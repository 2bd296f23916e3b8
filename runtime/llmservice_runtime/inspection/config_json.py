"""Reduces a model's config.json to the keys that its memory depends on. Pure; accepts any JSON object.

The keys are listed under the names of all model families; tests compare them with those that the planner reads.
params.json of Mistral's format is converted to the names of config.json, as vLLM does
(transformers_utils/configs/mistral.py).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from llmservice_runtime.bounded_json import clean
from llmservice_runtime.inspection.tensors import is_encoder, layers_of

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
_QUANTIZED = frozenset({"quantization_config", "compression_config"})
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

_OF_ALL = (_NAMES, _SIZES, _LENGTHS, _ATTENTION, _FEED_FORWARD, _STATE, _MTP, _PICTURES, " ".join(_QUANTIZED), _TABLES)
_ALL = (*_OF_ALL, _QWEN4, _DEEPSEEK_V4)
INSPECTED_KEYS = frozenset(word for text in _ALL for word in text.split())
ENCODER_SECTIONS = frozenset({"vision_config", "audio_config", "visual", "vit_config", "vision_tower_config"})
ENCODER_KEYS = frozenset(_ENCODERS.split())


Json = Mapping[str, Any]

_ROPE = frozenset({"rope_scaling", "rope_parameters"})
_ROPE_KEYS = frozenset({
    "rope_type", "type", "factor", "original_max_position_embeddings", "rope_theta", "partial_rotary_factor",
    "mrope_section",
})  # fmt: skip
# Keys that only the quantizer uses.
_QUANTIZER_NOTES = frozenset({
    "meta", "dataset", "damp_percent", "true_sequential", "static_groups", "model_name_or_path", "model_file_base_name",
    "tokenizer", "observer", "observer_kwargs", "global_compression_ratio", "sparsity_config",
    "transform_config", "actorder", "export", "batch_size", "cache_block_outputs", "llm_int8_threshold",
    "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "bnb_4bit_quant_storage",
})  # fmt: skip
# A part of a module's name that is a number.
_NUMBER = re.compile(r"(?<![^.])[0-9]{1,9}(?![^.])")
_DEEPEST = 8
# Together with _DEEPEST within the depth that the operator accepts in an inspection.
_DEEPEST_SECTION = 3
_LARGEST = 2**63
_LONGEST_TEXT = 600
_FEW = 8
# Values of at most this length in JSON, in characters, are kept.
_KEPT_LENGTH = 160


def selected(config: Json) -> dict[str, Any]:
    """The inspected keys in their order, sections included; null values are left out."""
    return _section(config, layers_of(config), INSPECTED_KEYS)


def _section(config: Json, layers: int | None, keys: frozenset[str], depth: int = 0) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if name in SECTION_KEYS and isinstance(value, Mapping) and depth < _DEEPEST_SECTION:
            inner = ENCODER_KEYS if name in ENCODER_SECTIONS else INSPECTED_KEYS
            found: Any = _section(value, layers, inner, depth + 1)
        elif name not in keys:
            continue
        elif name in _ROPE:
            found = _rope(value)
        elif name in _QUANTIZED:
            found = _quantization(value, layers)
        else:
            found = _plain(value)
        if found is not None and found != {}:
            kept[name] = found
    return kept


def _plain(value: object, depth: int = 0) -> Any:
    """Numbers, texts, and lists and objects of them; None for other values and for those out of bounds."""
    if isinstance(value, bool) or _is_word(value):
        return value
    if isinstance(value, int):
        return value if abs(value) < _LARGEST else None
    if isinstance(value, float):
        return value if math.isfinite(value) and abs(value) < _LARGEST else None
    if depth >= _DEEPEST:
        return None
    if isinstance(value, Mapping):
        inner = {name: _plain(item, depth + 1) for name, item in value.items() if _is_word(name)}
        return {name: item for name, item in inner.items() if item is not None and item != {}}
    if isinstance(value, Sequence):
        return runs([_plain(item, depth + 1) for item in value])
    return None


def _is_word(value: object) -> bool:
    """Whether a text may be in a status; otherwise the operator would refuse the whole inspection."""
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and clean(value) == value


def runs(values: Sequence[Any]) -> list[Any]:
    """The list with repetitions as [value, count] where that is shorter; `expanded` is the inverse."""
    if len(values) <= _FEW:
        return list(values)
    found: list[Any] = []
    start = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and _same(values[end], values[start]):
            continue
        count = end - start
        found += [[values[start], count]] if count > 1 else [values[start]]
        start = end
    return found if _length(found) < _length(values) else list(values)


def expanded(value: object) -> Any:
    """The inverse of `runs`."""
    if not isinstance(value, list):
        return value
    full: list[Any] = []
    for item in value:
        is_run = isinstance(item, list) and len(item) == 2 and type(item[1]) is int and item[1] > 0
        full += [item[0]] * item[1] if is_run else [item]
    return full


def _same(one: object, other: object) -> bool:
    """Equality that distinguishes True from 1."""
    return type(one) is type(other) and one == other


def _length(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def _rope(value: object, *, is_outer: bool = True) -> Any:
    """RoPE parameters without the factors of single frequencies; also one level of parameters by kind of layer."""
    if not isinstance(value, Mapping):
        return None
    kept: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping) and is_outer:
            kept[name] = _rope(item, is_outer=False)
        elif name in _ROPE_KEYS and not isinstance(item, Mapping):
            kept[name] = _plain(item)
    return {name: item for name, item in kept.items() if item is not None}


def _quantization(value: object, layers: int | None, depth: int = 0) -> Any:
    """Methods, widths and groups; long lists of modules become patterns."""
    if isinstance(value, Mapping) and depth < _DEEPEST:
        items = {name: item for name, item in value.items() if _is_word(name) and name not in _QUANTIZER_NOTES}
        inner = {name: _quantization(item, layers, depth + 1) for name, item in items.items()}
        kept = {name: item for name, item in inner.items() if _says_something(name, item)}
        is_by_module = len(kept) > _FEW and all("." in name for name in kept)
        return _by_pattern(kept, layers) if is_by_module else kept
    if isinstance(value, list) and value and all(map(_is_word, value)):
        return modules(value, layers)
    return _plain(value, depth)


def _says_something(name: str, value: object) -> bool:
    """Whether a name has meaning without a value: GPTQModel's "-:PATTERN" excludes its matches from quantization."""
    return name.startswith("-:") or (value is not None and value not in ({}, []))


def _by_pattern(settings: Json, layers: int | None) -> dict[str, Any]:
    """Settings by module, grouped by equal settings."""
    alike: dict[str, list[str]] = {}
    for name, setting in settings.items():
        alike.setdefault(json.dumps(setting, sort_keys=True), []).append(name)
    return {pattern: json.loads(text) for text, names in alike.items() for pattern in modules(names, layers)}


def modules(names: Iterable[str], layers: int | None = None) -> list[str]:
    """Shorten a list of modules: `model.layers.*.mlp.gate` for all layers, else a pattern `re:...`.

    Existing patterns are kept. `layers` is the model's number of layers.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        is_pattern = name.startswith("re:") or "*" in name
        groups.setdefault(name if is_pattern else _NUMBER.sub("*", name), []).append(name)
    return [found[0] if len(found) == 1 else _pattern(group, found, layers) for group, found in groups.items()]


def _pattern(group: str, names: Sequence[str], layers: int | None) -> str:
    """`group` is the common name with * for numbers, the first of which is the layer."""
    if "*" not in group or group in names:
        return group
    numbers = {int(found[0]) for name in names if (found := _NUMBER.search(name))}
    if is_encoder(group.split(".")) or group.startswith("mtp"):
        return group
    # The prefix is the checkpoint's name of the language model; vLLM's may differ.
    prefix = found[0] if (found := re.match(r".+\.(?=(layers|h|blocks)\.\*)", group)) else ""
    stem = group[len(prefix) :]
    is_usual = prefix in ("", "model.")
    everywhere = group if is_usual else f"*{stem}"
    if layers is None or numbers.issuperset(range(layers)):
        return everywhere
    before, _, after = (re.escape(text).replace(r"\*", r"\d+") for text in stem.partition("*"))
    start = re.escape(prefix) if is_usual else ".*"
    return f"re:{start}{before}({_alternatives(numbers)}){after}"


def _alternatives(numbers: Iterable[int]) -> str:
    """A regular expression for a set of numbers: 3 to 60 is [3-9]|[1-5]\\d|60."""
    units: dict[int, set[int]] = {}
    for number in numbers:
        units.setdefault(number // 10, set()).add(number % 10)
    alike: dict[str, set[int]] = {}
    for tens, digits in sorted(units.items()):
        alike.setdefault(_class(digits), set()).add(tens)
    found = []
    for digits_class, all_tens in alike.items():
        found += [digits_class] if 0 in all_tens else []
        found += [_class(small) + digits_class] if (small := {tens for tens in all_tens if 0 < tens < 10}) else []
        found += [f"{tens}{digits_class}" for tens in sorted(all_tens) if tens >= 10]
    return "|".join(found)


def _class(digits: set[int]) -> str:
    if len(digits) == 10:
        return r"\d"
    ordered = sorted(digits)
    text = "".join(map(str, ordered))
    if len(text) == 1:
        return text
    is_run = len(text) > 2 and ordered[-1] - ordered[0] == len(text) - 1
    return f"[{ordered[0]}-{ordered[-1]}]" if is_run else f"[{text}]"


def shorter(config: Json) -> dict[str, Any] | None:
    """The configuration without the largest of its least important parts; None where nothing can be dropped."""
    for cut in (_fewer_modules, _no_encoder, _no_longest):
        less = _anywhere(cut, config)
        if less is not None:
            return less
    return None


def _anywhere(cut: Callable[[Json], dict[str, Any] | None], config: Json) -> dict[str, Any] | None:
    """Apply `cut` to the configuration, or to that of the language model inside."""
    if (less := cut(config)) is not None:
        return less
    for name in SECTION_KEYS:
        inner = config.get(name)
        if isinstance(inner, Mapping) and name not in ENCODER_SECTIONS and (less := _anywhere(cut, inner)) is not None:
            return {**config, name: less}
    return None


def _fewer_modules(config: Json) -> dict[str, Any] | None:
    """Halve the longest list of modules; the tensors show the unquantized ones more exactly."""
    for name in _QUANTIZED:
        value = config.get(name)
        if isinstance(value, Mapping) and (less := _halved(value)) is not None:
            return {**config, name: less}
    return None


def _halved(value: Json) -> dict[str, Any] | None:
    long = [name for name, item in value.items() if isinstance(item, (list, Mapping)) and len(item) > _FEW]
    for name in sorted(long, key=lambda name: -_length(value[name])):
        item, half = value[name], len(value[name]) // 2
        return {**value, name: item[:half] if isinstance(item, list) else dict(list(item.items())[:half])}
    for name, item in value.items():
        if isinstance(item, Mapping) and (less := _halved(item)) is not None:
            return {**value, name: less}
    return None


def _no_encoder(config: Json) -> dict[str, Any] | None:
    """Drop an encoder's section; its weights are known from the tensors."""
    found = [name for name in config if name in ENCODER_SECTIONS]
    return {name: item for name, item in config.items() if name != found[0]} if found else None


def _no_longest(config: Json) -> dict[str, Any] | None:
    long = [
        name
        for name, item in config.items()
        if name not in SECTION_KEYS and isinstance(item, (list, Mapping, str)) and _length(item) > _KEPT_LENGTH
    ]
    longest = max(long, key=lambda name: _length(config[name]), default=None)
    return None if longest is None else {name: item for name, item in config.items() if name != longest}


_PARAMS: Mapping[str, str] = {
    "dim": "hidden_size",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "tied_embeddings": "tie_word_embeddings",
}
_EXPERTS: Mapping[str, str] = {
    "route_every_n": "moe_layer_freq",
    "first_k_dense_replace": "first_k_dense_replace",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_experts": "n_routed_experts",
    "expert_hidden_dim": "moe_intermediate_size",
    "num_shared_experts": "n_shared_experts",
}
_YARN = ("factor", "original_max_position_embeddings")
# vLLM's default.
_MAX_POSITIONS = 128_000
_MOST_LAYERS = 10_000
"""Bounds the length of layer_types."""


def is_params(document: Mapping[str, Any]) -> bool:
    """Whether it is a params.json, which has other names than config.json."""
    return {"dim", "n_layers"} <= document.keys() and "hidden_size" not in document


def from_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with the same facts."""
    config = {_PARAMS.get(name, name): value for name, value in params.items() if name != "model_type"}
    config.setdefault("max_position_embeddings", config.get("max_seq_len") or _MAX_POSITIONS)
    config["architectures"] = ["MistralForCausalLM"]
    window = config.get("sliding_window")
    if isinstance(window, list) and window:
        layers = config.get("num_hidden_layers")
        repeats = min(layers, _MOST_LAYERS) // len(window) if isinstance(layers, int) else 1
        config["layer_types"] = ["sliding_attention" if length else "full_attention" for length in window] * repeats
        config["sliding_window"] = next((length for length in window if length), None)
    experts = params.get("moe")
    if isinstance(experts, Mapping):
        config |= {new: experts[old] for old, new in _EXPERTS.items() if old in experts}
        is_latent = bool(params.get("qk_nope_head_dim"))
        config["architectures"] = ["MistralLarge3ForCausalLM" if is_latent else "MixtralForCausalLM"]
        if is_latent:
            config["model_type"] = "deepseek_v3"
    yarn = params.get("yarn")
    if isinstance(yarn, Mapping):
        config["rope_parameters"] = {"rope_type": "yarn"} | {name: yarn[name] for name in _YARN if name in yarn}
    quantized = params.get("quantization")
    if isinstance(quantized, Mapping) and quantized:
        config["quantization_config"] = {"quant_method": "fp8"} | dict(quantized)
    return _with_pictures(config)


def _with_pictures(config: dict[str, Any]) -> dict[str, Any]:
    """The language model as a section beside its image encoder, if there is one."""
    section = config.pop("vision_encoder", None)
    nested = config.pop("multimodal", None)
    if isinstance(nested, Mapping) and isinstance(nested.get("vision_encoder_args"), Mapping):
        section = nested["vision_encoder_args"]
    if not isinstance(section, Mapping):
        return config
    around: dict[str, Any] = {"model_type": "pixtral", "architectures": ["PixtralForConditionalGeneration"]}
    for name in ("quantization_config", "spatial_merge_size"):
        value = config.get(name, section.get(name))
        if value is not None:
            around[name] = value
    return around | {"text_config": config, "vision_config": dict(section)}
