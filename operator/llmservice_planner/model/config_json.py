"""Reads a model's config.json, or facts under the same names, into an Architecture.

Follows vLLM's model classes. Absent keys have transformers' defaults for the model_type if published files omit them.
Checkpoints are judged by their files, never by their names. The longest request is as vLLM derives it
(vllm/config/model.py, _get_and_verify_max_len), and so are its tables of sines and cosines
(vllm/model_executor/layers/rotary_embedding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any

from llmservice_planner.model import deepseek_v4, families, module_forms, quantization_config, qwen4, registry, vision
from llmservice_planner.model.architecture import (
    UNQUANTIZED,
    Architecture,
    Attention,
    FeedForward,
    InvalidModel,
    Kind,
    Layer,
    Linear,
    Part,
    Quantization,
    Split,
)
from llmservice_planner.model.config_keys import MOST_LAYERS, MOST_PARAMETERS, Keys
from llmservice_planner.model.families import NESTED_DEFAULTS, Family, canonical, family_of
from llmservice_planner.model.mixers import Mixer, attention, encoding, head_dim_of, indexed, kinds, latent, sharing
from llmservice_planner.model.mlps import Mlp, dense, dense_width, expert_layers, experts
from llmservice_planner.model.states import state

LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""The smallest counts."""
_SCALED_ALREADY = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Kinds of scaling whose factor is already in max_position_embeddings."""
DEFAULT_LENGTH = 2048
"""vLLM's assumption without a length key."""
_MROPE_LENGTHS = 4
"""Multimodal rotary tables are so many times longer (rotary_embedding/mrope.py)."""
_DEFAULT_ROPE_POSITIONS = 8192
"""The classes' default of max_position_embeddings."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of a model."""

    longest: int | None
    default: int | None
    """Default length, if it is not the longest."""
    rotary_values: int


def lengths(keys: Keys, family: Family, kinds: tuple[str, ...]) -> Lengths:
    """The longest request and the tables."""
    found = [length for name in LENGTH_KEYS if (length := keys.integer(name)) is not None]
    longest = min(found, default=None)
    if keys.has("model_max_length"):
        longest = keys.integer("model_max_length")
    ropes = _ropes(keys)
    default = None if found else DEFAULT_LENGTH
    if longest is not None and "gemma3" not in (keys.text("model_type") or ""):
        for rope in ropes:
            if _kind(rope) not in _SCALED_ALREADY:
                longest = int(longest * (rope.number("factor") or 1))
    if longest is not None and any(_kind(rope) in ("longrope", "su") for rope in ropes):
        default = keys.integer("original_max_position_embeddings")
        for rope in ropes:
            default = default or rope.integer("original_max_position_embeddings")
    if default == longest:
        default = None
    values = 0
    if (
        family.rope
        and keys.raw("alibi") is not True
        and any(kind not in ("mamba", "linear", "mlp", "moe", "conv") for kind in kinds)
    ):
        values = _tables(keys, ropes, kinds)
    return Lengths(longest, default, values)


def _ropes(keys: Keys) -> list[Keys]:
    """The scaling, or one for each kind of layer (Gemma 3 and later)."""
    for name in ("rope_parameters", "rope_scaling"):
        section = keys.section(name)
        if section is None:
            continue
        parts = [
            section.section(part)
            for part in ("full_attention", "sliding_attention", "chunked_attention")
            if section.has(part)
        ]
        return [part for part in parts if part is not None] or [section]
    return []


def _kind(rope: Keys) -> str:
    kind = rope.text("rope_type") or rope.text("type") or "default"
    return "default" if kind == "mrope" else kind


def _tables(keys: Keys, ropes: list[Keys], kinds: tuple[str, ...]) -> int:
    """Values of all tables: one per kind of rotation, shared by its layers."""
    positions = keys.integer("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    positions = positions or _DEFAULT_ROPE_POSITIONS
    width = _width(keys)
    if latent(keys):
        facts = keys.section("mla") or keys
        width = facts.count("qk_rope_head_dim")
    table = sum(_table(keys, rope, positions, width) for rope in ropes) if ropes else positions * width
    two_bases = keys.has("rope_local_base_freq") and len(ropes) < 2 and "sliding" in kinds
    return table + (positions * width if two_bases else 0)


def _width(keys: Keys) -> int:
    share = keys.number("partial_rotary_factor") or keys.number("rotary_pct") or keys.number("rope_pct") or 1
    stated = keys.integer("rotary_dim")
    return stated or int(head_dim_of(keys) * min(share, 1))


def _table(keys: Keys, rope: Keys, positions: int, width: int) -> int:
    """Values of one table. DeepSeek's is in 32 bit and counts double."""
    kind, factor = _kind(rope), rope.number("factor") or 1
    if rope.has("partial_rotary_factor"):
        width = int(head_dim_of(keys) * min(rope.number("partial_rotary_factor") or 1, 1))
    original = rope.integer("original_max_position_embeddings") or positions
    if latent(keys) and kind == "yarn":
        return int(original * factor) * width * 2
    if kind == "yarn":
        return int(original * factor) * width
    if kind == "linear":
        return int(positions * factor) * width
    if kind in ("longrope", "su"):
        original = keys.integer("original_max_position_embeddings") or original
        return (positions + original) * width
    if rope.has("mrope_section"):
        return _MROPE_LENGTHS * positions * width
    return positions * width


NESTED = (
    *("text_config", "llm_config", "language_config", "language_model_config", "thinker_config", "model_config"),
    "transformer_layer_config",
)
"""Keys of the language model's part in multimodal files, and of the draft's layers in speculators."""
MOST_DISTINCT = 128
"""Layers that differ from each other, each of which costs time. Real models have up to a dozen."""
_NAME_LENGTH = 128
_MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
_MOST_MTP_LAYERS = 64
_DTYPES: Mapping[str, str] = {
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}


def read(document: Mapping[str, Any]) -> Architecture:
    """The model's architecture.

    `document` is the content of config.json, or facts under its names (model.architecture, an inspection's selection
    with lists as [[value, count], ...]). Incomplete names required keys that are missing; InvalidModel names a key with
    an invalid value; Unplanned names what the planner does not support.
    """
    if not isinstance(document, Mapping):
        raise InvalidModel("config.json", "must be an object")
    return bounded(_Reader(document).architecture())


def text_part(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's keys, with fallback to those of the whole file."""
    text = document
    for _ in range(3):
        inner = next((text[name] for name in NESTED if isinstance(text.get(name), Mapping)), None)
        if inner is None:
            break
        outer = {key: value for key, value in text.items() if key not in NESTED and key in _SHARED}
        text = {**outer, **{key: value for key, value in inner.items() if value is not None}}
    return text


def bounded(made: Architecture) -> Architecture:
    """The architecture, checked so that neither planning time nor numbers depend on the repository."""
    distinct = [layer for layer, _ in made.distinct_layers]
    _check_distinct(distinct)
    forms = 1 if made.quantization is None else len(made.quantization.forms)
    head = UNQUANTIZED if made.quantization is None else made.quantization.head
    if not all(
        UNQUANTIZED <= form < forms for form in (head, *(one.form for layer in distinct for one in layer.linears))
    ):
        raise InvalidModel("quantization_config", "has a module in a form that it does not describe")
    states = (layer.attention.conv_values + layer.attention.recurrent_values for layer in distinct)
    encoder = made.encoder
    others = (made.rotary_values, made.table_bytes, encoder.tokens, encoder.values, encoder.shared_values)
    if max(made.counted_parameters, made.max_position_embeddings or 0, *states, *others) > MOST_PARAMETERS:
        raise InvalidModel("config.json", f"describes a model of more than {MOST_PARAMETERS:,} parameters or values")
    return made


def _check_distinct(layers: Sized) -> None:
    if len(layers) > MOST_DISTINCT:
        raise InvalidModel("config.json", f"describes more than {MOST_DISTINCT} different layers")


_SHARED = frozenset(
    {"quantization_config", "compression_config", "torch_dtype", "dtype", "tie_word_embeddings", "architectures"}
    | {"vision_config", "total_parameters"}
    | {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}
    | {"num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window", "rope_scaling", "rope_theta"}
)
"""Keys that some files have outside the language model's part, or inside it."""


class _Reader:
    def __init__(self, document: Mapping[str, Any]) -> None:
        text = text_part(document)
        model_type = text.get("model_type", document.get("model_type"))
        if model_type is not None and not isinstance(model_type, str):
            raise InvalidModel("model_type", "must be a string")
        classes = document.get("architectures") or text.get("architectures")
        self.outer_type = document.get("model_type") if isinstance(document.get("model_type"), str) else ""
        self.classes = (
            tuple(one for one in classes if isinstance(one, str)) if isinstance(classes, list | tuple) else ()
        )
        self.model_type = registry.read_as(model_type or self.outer_type or "", self.classes)
        self.stem = canonical(self.model_type)
        self.family: Family = family_of(self.model_type)
        nested = {} if text is document else NESTED_DEFAULTS.get(self.stem, {})
        self.keys = Keys({**text, "model_type": self.stem}, {**nested, **self.family.defaults})
        if self.family.positions is not None and self.keys.text("position_embedding_type") in ("rotary", "alibi"):
            is_rotary = self.keys.text("position_embedding_type") == "rotary"
            self.family = replace(self.family, positions=None, rope=is_rotary)
        self.is_qwen4 = self.stem == qwen4.TYPE
        self.is_v4 = self.stem == deepseek_v4.TYPE
        self.is_causal = not self.family.is_encoder and self._is_causal()
        self.document = document
        self.layers_count = self._layers_count()

    def _is_causal(self) -> bool:
        """Whether tokens attend to earlier ones only; vLLM follows the file's statement (layers/attention)."""
        if not registry.WITHOUT_A_CACHE.isdisjoint(self.classes) or self.keys.raw("is_causal") is False:
            return False
        return not ("Gemma3TextModel" in self.classes and self.keys.raw("use_bidirectional_attention") is True)

    def _kinds(self) -> tuple[str, ...]:
        """Layers of an encoder are all full: windows have no effect where nothing is stored."""
        if self.is_v4:
            return deepseek_v4.kinds(self.keys, self.layers_count)
        return (
            ("full",) * self.layers_count
            if self.family.is_encoder
            else kinds(self.keys, self.family, self.layers_count)
        )

    def _layers_count(self) -> int:
        if not self.keys.has("num_hidden_layers"):
            listed = self.keys.values("layers_block_type") or self.keys.text("hybrid_override_pattern")
            if listed:
                return len(listed)
        return self.keys.needed("num_hidden_layers", most=MOST_LAYERS)

    def architecture(self) -> Architecture:
        keys, family = self.keys, self.family
        hidden, vocabulary = keys.needed("hidden_size"), keys.needed("vocab_size")
        each = self._kinds()
        found = lengths(keys, family, each)
        quantization = quantization_config.read(keys)
        layers, mtp = self.layers(each), None
        if self.is_v4:
            quantization = deepseek_v4.with_experts(keys, quantization)
            layers = (*layers, deepseek_v4.mtp_layer(keys, layers[0]))
        if quantization is not None:
            layers = module_forms.with_forms(layers, quantization)
        if self.is_v4:
            layers, mtp = layers[:-1], layers[-1]
        made = Architecture(
            name=self._name(),
            hidden_size=hidden,
            vocab_size=vocabulary,
            layers=layers,
            tie_word_embeddings=family.is_encoder or keys.flag("tie_word_embeddings", family.tied),
            max_position_embeddings=found.longest,
            default_max_len=found.default,
            dtype=self._dtype(),
            quantization=quantization,
            total_parameters=keys.integer("total_parameters", most=MOST_PARAMETERS),
            encoder=vision.read(self.document, hidden),
            extra=self._extra(),
            extra_parameters=self._extra_parameters(),
            embedding_size=self._embedding_size(hidden),
            head_bias=family.head_bias,
            rotary_values=deepseek_v4.rotary_values(keys, each) if self.is_v4 else found.rotary_values,
            rotary_wide=self.is_v4,
            table_bytes=_table_bytes(keys, quantization),
            mtp_layers=self._mtp_layers(),
            mtp_layer=mtp,
            residual_streams=keys.needed("hc_mult") if self.is_v4 else 1,
            ratios_by_word=self.is_v4 and not keys.has("compress_ratios"),
        )
        return _fitted(made, self)

    def _mtp_layers(self) -> int:
        found = (self.keys.integer(name, least=0, most=_MOST_MTP_LAYERS) for name in _MTP_LAYERS)
        return next(filter(None, found), 0)

    def _name(self) -> str:
        return next(iter(self.classes), self.model_type or "model")[:_NAME_LENGTH]

    def _dtype(self) -> str | None:
        text = self.keys.text("dtype")
        return None if text is None else _DTYPES.get(text.removeprefix("torch."))

    def layers(self, each: tuple[str, ...] | None = None) -> tuple[Layer, ...]:
        """One object for equal layers, so that later steps handle few."""
        each = self._kinds() if each is None else each
        with_experts = expert_layers(self.keys, len(each))
        widths = self._widths(len(each))
        shared = self._sharing(each)
        has_index = indexed(self.keys, len(each))
        made: dict[tuple[str, bool, int, bool, bool], Layer] = {}
        result = []
        for index, kind in enumerate(each):
            key = (kind, with_experts[index], widths[index], shared[index], has_index[index])
            if key not in made:
                made[key] = self._layer(kind, with_experts[index], index, shared[index], has_index[index])
                _check_distinct(made)
            result.append(made[key])
        return tuple(result)

    def _widths(self, layers: int) -> tuple[int, ...]:
        stated = self.keys.raw("intermediate_size")
        if not isinstance(stated, list | tuple):
            return (0,) * layers
        return tuple(dense_width(self.keys, index) for index in range(layers))

    def _sharing(self, each: tuple[str, ...]) -> tuple[bool, ...]:
        """Gemma 3n and 4: the last layers read the cache of earlier ones."""
        sharing = min(self.keys.count("num_kv_shared_layers"), len(each))
        return (False,) * (len(each) - sharing) + (True,) * sharing

    def _layer(self, kind: str, with_experts: bool, index: int, shares: bool, has_index: bool) -> Layer:
        mixer = self._mixer(kind, has_index)
        if shares:
            mixer = sharing(mixer, self.keys)
        mlp = self._mlp(kind, with_experts, index, shares)
        additions = qwen4.streams(self.keys) if self.is_qwen4 else families.gemma_per_layer(self.keys)
        linears = (*mixer.linears, *mlp[1], *additions[0])
        norm = self.keys.needed("hidden_size") * (2 if self.family.norm_bias else 1)
        return Layer(mixer.attention, mlp[0], linears, mixer.small + mlp[2] + additions[1] + self.family.norms * norm)

    def _mixer(self, kind: str, has_index: bool) -> Mixer:
        if self.is_v4:
            return deepseek_v4.mixer(self.keys, kind)
        if kind in ("mlp", "moe"):
            return Mixer(Attention(Kind.STATE), ())
        if kind in ("mamba", "linear", "conv"):
            return state(self.keys, kind)
        if kind != "hybrid":
            found = attention(self.keys, self.family, kind, has_index)
            if self.is_qwen4:
                return qwen4.indexed(found, self.keys)
            return found if self.is_causal else encoding(found)
        mamba, main = state(self.keys, "mamba"), attention(self.keys, self.family, "full")
        both = replace(
            main.attention,
            conv_values=mamba.attention.conv_values,
            recurrent_values=mamba.attention.recurrent_values,
            recurrent_bytes=mamba.attention.recurrent_bytes,
            state_groups=mamba.attention.state_groups,
            group_values=mamba.attention.group_values,
        )
        return Mixer(both, (*main.linears, *mamba.linears), main.small + mamba.small)

    def _mlp(self, kind: str, with_experts: bool, index: int, shares: bool) -> Mlp:
        nothing: Mlp = (FeedForward(gated=self.family.gated), (), 0)
        if self.stem in ("mamba", "mamba2", "falcon_mamba"):
            return nothing
        if self.stem == "nemotron_h":
            if kind == "moe":
                return experts(self.keys, self.family)
            return dense(self.keys, self.family, index) if kind == "mlp" else nothing
        if not with_experts:
            twice = 2 if shares and self.keys.flag("use_double_wide_mlp") else 1
            return dense(self.keys, self.family, index, twice)
        routed = experts(self.keys, self.family)
        if not self.keys.flag("enable_moe_block"):
            return routed
        both = dense(self.keys, self.family, index)
        values = replace(routed[0], intermediate=both[0].intermediate)
        return values, (*both[1], *routed[1]), both[2] + routed[2]

    def _extra(self) -> tuple[Linear, ...]:
        found: list[Linear] = []
        hidden, narrow = self.keys.needed("hidden_size"), self.keys.integer("word_embed_proj_dim")
        if narrow is not None and narrow != hidden:
            found += [
                Linear("project_in", Part.OTHER, narrow, hidden, Split.NONE),
                Linear("project_out", Part.OTHER, hidden, narrow, Split.NONE),
            ]
        if self.is_v4:
            return tuple(deepseek_v4.extra(self.keys, self.layers_count))
        found += qwen4.extra(self.keys)[0] if self.is_qwen4 else families.gemma_extra(self.keys, self.layers_count)
        return tuple(found)

    def _extra_parameters(self) -> int:
        hidden, family = self.keys.needed("hidden_size"), self.family
        norm = hidden * (2 if family.norm_bias else 1)
        # OPT models that normalize after each layer have no final norm.
        final = family.final_norm and self.keys.flag("do_layer_norm_before", True)
        total = (norm if final else 0) + (norm if family.embedding_norm else 0)
        if family.positions is not None:
            length = self.keys.integer("max_position_embeddings", "n_positions")
            total += ((length or 1024) + family.positions) * hidden
        if family.is_encoder:
            total += self.keys.count("type_vocab_size") * hidden
        return total + (qwen4.extra(self.keys)[1] if self.is_qwen4 else families.gemma_extra_parameters(self.keys))

    def _embedding_size(self, hidden: int) -> int | None:
        narrow = self.keys.integer("word_embed_proj_dim")
        return None if narrow in (None, hidden) else narrow


def _fitted(made: Architecture, reader: _Reader) -> Architecture:
    """If only facts and a total are known, the missing ones follow from the form with the closest total."""
    total = made.total_parameters
    if total is None or reader.model_type:
        return made
    forms = [made]
    if not reader.keys.has("num_experts"):
        reader.family = replace(reader.family, gated=not reader.family.gated)
        forms.append(replace(made, layers=reader.layers()))
    if not reader.keys.has("tie_word_embeddings"):
        forms += [replace(form, tie_word_embeddings=True) for form in forms]
    return min(forms, key=lambda form: abs(form.counted_parameters - total))


_FP8 = "float8_e4m3fn"
_TABLES = "ngram_embedding"
_VALUES_OF_SCALE = 32
"""DeepSeek's tables are fp8, with a byte of scale for so many values."""


def _table_bytes(keys: Keys, quantization: Quantization | None) -> int:
    """Bytes of all layers' n-gram tables, which vLLM keeps in pinned memory of the node (vllm/config/engram.py), or 0.

    Qwen's have `ngram_vocab_size_base` rows for each head, with widths that sum to `ple_embed_dim`; DeepSeek states the
    rows of each layer.
    """
    layers = keys.values("ple_layer_ids")
    if layers:
        values = len(set(map(str, layers))) * keys.count("ple_embed_dim") * keys.count("ngram_vocab_size_base")
        return values * (1 if _has_fp8_tables(keys, quantization) else 2)
    if keys.values("engram_layer_ids"):
        rows = sum(keys.checked("engram_num_embeddings", one) for one in keys.values("engram_num_embeddings") or ())
        values = rows * keys.count("engram_head_dim")
        return values + values // _VALUES_OF_SCALE
    return 0


def _has_fp8_tables(keys: Keys, quantization: Quantization | None) -> bool:
    """As Qwen4ExpPLEEmbeddingMethod.from_quant_config (vllm/models/qwen4_exp/common/ngram_embedding.py)."""
    if keys.text("ple_embedding_dtype") == _FP8:
        return True
    if quantization is None or quantization.method != "fp8":
        return False
    return not any(_TABLES in one for one in quantization.kept)
