"""Bytes of weights, on the fullest GPU and in total, as vLLM distributes them.

Linears are split over tensor-parallel ranks; key/value heads are copied if there are fewer than ranks; routers and the
down-projections of MLA are on each rank; embedding and head are padded to 64 rows and split. Pipeline stages take
layers by get_pp_indices (vllm/distributed/utils.py); the first holds the embedding, the last the head. Experts are
shared by all ranks of all data-parallel engines, whole or in slices. With whole ones, some models have their shared
expert on each rank (storage.py, copies).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from llmservice_planner import storage
from llmservice_planner.model.architecture import (
    Architecture,
    Incomplete,
    Kind,
    Layer,
    Linear,
    Part,
    Quantization,
    Split,
    Tensors,
)
from llmservice_planner.plan import GIB, Draft, Line, Request
from llmservice_planner.splits import layers_of_stages
from llmservice_planner.storage import Storage

# Weights beside the model's own: draft models and heads, and memory for LoRA adapters. Drafts are on the last pipeline
# stage and share the target's embedding and head (vllm/v1/spec_decode/eagle.py). Memory for adapters is reserved at
# start: max_loras x rank for each linear, whether an adapter uses it or not (vllm/lora/layers).

EAGLE3_VOCABULARY = 32_000
"""Tokens that published EAGLE-3 heads predict, with a head of their own."""
_WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")


def draft_request(request: Request) -> Request | None:
    draft = request.draft
    if draft is None or not _is_whole(draft):
        return None
    if draft.architecture is None:
        raise Incomplete("the draft model's config.json")
    return replace(
        request,
        architecture=draft.architecture,
        tensors=None,
        quantization=None,
        weights="auto",
        tensor_parallel_size=draft.tensor_parallel_size or request.tensor_parallel_size,
        pipeline_parallel_size=1,
        draft=None,
        adapters=None,
        parameters=None,
        weights_gib=None,
    )


def _is_whole(draft: Draft) -> bool:
    return draft.method == "draftModel"


def head_linears(draft: Draft, target: Architecture) -> tuple[Linear, ...]:
    """Matrices of heads and layers that predict: Medusa's, EAGLE's, and the model's own for multi-token prediction.

    An EAGLE's own config.json has its number of layers; otherwise it is one like the target's. They share embedding and
    head with the target, except Medusa's heads and EAGLE-3's, whose vocabulary is smaller.
    """
    if _is_whole(draft) or draft.method in _WITHOUT_WEIGHTS:
        return ()
    hidden, known = target.hidden_size, draft.architecture
    if draft.method == "medusa":
        heads = draft.num_speculative_tokens or 1
        return (
            Linear("medusa.blocks", Part.MTP, hidden, hidden, Split.NONE, count=heads, plain=True),
            Linear("medusa.lm_heads", Part.MTP, hidden, target.vocab_size, count=heads, plain=True),
        )
    if draft.method == "mtp" and target.mtp_layer is not None:
        return target.mtp_layer.linears * max(1, target.mtp_layers)
    if draft.method == "mtp":
        layers: Sequence[Layer] = target.layers[-1:] * max(1, target.mtp_layers)
        joints = [Linear("mtp.eh_proj", Part.MTP, 2 * hidden, hidden, Split.NONE, plain=True)] * len(layers)
    else:
        layers = known.layers if known is not None and known.layers else _plain_layer(target)
        inputs = 3 if draft.method == "eagle3" else 2
        joints = [Linear("eagle.fc", Part.MTP, inputs * hidden, hidden, Split.NONE, plain=True)]
        if draft.method == "eagle3":
            words = min(EAGLE3_VOCABULARY, target.vocab_size)
            joints.append(Linear("eagle.lm_head", Part.MTP, hidden, words, plain=True))
    return (*(linear for layer in layers for linear in layer.linears), *joints)


def _plain_layer(target: Architecture) -> tuple[Layer, ...]:
    """One dense layer of the target, or its first if it has none."""
    dense = [layer for layer, _ in target.distinct_layers if layer.feed_forward.intermediate]
    return tuple((dense or list(target.layers))[:1])


def adapter_bytes(request: Request, layer: Layer, held: Storage) -> float:
    """Memory for adapters in one layer, on each GPU."""
    if request.adapters is None:
        return 0
    ranks = request.tensor_parallel_size
    adapted = (linear for linear in layer.linears if not linear.plain or linear.module.endswith("gate"))
    size = sum(_adapter_values(linear, ranks) for linear in adapted)
    return size * request.adapters.max_loras * request.adapters.max_lora_rank * held.value_bytes


def vocabulary_bytes(request: Request, architecture: Architecture, held: Storage) -> float:
    """Memory for adapters of the embedding; the head has as much. Ranks do not share it."""
    if request.adapters is None:
        return 0
    size = architecture.vocab_size + architecture.hidden_size
    return size * request.adapters.max_loras * request.adapters.max_lora_rank * held.value_bytes


def _adapter_values(linear: Linear, ranks: int) -> float:
    """Values of an adapter of rank 1: a row of inputs and a column of outputs. One of them is shared."""
    if linear.split is Split.NONE:
        return float(linear.inputs + linear.outputs)
    if linear.is_row_parallel:
        return linear.count * (linear.inputs / ranks + linear.outputs)
    return linear.count * (linear.inputs + linear.outputs / ranks)


VOCABULARY_PADDING = 64
"""Rows of embedding and head are a multiple of this (vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE)."""


@dataclass(frozen=True, slots=True)
class Weights:
    """In bytes."""

    per_gpu: int
    """On the fullest GPU."""
    total: int
    """Over all GPUs of one replica, including copies."""
    lines: tuple[Line, ...]
    """The arithmetic of the fullest GPU."""


@dataclass(frozen=True, slots=True)
class PartBytes:
    whole: float = 0
    """On a single GPU."""
    rank: float = 0
    """On each of the stage's GPUs."""

    def __add__(self, other: PartBytes) -> PartBytes:
        return PartBytes(self.whole + other.whole, self.rank + other.rank)

    def times(self, factor: float) -> PartBytes:
        return PartBytes(self.whole * factor, self.rank * factor)


Stage = dict[Part, PartBytes]
"""Bytes of one pipeline stage by part."""


def weigh(request: Request) -> Weights:
    """The bytes of a model's weights for a request.

    In order of precedence: stated weights_gib of the whole model, the checkpoint's tensors, arithmetic that is scaled
    to the stated number of parameters. Incomplete where nothing determines them.
    """
    architecture = request.architecture
    if architecture is None or not any(layer.linears for layer in architecture.layers):
        return _unknown_model(request)
    held = storage.engine(request)
    stages = [dict(stage) for stage in _stages(request, architecture, held)]
    stages, how = _as_stated(request, architecture, held, stages)
    return _offloaded(request, _result(request, architecture, held, stages, how))


def _offloaded(request: Request, whole: Weights) -> Weights:
    """The weights without what --cpu-offload-gb leaves in the node's memory, as far as there are any."""
    left = min(request.cpu_offload_gib * GIB, whole.per_gpu)
    if not left:
        return whole
    line = Line("offloaded weights", -left / GIB, f"{left / GIB:g} GiB stay in the node's memory", "--cpu-offload-gb")
    return Weights(round(whole.per_gpu - left), round(whole.total - left * request.gpus), (*whole.lines, line))


def _unknown_model(request: Request) -> Weights:
    """Only a size is known: it is divided evenly."""
    gpus = request.tensor_parallel_size * request.pipeline_parallel_size
    if request.weights_gib is not None:
        size, how = request.weights_gib * GIB, f"{request.weights_gib:g} GiB stated"
    elif request.parameters is not None:
        held = storage.engine(request)
        bits = held.quantization.bits if held.quantization is not None else 8 * held.value_bytes
        size, how = request.parameters * bits / 8, f"{request.parameters:,} parameters x {bits / 8:g} bytes"
    else:
        raise Incomplete("config.json, or the number of parameters")
    line = Line("weights", size / gpus / GIB, f"{how} / {gpus} GPUs")
    return Weights(round(size / gpus), round(size * request.data_parallel_size), (line,))


def _stages(request: Request, architecture: Architecture, held: Storage) -> Iterator[Stage]:
    """Each stage's parts. Equal layers are one object and are computed once."""
    known = {id(layer): _layer(layer, held, request) for layer, _ in architecture.distinct_layers}
    sizes = layers_of_stages(len(architecture.layers), request.pipeline_parallel_size)
    start = 0
    for number, size in enumerate(sizes):
        stage: Stage = {}
        for key, count in Counter(map(id, architecture.layers[start : start + size])).items():
            for part, amount in known[key].items():
                stage[part] = stage.get(part, PartBytes()) + amount.times(count)
        start += size
        _add_ends(stage, request, architecture, held, first=number == 0, last=number == len(sizes) - 1)
        yield stage


def _layer(layer: Layer, held: Storage, request: Request) -> Stage:
    found: Stage = {}
    for linear in layer.linears:
        size = held.bytes_of(linear)
        share = _padded_share(linear, held, request)
        found[linear.part] = found.get(linear.part, PartBytes()) + PartBytes(size, size * share)
    small = layer.small * held.value_bytes
    found[Part.ATTENTION] = found.get(Part.ATTENTION, PartBytes()) + PartBytes(small, small)
    return found


def _padded_share(linear: Linear, held: Storage, request: Request) -> float:
    """Share of a layer's matrix, with padding of its rank."""
    if storage.copies(request, linear, held.form_of(linear)):
        return 1
    ranks, whole_experts = request.tensor_parallel_size, request.enable_expert_parallel
    sharing = ranks * request.data_parallel_size
    share = _share(linear, ranks, sharing, whole_experts)
    return share * _padding(linear, held, request, 1 if whole_experts else sharing)


def _padding(linear: Linear, held: Storage, request: Request, slices: int) -> float:
    """Padding of kernels for MXFP4 experts: the hidden size is a multiple of 256 values, the inside of a slice of 128
    (fused_moe/oracle/mxfp4.py, mxfp4_round_up_hidden_size_and_intermediate_size). 20B and 120B as measured: 1.07. Also
    completes the blocks of shared experts."""
    form = held.form_of(linear)
    is_down = linear.module.endswith("down_proj")
    inside, hidden = (linear.inputs, linear.outputs) if is_down else (linear.outputs, linear.inputs)
    if form is not None and storage.pads(request, linear, form):
        return _rounded(inside, request.tensor_parallel_size * form.group_rows) / inside
    if linear.split is not Split.EXPERTS or form is None or form.method != "mxfp4":
        return 1.0
    part = -(-inside // slices)
    return _rounded(hidden, 256) / hidden * _rounded(part, 128) / part


def _rounded(value: int, step: int) -> int:
    return -(-value // step) * step


def _share(linear: Linear, ranks: int, sharing: int, whole_experts: bool) -> float:
    """Share of a matrix on the rank with most of it."""
    if linear.split is Split.NONE:
        return 1
    if linear.split is Split.EXPERTS:
        return -(-linear.count // sharing) / linear.count if whole_experts and linear.count else 1 / sharing
    if linear.units:
        return -(-linear.units // ranks) / linear.units
    return 1 / ranks


def _add_ends(
    stage: Stage, request: Request, architecture: Architecture, held: Storage, *, first: bool, last: bool
) -> None:
    """What the first and the last stage hold beside their layers."""
    ranks, tied = request.tensor_parallel_size, architecture.tie_word_embeddings
    if first or (last and tied):
        stage[Part.EMBEDDING] = _vocabulary(architecture, ranks, held)
    if last and not tied:
        stage[Part.HEAD] = _vocabulary(architecture, ranks, held, head=True)
    if first:
        vision = architecture.encoder.parameters * held.value_bytes
        if vision:
            shared = architecture.encoder.shared * held.value_bytes
            stage[Part.VISION] = PartBytes(vision, vision - shared + shared / ranks)
        for linear in architecture.extra:
            size = held.bytes_of(linear)
            amount = PartBytes(size, size * _share(linear, ranks, ranks, False))
            stage[Part.OTHER] = stage.get(Part.OTHER, PartBytes()) + amount
    if first or last:
        small = architecture.extra_parameters * held.value_bytes
        stage[Part.OTHER] = stage.get(Part.OTHER, PartBytes()) + PartBytes(small, small)


def _vocabulary(architecture: Architecture, ranks: int, held: Storage, *, head: bool = False) -> PartBytes:
    rows = -(-architecture.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING
    width = architecture.embedding_size or architecture.hidden_size
    whole = architecture.vocab_size * width
    if not head:
        return PartBytes(whole * held.value_bytes, rows * width * held.value_bytes / ranks)
    bias = architecture.vocab_size * held.value_bytes if architecture.head_bias else 0
    size = held.head_bytes(whole, architecture.vocab_size) + bias
    return PartBytes(size, size * rows / architecture.vocab_size / ranks)


def _as_stated(
    request: Request, architecture: Architecture, held: Storage, stages: list[Stage]
) -> tuple[list[Stage], str]:
    """The stages, adjusted to facts that are more exact than counting, with their source."""
    if request.weights_gib is not None:
        factor = request.weights_gib * GIB / _whole(stages)
        return [_scaled(stage, factor) for stage in stages], f"{request.weights_gib:g} GiB stated"
    if request.parameters is None and request.tensors is not None and request.tensors.total:
        return _measured(request, architecture, held, stages, request.tensors), "real sizes of the checkpoint's tensors"
    counted = architecture.counted_parameters
    total = request.parameters or architecture.total_parameters
    if total is None or total == counted:
        return stages, f"{counted:,} parameters counted"
    return _scaled_to_total(
        architecture, held, stages, total, counted, request.tensor_parallel_size
    ), f"{total:,} parameters stated, {counted:,} counted"


UNKNOWN_SHARE = 0.003
"""Parameters beyond the count are an unknown part, such as an encoder, above this share of the model; below it they are
biases and rounding."""


def _scaled_to_total(
    architecture: Architecture, held: Storage, stages: list[Stage], total: int, counted: int, ranks: int
) -> list[Stage]:
    """More than counted is an unknown part beside the layers, in 16 bit; less means smaller layers."""
    over = total - counted
    if UNKNOWN_SHARE * total < over and not architecture.encoder.parameters and over < total / 2:
        size = over * held.value_bytes
        first = stages[0]
        first[Part.VISION] = first.get(Part.VISION, PartBytes()) + PartBytes(size, size / ranks)
        return stages
    return [_scaled(stage, total / counted) for stage in stages]


def _whole(stages: list[Stage]) -> float:
    """Bytes of one copy of the model."""
    total = sum(amount.whole for stage in stages for amount in stage.values())
    if len(stages) > 1:
        # Held by the first and the last stage.
        total -= stages[-1].get(Part.OTHER, PartBytes()).whole
        total -= stages[-1].get(Part.EMBEDDING, PartBytes()).whole
    return total


def _scaled(stage: Stage, factor: float) -> Stage:
    return {part: amount.times(factor) for part, amount in stage.items()}


_MEASURED: Mapping[Part, str] = {
    Part.EMBEDDING: "embedding",
    Part.HEAD: "head",
    Part.ATTENTION: "attention",
    Part.FEED_FORWARD: "feed_forward",
    Part.EXPERTS: "experts",
    Part.VISION: "vision",
}


def _measured(
    request: Request, architecture: Architecture, held: Storage, stages: list[Stage], tensors: Tensors
) -> list[Stage]:
    """Each part with its real size, converted from the files' form to the engine's."""
    found = storage.checkpoint(architecture)
    tensors = _without_tables(tensors, architecture.table_bytes)
    if found.quantization is None and tensors.parameters:
        found = replace(found, value_bytes=4 if tensors.total / tensors.parameters > 3 else 2)
    single = replace(request, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1)
    (filed,), (loaded,) = _stages(single, architecture, found), _stages(single, architecture, held)
    factors: dict[Part, float] = {}
    for part, name in _MEASURED.items():
        real = getattr(tensors, name)
        if real and part in filed and filed[part].whole:
            factors[part] = real / filed[part].whole
    result = [{part: amount.times(factors.get(part, 1)) for part, amount in stage.items()} for stage in stages]
    ratio = held.value_bytes / found.value_bytes
    if tensors.vision and Part.VISION not in loaded:
        size = tensors.vision * ratio
        result[0][Part.VISION] = PartBytes(size, size)
    if tensors.other:
        size = tensors.other * ratio
        result[0][Part.OTHER] = PartBytes(size, size)
    return result


def _without_tables(tensors: Tensors, size: int) -> Tensors:
    """N-gram tables are among a layer's tensors, but not in a GPU's memory."""
    if not size:
        return tensors
    of_layers = min(size, tensors.attention)
    return replace(tensors, attention=tensors.attention - of_layers, other=max(0, tensors.other - (size - of_layers)))


def _result(request: Request, architecture: Architecture, held: Storage, stages: list[Stage], how: str) -> Weights:
    ranks, width = request.tensor_parallel_size, 4 if architecture.rotary_wide else held.value_bytes
    tables = architecture.rotary_values * width
    additions = _additions(request, architecture, held)
    per_stage = [
        sum(amount.rank for amount in stage.values()) + sum(more.values()) + tables
        for stage, more in zip(stages, additions, strict=True)
    ]
    fullest = max(range(len(stages)), key=lambda number: per_stage[number])
    lines = tuple(_lines(request, architecture, held, stages[fullest], fullest, how))
    lines += tuple(Line(name, size / GIB, _ADDITIONS[name]) for name, size in additions[fullest].items() if size)
    if tables:
        formula = f"{architecture.rotary_values:,} sines and cosines x {width} bytes"
        lines += (Line("rotary tables", tables / GIB, formula, "rotary_embedding/base.py"),)
    return Weights(
        round(per_stage[fullest]),
        round(sum(per_stage) * ranks * request.data_parallel_size),
        lines,
    )


_ADDITIONS: Mapping[str, str] = {
    "tables of n-grams": "the tables, shared by ranks (--engram-config)",
    "MLA's expanded projections": "kv_b_proj once more in 16 bit (mla_attention.py, process_weights_after_loading)",
    "adapters": "max_loras x max_lora_rank x (inputs + outputs) of each linear",
    "speculation": "the draft model or head, on the last stage",
}


def _additions(request: Request, architecture: Architecture, held: Storage) -> list[dict[str, float]]:
    """By stage, bytes that the checkpoint lacks: second copies, memory for adapters, and drafts."""
    known = {
        id(layer): {
            "MLA's expanded projections": _expanded(layer, held, request.tensor_parallel_size),
            "adapters": adapter_bytes(request, layer, held),
        }
        for layer, _ in architecture.distinct_layers
    }
    result, start = [], 0
    for size in layers_of_stages(len(architecture.layers), request.pipeline_parallel_size):
        counts = Counter(map(id, architecture.layers[start : start + size]))
        names = ("MLA's expanded projections", "adapters")
        result.append({name: sum(known[key][name] * count for key, count in counts.items()) for name in names})
        start += size
    words = vocabulary_bytes(request, architecture, held)
    result[0]["adapters"] += words
    result[-1]["adapters"] += words
    result[0]["tables of n-grams"] = (
        architecture.table_bytes / request.tensor_parallel_size if request.tables_on_gpu else 0
    )
    result[-1]["speculation"] = _speculation(request, architecture, held)
    return result


def _expanded(layer: Layer, held: Storage, ranks: int) -> float:
    """MLA keeps kv_b_proj a second time, unquantized, for decoding."""
    if layer.attention.kind is not Kind.LATENT:
        return 0
    return sum(
        linear.values * held.value_bytes * _share(linear, ranks, ranks, False)
        for linear in layer.linears
        if linear.module.endswith("kv_b_proj") and held.form_of(linear) is not None
    )


def _speculation(request: Request, architecture: Architecture, held: Storage) -> float:
    """On each GPU of the last stage."""
    if request.draft is None:
        return 0
    model = draft_request(request)
    if model is not None:
        return weigh(model).per_gpu
    if request.draft.method != "mtp":
        # Heads of other checkpoints do not have the target's quantization.
        held = Storage(held.value_bytes)
    return sum(
        held.bytes_of(linear) * _padded_share(linear, held, request)
        for linear in head_linears(request.draft, architecture)
    )


_NAMES: Mapping[Part, str] = {
    Part.EMBEDDING: "embedding",
    Part.HEAD: "lm_head",
    Part.ATTENTION: "attention and norms",
    Part.FEED_FORWARD: "MLPs",
    Part.EXPERTS: "experts",
    Part.VISION: "encoders",
    Part.MTP: "multi-token prediction",
    Part.OTHER: "positions, final norm and projections",
}


_MOST_FORMS = 4
"""Named beside the first one."""


def _form(architecture: Architecture, held: Storage) -> str:
    """How the weights are held: the checkpoint's own form, and parts with another one."""
    rest = f"{held.value_bytes} bytes a value"
    if held.quantization is None:
        return rest
    others: dict[str, list[str]] = {}
    for layer, _ in architecture.distinct_layers if held.own else ():
        for linear in layer.linears:
            form = held.form_of(linear)
            if form is not None and _words(form) != _words(held.quantization):
                others.setdefault(_words(form), []).append(_NAMES[linear.part])
    named = (f", {' and '.join(dict.fromkeys(parts))} in {words}" for words, parts in others.items())
    return f"{_words(held.quantization)}{''.join(islice(named, _MOST_FORMS))}, the rest {rest}"


def _words(form: Quantization) -> str:
    return f"{form.method}, {form.bits:g} bits{f', groups of {form.group_size}' if form.group_size else ''}"


def _lines(
    request: Request, architecture: Architecture, held: Storage, stage: Stage, number: int, how: str
) -> Iterator[Line]:
    """What the fullest GPU holds."""
    yield Line("weights", None, f"{how}; {_form(architecture, held)}")
    where = f" of stage {number + 1}" if request.pipeline_parallel_size > 1 else ""
    for part in Part:
        amount = stage.get(part)
        if amount is None or not amount.rank:
            continue
        formula = f"{amount.whole / GIB:.3f} GiB{where}"
        if amount.rank != amount.whole:
            formula += f", of which one of {request.tensor_parallel_size} ranks holds {amount.rank / amount.whole:.1%}"
        yield Line(_NAMES[part], amount.rank / GIB, formula)
