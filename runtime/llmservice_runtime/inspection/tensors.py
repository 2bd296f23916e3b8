"""The tensors of a checkpoint: read from headers of safetensors files, and assigned to parts of a model by their names.

The format: the header's length in 8 bytes, little-endian; the header as JSON; the tensors' bytes, whose offsets are in
the header (https://github.com/huggingface/safetensors#format). Results are typed and bounded. Raises `Refused`, and
OSError where a file cannot be read; a file's size shows whether it is complete.

The names cover the checkpoints of all families that vLLM loads; unknown ones count as `other`.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmservice_runtime.bounded_json import Reader, Refused, clean, opened, parse

LENGTH_BYTES = 8
HEADER_BYTES = 100_000_000
"""The format's limit of a header."""
INDEX_BYTES = 64 << 20
_MOST_PARTS = 4_000_000
_MOST_BYTES = 2**50
_LONGEST_NAME = 1024
_LONGEST_TYPE = 32
_MOST_EXTENTS = 16
_SHOWN = 128
_DEPTH = 4


@dataclass(frozen=True)
class Tensor:
    """One tensor: dtype in the format's terms (BF16), shape, and size in bytes."""

    dtype: str
    shape: tuple[int, ...]
    size: int

    @property
    def values(self) -> int:
        return math.prod(self.shape)


Header = Mapping[str, Tensor]


def read_header(path: Path, most_bytes: int = HEADER_BYTES) -> Header:
    """The tensors of a file by name. Refused where it is damaged; OSError."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = header_length(file.read(LENGTH_BYTES), size, most_bytes)
        return parse_header(file.read(length), size)


def header_length(start: bytes, size: int, most_bytes: int = HEADER_BYTES) -> int:
    """The header's length from a file's first 8 bytes; `size` is the file's. Refused."""
    length = int.from_bytes(start, "little")
    if size < LENGTH_BYTES or len(start) < LENGTH_BYTES or length > size - LENGTH_BYTES:
        raise Refused(f"its first bytes are not the header of a safetensors file of {size} bytes")
    if length > most_bytes:
        raise Refused(f"its header has {length} bytes, more than {most_bytes}")
    return length


def parse_header(text: bytes, size: int) -> Header:
    """The tensors by name. Refused where the header is invalid or does not match the file's size."""
    try:
        document = parse(text, max(len(text), 1), _DEPTH, _MOST_PARTS)
        if not isinstance(document, dict):
            raise Refused("it is not an object")
        document.pop("__metadata__", None)
        ends = {name: _tensor(name, entry) for name, entry in document.items()}
    except Refused as why:
        raise Refused(f"its header is not readable: {why}") from None
    expected = LENGTH_BYTES + len(text) + max((end for _, end in ends.values()), default=0)
    if size != expected:
        raise Refused(f"it has {size} bytes, and its header is of a file with {expected}")
    return {name: tensor for name, (tensor, _) in ends.items()}


def _tensor(name: str, entry: object) -> tuple[Tensor, int]:
    """The tensor and its end offset. Refused for impossible values, which would reach statuses and plans."""
    if len(name) > _LONGEST_NAME:
        raise Refused(f"the name of a tensor is longer than {_LONGEST_NAME} characters")
    name = clean(name[:_SHOWN])
    given = Reader(entry, name)
    begin, end = _integers(given, "data_offsets", 2)
    tensor = Tensor(given.word("dtype", _LONGEST_TYPE), tuple(_integers(given, "shape", _MOST_EXTENTS)), end - begin)
    # The smallest types have four bits.
    if begin > end or tensor.values > 2 * tensor.size:
        raise Refused(f"{name} has more values than bytes for them")
    return tensor, end


def _integers(given: Reader, field: str, most: int) -> list[int]:
    found = given.value(field)
    if not isinstance(found, list) or len(found) > most or (field == "data_offsets" and len(found) != most):
        raise Refused(f"{given.path(field)} is not a list of integers")
    if not all(type(item) is int and 0 <= item <= _MOST_BYTES for item in found):
        raise Refused(f"{given.path(field)} is not a list of integers from 0 to {_MOST_BYTES}")
    return found


def shards(index: bytes) -> frozenset[str]:
    """The files that a model.safetensors.index.json names. Refused where it is invalid."""
    document = Reader(parse(index, INDEX_BYTES, _DEPTH, _MOST_PARTS))
    names = document.value("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise Refused("weight_map does not name a file for each tensor")
    if too_long := [name for name in names.values() if len(name) > _LONGEST_NAME]:
        raise Refused(f"weight_map has {len(too_long)} file names of more than {_LONGEST_NAME} characters")
    return frozenset(names.values())


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
        for name, tensor in tensors.items():
            self._parts[part(name, self._layers)] += tensor.size
            self._dtypes[tensor.dtype] += tensor.size
            self._parameters += tensor.values

    @property
    def dtype(self) -> str | None:
        """The dtype that vLLM assumes without one in config.json: the widest in which it computes."""
        return next((_TORCH[name] for name in _COMPUTED if self._dtypes[name]), None)

    def to_document(self) -> dict[str, Any]:
        """Bytes by non-empty part, number of stored values, and the dtype of most bytes."""
        document: dict[str, Any] = {name: self._parts[name] for name in PARTS if self._parts[name]}
        main = max(self._dtypes, key=lambda name: self._dtypes[name], default=None)
        dtype = {} if main is None else {"dtype": _TORCH.get(main, main.lower())}
        return document | {"parameters": self._parameters} | dtype
