"""What a model is made of, as far as its memory is concerned. Values only: config_json.py makes them.

Counts are of the whole model, before anything is split over GPUs. Lengths are in tokens, widths in values.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from llmservice_api.dtypes import KVCache

_SHOWN = 64
"""Characters of a foreign word in a message."""


class Kind(StrEnum):
    """What a layer stores for its requests."""

    FULL = "full"
    """Keys and values of every token (MHA, GQA, MQA)."""
    ENCODER = "encoder"
    """Nothing: all tokens of a request are in one step, and attend to each other (BERT and its kind)."""
    SLIDING = "sliding"
    """Keys and values of the last `window` tokens."""
    LATENT = "latent"
    """One compressed vector a token (MLA), the same on every tensor-parallel rank."""
    COMPRESSED = "compressed"
    """A window of such vectors and, beside it, one for several tokens (DeepSeek V4)."""
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
    """Values of the convolution state of one request: of STATE, and of attention beside a state (Falcon-H1)."""
    recurrent_values: int = 0
    """Values of the recurrent state of one request, likewise."""
    recurrent_bytes: int = 0
    """Of one of them, where the model says it (mamba_ssm_dtype); 0: they are of the model's own type."""
    state_groups: int = 0
    """Groups of B and C in Mamba 2. Fewer than ranks: each rank keeps one, and conv_values grow."""
    group_values: int = 0
    """Values that one such group adds to conv_values, B and C together."""
    parameters: int = 0
    """Of the projections of a STATE."""
    shares_cache: bool = False
    """It reads the cache of an earlier layer and stores nothing itself."""
    index_bytes: int = 0
    """Of each token, that an index of groups of tokens stores in the blocks of the keys and values (Qwen4)."""
    more_blocks: int = 0
    """Further blocks that a request takes whatever its length: what an index and embeddings keep of its last tokens."""
    compress_ratio: int = 0
    """Tokens that one vector of COMPRESSED stands for; 1: it has its window alone."""
    index_dim: int = 0
    """Width of a key of the index that picks such vectors; 0: all are read."""
    output_groups: int = 0
    """Groups of heads with an output projection each; ranks hold whole ones."""
    chunked: bool = False
    """The window starts anew every `window` tokens (Llama 4) instead of sliding with each."""


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


class Split(StrEnum):
    """How tensor-parallel ranks share a matrix."""

    TENSOR = "tensor"
    """Each holds a slice of its rows or columns; slices are whole heads where it has `units`."""
    NONE = "none"
    """Each holds all of it: routers, the down-projections of MLA."""
    EXPERTS = "experts"
    """Each holds a slice of every expert, or with expert parallelism some experts whole."""


class Part(StrEnum):
    """What weights are for: what can be told apart in a checkpoint by the names of its tensors."""

    EMBEDDING = "embedding"
    HEAD = "head"
    ATTENTION = "attention"
    FEED_FORWARD = "feed_forward"
    EXPERTS = "experts"
    VISION = "vision"
    MTP = "mtp"
    OTHER = "other"


KEPT = -1
"""`Linear.form` of what a quantized checkpoint leaves in 16 bit."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix of a layer, or `count` equal ones."""

    module: str
    """Its name inside the layer, as checkpoints have it: self_attn.q_proj. Kept modules are named so."""
    part: Part
    inputs: int
    outputs: int
    split: Split = Split.TENSOR
    units: int = 0
    """Heads that a slice may not cut; with fewer of them than ranks each rank holds one. 0: any slice will do."""
    count: int = 1
    bias: int = 0
    """Values of the bias of each; it is never quantized."""
    plain: bool = False
    """No method quantizes it: convolutions, routers."""
    form: int = 0
    """How the checkpoint's own quantization stores it: KEPT, or the number of one of its `forms`."""
    wide: bool = False
    """Held in 32 bit where it is not quantized."""
    copy: bool = False
    """The engine makes room for it, and the checkpoint has it not: values that are the keys once more (Gemma 4)."""

    @property
    def is_row_parallel(self) -> bool:
        """Whether tensor-parallel ranks share its inputs; of the others they share the outputs."""
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
    """One decoder layer."""

    attention: Attention
    feed_forward: FeedForward
    linears: tuple[Linear, ...] = ()
    """Its matrices; empty where nothing but the total is known."""
    small: int = 0
    """Values of norms and the like, which every rank holds in 16 bit."""

    @property
    def parameters(self) -> int:
        """Everything in it."""
        return sum(linear.parameters for linear in self.linears) + self.small


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
    scale_bits: float = 16
    """Of one scale."""
    zero_bits: float = 0
    """Of one zero point, one for each group; 0 where quantization is symmetric."""
    group_rows: int = 1
    """Rows that share a scale too: 128 where blocks of 128 x 128 do."""
    head: int = KEPT
    """The form of lm_head."""
    parts: tuple[Part, ...] = ()
    """Only these are quantized; empty: all linears of decoder layers."""
    kv_cache: KVCache | None = None
    """vLLM's type of the KV cache where nobody asks for one: the checkpoint has scales for it."""
    others: tuple[Quantization, ...] = ()
    """Further forms, where a checkpoint has several: `forms` numbers them, this one first."""
    rules: tuple[tuple[str, int], ...] = ()
    """Names or patterns of modules, each with the form of what it matches; the first that matches counts."""
    unmatched: int = 0
    """The form of what no rule matches."""
    refused: str = ""
    """Why vLLM refuses it from 0.32 on, after "the checkpoint"; empty: it does not."""

    @property
    def forms(self) -> tuple[Quantization, ...]:
        """All forms that its matrices have, by their number."""
        return (self, *self.others)


@dataclass(frozen=True, slots=True)
class Encoder:
    """All encoders of pictures and sound, with what joins them to the language model; 0: it has none."""

    parameters: int = 0
    shared: int = 0
    """Of them, those that tensor-parallel ranks share; each holds the rest."""
    tokens: int = 0
    """Most that one picture becomes."""
    video: int = 0
    """Most that one video becomes, where the request has room; 0: it takes none, or nothing is known of it."""
    frames: int = 0
    """Of them, those of two frames of the largest size; 0: all frames share `video`."""
    outputs: int = 1
    """Results of the width of a hidden state for each token (one more for each layer of deepstack_visual_indexes)."""
    values: int = 0
    """Held at the peak for each of those tokens, on every rank."""
    shared_values: int = 0
    """Held beside them, shared by tensor-parallel ranks."""
    is_whole: bool = False
    """The tokens of a picture or a video attend to each other, so that one item is never cut into steps."""


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
    default_max_len: int | None = None
    """What vLLM takes where nobody says a length, if not max_position_embeddings: with longrope the original length."""
    dtype: str | None = None
    """float32, bfloat16 or float16: what the checkpoint is in."""
    quantization: Quantization | None = None
    total_parameters: int | None = None
    """Where somebody stated it; else weights.py counts."""
    encoder: Encoder = Encoder()
    extra: tuple[Linear, ...] = ()
    """Matrices of the first stage beside the embedding: projections, embeddings for each layer."""
    extra_parameters: int = 0
    """Of what is neither embedding, head, layer nor `extra`: positions that are learned, final norms."""
    embedding_size: int | None = None
    """Width of the embedding and the head where it is not hidden_size (OPT's word_embed_proj_dim)."""
    head_bias: bool = False
    rotary_values: int = 0
    """Of the tables of sines and cosines, which every rank and stage holds in 16 bit; they count as weights."""
    rotary_wide: bool = False
    """They are in 32 bit, whatever is computed with."""
    table_bytes: int = 0
    """Of tables of n-grams, which vLLM keeps in the node's memory unless it is told otherwise."""
    mtp_layers: int = 0
    """Layers for multi-token prediction that are loaded only with speculation."""
    mtp_layer: Layer | None = None
    """One of them, where it is not like the last layer."""
    residual_streams: int = 1
    """Hidden states of each token that are kept from layer to layer."""
    ratios_by_word: bool = False
    """The file has layers of several ratios (DeepSeek V4) in transformers' words alone."""
    distinct_layers: tuple[tuple[Layer, int], ...] = field(init=False, compare=False, repr=False)
    """Each layer value once, and how often it occurs. Equal layers are one object, so identity tells them apart."""

    def __post_init__(self) -> None:
        """Everything that is computed per layer is computed for distinct ones; a plan asks for them a dozen times."""
        counts = Counter(map(id, self.layers))
        first = {id(layer): layer for layer in self.layers}
        object.__setattr__(self, "distinct_layers", tuple((first[key], count) for key, count in counts.items()))

    @property
    def embedding_parameters(self) -> int:
        """Of the token embedding, unpadded."""
        return self.vocab_size * (self.embedding_size or self.hidden_size)

    @property
    def counted_parameters(self) -> int:
        """All that the checkpoint holds, by arithmetic; the multi-token prediction layers are left out."""
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
    """What a file says, for a message: cut short, and escaped where a terminal would obey it."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[:most])


class Incomplete(ValueError):
    """Facts without which nothing can be computed; `missing` names them as config.json does."""

    def __init__(self, *missing: str) -> None:
        super().__init__(f"the model's configuration does not say: {', '.join(missing)}")
        self.missing = missing


class InvalidModel(ValueError):
    """A key of the model's configuration has a value that nothing can be made of."""

    def __init__(self, key: str, problem: str) -> None:
        key, problem = printable(key, 128), printable(problem, 512)
        super().__init__(f"{key} in the model's configuration {problem}")
        self.key = key
        self.problem = problem


PAIR = "architectures, model_type"
"""The key of an Unplanned whose value names a class and a type that are not of one model."""
_WORDS = {"model_type": "model_type", "architectures": "model class", PAIR: "model class with that model_type:"}


class Unplanned(ValueError):
    """The planner does not know what the configuration names: no mistake of the file, and nothing to guess about."""

    def __init__(self, key: str, value: str) -> None:
        words = _WORDS.get(key, f"word in {key}:")
        what = f"the planner does not know the {words} {value[:_SHOWN]!a}"
        super().__init__(f"{what}, and cannot compute what such a model holds and stores")
        self.key = key
        self.value = value
