"""The parts of a model that determine its memory. Values only: config_json.py creates them.

Counts are of the whole model, before anything is split over GPUs. Lengths are in tokens, widths in values. `Tensors`
has sums over the headers of safetensors files, from an inspection (llmservice_runtime.inspection).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from llmservice_api.dtypes import KVCache

_SHOWN = 64
"""Characters of a repository's text in a message."""


class Kind(StrEnum):
    """What a layer stores for its requests."""

    FULL = "full"
    """Keys and values of every token (MHA, GQA, MQA)."""
    ENCODER = "encoder"
    """Nothing: all tokens of a request are in one step, and attend to each other (BERT and similar)."""
    SLIDING = "sliding"
    """Keys and values of the last `window` tokens."""
    LATENT = "latent"
    """One compressed vector per token (MLA), the same on every tensor-parallel rank."""
    COMPRESSED = "compressed"
    """A window of such vectors, and one vector for several tokens (DeepSeek V4)."""
    STATE = "state"
    """A state of fixed size per request (Mamba, linear attention)."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The token mixer of one layer. Fields that its kind lacks are 0 or None."""

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
    """Values of one request's convolution state: of STATE, and of attention with a state (Falcon-H1)."""
    recurrent_values: int = 0
    """Values of one request's recurrent state, likewise."""
    recurrent_bytes: int = 0
    """Bytes of one of them, if the model sets them (mamba_ssm_dtype); 0: of the model's own type."""
    state_groups: int = 0
    """Groups of B and C in Mamba 2. With fewer than ranks each rank keeps one, and conv_values grow."""
    group_values: int = 0
    """Values that one such group adds to conv_values, B and C together."""
    parameters: int = 0
    """Of the projections of a STATE."""
    shares_cache: bool = False
    """It reads the cache of an earlier layer and stores nothing."""
    index_bytes: int = 0
    """Bytes per token of an index of groups of tokens, stored in the blocks of keys and values (Qwen4)."""
    more_blocks: int = 0
    """Further blocks of a request of any length: for the last tokens of an index and of embeddings."""
    compress_ratio: int = 0
    """Tokens of one vector of COMPRESSED; 1: window only."""
    index_dim: int = 0
    """Width of a key of the index that selects such vectors; 0: all are read."""
    output_groups: int = 0
    """Groups of heads with an output projection each; ranks hold whole groups."""
    chunked: bool = False
    """The window starts anew every `window` tokens (Llama 4) instead of sliding."""


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The MLP of one layer: dense, or experts of which each token uses some."""

    intermediate: int = 0
    """Width of the dense MLP; 0 with experts only."""
    gated: bool = True
    """Three matrices (gate, up, down), else two."""
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    """Total width of the experts that every token uses."""


class Split(StrEnum):
    """How tensor-parallel ranks share a matrix."""

    TENSOR = "tensor"
    """Each holds a slice of its rows or columns; whole heads if it has `units`."""
    NONE = "none"
    """Each holds all of it: routers, the down-projections of MLA."""
    EXPERTS = "experts"
    """Each holds a slice of every expert, or with expert parallelism some whole experts."""


class Part(StrEnum):
    """Purpose of weights, as far as tensor names in a checkpoint distinguish it."""

    EMBEDDING = "embedding"
    HEAD = "head"
    ATTENTION = "attention"
    FEED_FORWARD = "feed_forward"
    EXPERTS = "experts"
    VISION = "vision"
    MTP = "mtp"
    OTHER = "other"


UNQUANTIZED = -1
"""`Linear.form` of what a quantized checkpoint keeps in 16 bit."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix of a layer, or `count` equal ones."""

    module: str
    """Its name inside the layer, as in checkpoints: self_attn.q_proj. Lists of unquantized modules use such names."""
    part: Part
    inputs: int
    outputs: int
    split: Split = Split.TENSOR
    units: int = 0
    """Heads that a slice may not cut; with fewer heads than ranks each rank holds one. 0: any slice."""
    count: int = 1
    bias: int = 0
    """Values of the bias of each; it is never quantized."""
    plain: bool = False
    """No method quantizes it: convolutions, routers."""
    form: int = 0
    """Its form in the checkpoint's quantization: KEPT, or an index of `forms`."""
    wide: bool = False
    """In 32 bit where it is not quantized."""
    copy: bool = False
    """Allocated by the engine and absent from the checkpoint: values that equal the keys (Gemma 4)."""

    @property
    def is_row_parallel(self) -> bool:
        """Whether tensor-parallel ranks share its inputs; otherwise they share the outputs."""
        return self.module.endswith(("o_proj", "out_proj", "down_proj", "wo_b"))

    @property
    def values(self) -> int:
        """Of all `count` matrices, without biases."""
        return self.inputs * self.outputs * self.count

    @property
    def parameters(self) -> int:
        """Of all `count` matrices in the checkpoint, with biases."""
        return 0 if self.copy else self.values + self.bias * self.count


@dataclass(frozen=True, slots=True)
class Layer:
    attention: Attention
    feed_forward: FeedForward
    linears: tuple[Linear, ...] = ()
    """Its matrices; empty if only the total is known."""
    small: int = 0
    """Values of norms and the like, which every rank holds in 16 bit."""

    @property
    def parameters(self) -> int:
        return sum(linear.parameters for linear in self.linears) + self.small


@dataclass(frozen=True, slots=True)
class Quantization:
    """A checkpoint's quantization, by its quantization_config."""

    method: str
    """vLLM's name: awq, gptq, fp8, compressed-tensors, modelopt_fp4, bitsandbytes, ..."""
    bits: float
    """Of one weight, without scales."""
    group_size: int = 0
    """Weights per scale; 0: one for a channel or a tensor."""
    kept: tuple[str, ...] = ()
    """Modules that stay in 16 bit (ignore, modules_to_not_convert), as patterns or names."""
    scale_bits: float = 16
    """Of one scale."""
    zero_bits: float = 0
    """Of one zero point per group; 0 where quantization is symmetric."""
    group_rows: int = 1
    """Rows that share a scale too: 128 for blocks of 128 x 128."""
    head: int = UNQUANTIZED
    """The form of lm_head."""
    parts: tuple[Part, ...] = ()
    """Only these are quantized; empty: all linears of decoder layers."""
    kv_cache: KVCache | None = None
    """vLLM's default type of the KV cache, if the checkpoint has scales for it."""
    others: tuple[Quantization, ...] = ()
    """Further forms of a checkpoint with several: `forms` numbers them, this one first."""
    rules: tuple[tuple[str, int], ...] = ()
    """Names or patterns of modules with the index of their form; the first match counts."""
    unmatched: int = 0
    """The form of modules that no rule matches."""
    refused: str = ""
    """Why vLLM refuses it from 0.32 on, to follow "the checkpoint"; empty: it does not."""

    @property
    def forms(self) -> tuple[Quantization, ...]:
        return (self, *self.others)


@dataclass(frozen=True, slots=True)
class Encoder:
    """All encoders of images and audio, with their projections into the language model; 0: none."""

    parameters: int = 0
    shared: int = 0
    """Parameters that tensor-parallel ranks share; each holds the rest."""
    tokens: int = 0
    """Maximum of tokens of one image."""
    video: int = 0
    """Maximum of tokens of one video, if the request has room; 0: no videos, or unknown."""
    frames: int = 0
    """Of these, tokens of two frames of the largest size; 0: all frames share `video`."""
    outputs: int = 1
    """Results of hidden width for each token (one more for each layer in deepstack_visual_indexes)."""
    values: int = 0
    """Values per token at the peak, on every rank."""
    shared_values: int = 0
    """Further values, shared by tensor-parallel ranks."""
    is_whole: bool = False
    """The tokens of an image or video attend to each other, so that an item is never cut into steps."""


@dataclass(frozen=True, slots=True)
class Architecture:
    name: str
    """The class in `architectures`, or model_type; for messages."""
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    tie_word_embeddings: bool = False
    max_position_embeddings: int | None = None
    """The longest request that vLLM derives from the config, including rope scaling; None: unlimited or absent."""
    default_max_len: int | None = None
    """vLLM's default length, if not max_position_embeddings: with longrope the original length."""
    dtype: str | None = None
    """Type of the checkpoint: float32, bfloat16 or float16."""
    quantization: Quantization | None = None
    total_parameters: int | None = None
    """If stated by the user; else weights.py counts."""
    encoder: Encoder = Encoder()
    extra: tuple[Linear, ...] = ()
    """Matrices of the first stage beside the embedding: projections, embeddings for each layer."""
    extra_parameters: int = 0
    """Other parameters: learned positions, final norms."""
    embedding_size: int | None = None
    """Width of embedding and head if it is not hidden_size (OPT's word_embed_proj_dim)."""
    head_bias: bool = False
    rotary_values: int = 0
    """Values of the tables of sines and cosines, on every rank and stage in 16 bit; they count as weights."""
    rotary_wide: bool = False
    """They are in 32 bit, whatever the compute type."""
    table_bytes: int = 0
    """Bytes of n-gram tables, which vLLM keeps in the node's memory by default."""
    mtp_layers: int = 0
    """Layers for multi-token prediction, which are loaded only with speculation."""
    mtp_layer: Layer | None = None
    """One of them, if it differs from the last layer."""
    residual_streams: int = 1
    """Hidden states per token that are kept from layer to layer."""
    ratios_by_word: bool = False
    """The file has layers of several ratios (DeepSeek V4) only in transformers' format."""
    distinct_layers: tuple[tuple[Layer, int], ...] = field(init=False, compare=False, repr=False)
    """Each distinct layer with its number of occurrences. Equal layers are one object, identified by identity."""

    def __post_init__(self) -> None:
        """Per-layer values are computed for distinct layers only; a plan needs them a dozen times."""
        counts = Counter(map(id, self.layers))
        first = {id(layer): layer for layer in self.layers}
        object.__setattr__(self, "distinct_layers", tuple((first[key], count) for key, count in counts.items()))

    @property
    def embedding_parameters(self) -> int:
        """Of the token embedding, unpadded."""
        return self.vocab_size * (self.embedding_size or self.hidden_size)

    @property
    def counted_parameters(self) -> int:
        """Computed parameters of the checkpoint, without layers for multi-token prediction."""
        heads = 1 if self.tie_word_embeddings else 2
        bias = self.vocab_size if self.head_bias else 0
        layers = sum(count * layer.parameters for layer, count in self.distinct_layers)
        extra = sum(linear.parameters for linear in self.extra) + self.extra_parameters
        return self.embedding_parameters * heads + bias + layers + extra + self.encoder.parameters

    @property
    def num_attention_heads(self) -> int:
        """Of the widest layer."""
        return max((layer.attention.heads for layer in self.layers), default=0)

    @property
    def num_key_value_heads(self) -> int:
        """Of the widest layer."""
        return max((layer.attention.kv_heads for layer in self.layers), default=0)


def printable(text: str, most: int = _SHOWN) -> str:
    """A repository's text for a message: truncated, with control characters escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[:most])


class Incomplete(ValueError):
    """Facts that are required and missing; `missing` has their names in config.json."""

    def __init__(self, *missing: str) -> None:
        super().__init__(f"the model's configuration does not say: {', '.join(missing)}")
        self.missing = missing


class InvalidModel(ValueError):
    """A key of the model's configuration has an invalid value."""

    def __init__(self, key: str, problem: str) -> None:
        key, problem = printable(key, 128), printable(problem, 512)
        super().__init__(f"{key} in the model's configuration {problem}")
        self.key = key
        self.problem = problem


PAIR = "architectures, model_type"
"""Key of an Unplanned whose class and type belong to different models."""
_WORDS = {"model_type": "model_type", "architectures": "model class", PAIR: "model class with that model_type:"}


class UnsupportedModel(ValueError):
    """The planner does not support what the configuration names; the file is valid."""

    def __init__(self, key: str, value: str) -> None:
        words = _WORDS.get(key, f"word in {key}:")
        what = f"the planner does not know the {words} {value[:_SHOWN]!a}"
        super().__init__(f"{what}, and cannot compute what such a model holds and stores")
        self.key = key
        self.value = value


@dataclass(frozen=True, slots=True)
class Tensors:
    """Bytes of the checkpoint's tensors by purpose. The sum is the whole checkpoint."""

    embedding: int = 0
    head: int = 0
    """lm_head; 0 if tied."""
    attention: int = 0
    """Attention, norms and other tensors of decoder layers except MLPs and experts."""
    feed_forward: int = 0
    """Dense MLPs and shared experts."""
    experts: int = 0
    vision: int = 0
    mtp: int = 0
    other: int = 0
    parameters: int = 0
    """Number of values, packed ones as stored."""

    @property
    def total(self) -> int:
        parts = (self.embedding, self.head, self.attention, self.feed_forward, self.experts, self.vision, self.mtp)
        return sum(parts) + self.other

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Tensors:
        """From the inspection's JSON: the same names in camelCase; absent ones are 0."""
        named = {"feed_forward": "feedForward"}
        return cls(**{one.name: int(document.get(named.get(one.name, one.name), 0)) for one in fields(cls)})
