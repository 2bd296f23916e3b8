"""Assigns tensors to parts of a model by their names, and sums up bytes by part.

Covers the checkpoints of all families that vLLM loads; unknown names count as `other`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmservice_runtime.inspection.safetensors_header import Tensor


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PARTS = ("embedding", "head", "attention", "feedForward", "experts", "vision", "mtp", "other")

_ENCODERS = _words("""
    visual vision vision_tower vision_model vision_encoder vision_embed_tokens vision_backbone vision_language_adapter
    vision_adapter vision_proj vision_projection vision_resampler visual_tokenizer vit vpm vlm_vision embed_vision
    multi_modal_projector mm_projector multimodal_projector img_processor img_projection image_newline
    image_projector image_encoder patch_merger pre_mm_projector_norm modality_projection connector resampler qformer
    aligner sam_model audio_tower audio_model audio_encoder audio_projector audio_projection_layer audio_adapter
    speech_encoder embed_audio apm conformer whisper_encoder sound_encoder
""")
_MTP = re.compile(r"(mtp|nextn)(_|$)")
_EXPERTS = frozenset({"experts", "local_experts", "parallel_experts"})
# Fused experts of Granite and JetMoE, whose names contain neither a number nor `experts`.
_FUSED = re.compile(r"(^|\.)(block_sparse_moe|moe)\.(input_linear|output_linear|(gate|up|down)_proj)(\.|$)")
_FEED_FORWARD = _words("""
    mlp feed_forward ffn fc1 fc2 block_sparse_moe moe mlp_moe shared_expert shared_experts share_expert shared_mlp
    residual_mlp densereludense intermediate output wi wo feed_forward2 moe_block dense_h_to_4h dense_4h_to_h
    gate_proj up_proj down_proj gate_up_proj w1 w2 w3
""")
_ATTENTION = _words("""
    self_attn attn attention self_attention linear_attn cross_attn encoder_attn crossattention selfattention
    encdecattention mamba mixer temporal_block norm_attn_norm delta_net conv short_conv
""")
_ROUTERS = frozenset({"gate", "router", "shared_expert_gate", "e_score_correction_bias", "correction_bias"})
_EMBEDDINGS = _words("embed_tokens wte word_embeddings tok_embeddings embed_in embeddings embedding shared")
_POSITIONS = _words("position_embeddings token_type_embeddings position_embedding layernorm norm")
_HEADS = frozenset({"lm_head", "embed_out", "output_layer"})
_DEEPSEEK_V4 = {"embed.weight": "embedding", "head.weight": "head"}
_IN_LAYER = re.compile(r"(^|\.)(layers|layer|h|blocks|block|midlayer|decoder_layers?)\.(\d+\.)?")
_NUMBER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]{1,9})\.")

_BUFFERS = re.compile(r"(^|\.)(attn|attention)\.(masked_)?bias$|inv_freq$")

# The format's dtypes -> torch's.
_TORCH = {
    "F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_COMPUTED = ("F32", "BF16", "F16")
_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")


def layers_of(config: Mapping[str, Any]) -> int | None:
    """Number of decoder layers in a config.json, also in a section for the language model; None where unknown."""
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        if type(value := config.get(name)) is int and value > 0:
            return value
    sections = (config[name] for name in _SECTIONS if isinstance(config.get(name), Mapping))
    return next((found for section in sections if (found := layers_of(section)) is not None), None)


def is_encoder(words: Iterable[str]) -> bool:
    """Whether a module belongs to an encoder of images or audio, or connects it to the language model."""
    return not _ENCODERS.isdisjoint(word.lower() for word in words)


def part(name: str, layers: int | None = None) -> str:
    """The part of a tensor, one of PARTS. Layers from index `layers` on are for multi-token prediction."""
    words = name.lower().split(".")
    if is_encoder(words) or words[0] in ("mlp1", "encoder_proj"):
        return "vision"
    if _BUFFERS.search(name):
        return "other"
    if any(_MTP.match(word) for word in words) or _is_behind(name, layers):
        return "mtp"
    if _IN_LAYER.search(name.lower()):
        return _in_layer(name.lower(), words)
    if name in _DEEPSEEK_V4:
        return _DEEPSEEK_V4[name]
    if _HEADS.intersection(words) or words[0] == "output":
        return "head"
    return "embedding" if _EMBEDDINGS.intersection(words) and not _POSITIONS.intersection(words) else "other"


def _is_behind(name: str, layers: int | None) -> bool:
    found = _NUMBER.search(name)
    return layers is not None and found is not None and int(found[1]) >= layers


def _in_layer(name: str, words: Sequence[str]) -> str:
    if _ROUTERS.intersection(words):
        return "attention"
    if _EXPERTS.intersection(words) or _FUSED.search(name):
        return "experts"
    is_mlp = bool(_FEED_FORWARD.intersection(words))
    # BERT's attention.output.dense is attention; a mixer is classified by its projections.
    first = next((word for word in words if word in _ATTENTION), None)
    if first is not None and first != "mixer" and not {"mlp", "ffn", "feed_forward"}.intersection(words):
        return "attention"
    return "feedForward" if is_mlp else "attention"


class Sum:
    """Sums of bytes and values over headers."""

    def __init__(self, layers: int | None = None) -> None:
        self._layers = layers
        self._parts: Counter[str] = Counter()
        self._dtypes: Counter[str] = Counter()
        self._parameters = 0

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Add the tensors of one file."""
        for name, tensor in tensors.items():
            self._parts[part(name, self._layers)] += tensor.size
            self._dtypes[tensor.dtype] += tensor.size
            self._parameters += tensor.values

    @property
    def dtype(self) -> str | None:
        """The dtype that vLLM assumes where config.json names none: the widest one that it computes in."""
        return next((_TORCH[name] for name in _COMPUTED if self._dtypes[name]), None)

    def to_document(self) -> dict[str, Any]:
        """Bytes by non-empty part, number of stored values, and the dtype of most bytes."""
        document: dict[str, Any] = {name: self._parts[name] for name in PARTS if self._parts[name]}
        main = max(self._dtypes, key=lambda name: self._dtypes[name], default=None)
        dtype = {} if main is None else {"dtype": _TORCH.get(main, main.lower())}
        return document | {"parameters": self._parameters} | dtype
