"""What a model is made of, as far as its memory is concerned. Values only: config_json.py and facts.py make them.

Counts are of the whole model, before anything is split over GPUs. Lengths are in tokens, widths in values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a layer stores for its requests."""

    FULL = "full"
    """Keys and values of every token (MHA, GQA, MQA)."""
    SLIDING = "sliding"
    """Keys and values of the last `window` tokens."""
    LATENT = "latent"
    """One compressed vector a token (MLA), the same on every tensor-parallel rank."""
    STATE = "state"
    """A state of fixed size a request (Mamba, linear attention)."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The token mixer of one layer. Fields that its kind does not have are 0 or None."""

    kind: Kind
    heads: int = 0
    kv_heads: int = 0
    key_dim: int = 0
    """Width of a key of one head."""
    value_dim: int = 0
    window: int | None = None
    latent_dim: int = 0
    """kv_lora_rank of MLA."""
    rope_dim: int = 0
    """qk_rope_head_dim of MLA."""
    query_rank: int = 0
    """q_lora_rank of MLA; 0: queries are not compressed."""
    conv_values: int = 0
    """Values of the convolution state of one request, for STATE."""
    recurrent_values: int = 0
    """Values of the recurrent state of one request, for STATE."""
    parameters: int = 0
    """Of its projections."""
    shares_cache: bool = False
    """It reads the cache of an earlier layer and stores nothing itself."""


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The MLP of one layer: a dense one, or experts of which each token uses some."""

    intermediate: int = 0
    """Width of the dense MLP; 0 where there are only experts."""
    gated: bool = True
    """Three matrices (gate, up, down), else two."""
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    """Width of the experts that every token uses, together."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer."""

    attention: Attention
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint is quantized, by its quantization_config."""

    method: str
    """vLLM's name: awq, gptq, fp8, compressed-tensors, modelopt_fp4, bitsandbytes, ..."""
    bits: float
    """Of one weight, without scales."""
    group_size: int = 0
    """Weights that share one scale; 0: a channel or a tensor does."""
    kept: tuple[str, ...] = ()
    """Modules that stay in 16 bit (ignore, modules_to_not_convert), as patterns or names."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model."""

    name: str
    """The class in `architectures`, or model_type; for messages."""
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    tie_word_embeddings: bool = False
    max_position_embeddings: int | None = None
    """The longest request that vLLM derives from the config, rope scaling included; None: unlimited or not said."""
    dtype: str | None = None
    """float32, bfloat16 or float16: what the checkpoint is in."""
    quantization: Quantization | None = None
    total_parameters: int | None = None
    """Where somebody stated it; else weights.py counts."""
    vision_parameters: int = 0
    """Of encoders of pictures and sound; every tensor-parallel rank holds all of them."""
    extra_parameters: int = 0
    """Of what is neither embedding, head nor layer: positions that are learned, projections, final norms."""
    mtp_layers: int = 0
    """Layers for multi-token prediction that are loaded only with speculation."""
    tokens_per_image: int = 0
    """Most tokens that one picture becomes; 0 for text models."""

    @property
    def num_attention_heads(self) -> int:
        """Of the widest layer."""
        return max((layer.attention.heads for layer in self.layers), default=0)

    @property
    def num_key_value_heads(self) -> int:
        """Of the widest layer."""
        return max((layer.attention.kv_heads for layer in self.layers), default=0)


class Incomplete(ValueError):
    """Facts without which nothing can be computed; `missing` names them as config.json does."""

    def __init__(self, *missing: str) -> None:
        super().__init__(f"the model's configuration does not say: {', '.join(missing)}")
        self.missing = missing
