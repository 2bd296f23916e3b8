"""GPU memory beside weights and KV cache: peak of activations, CUDA graphs, and memory outside torch.

The engine runs one step of maximum size before it sizes the KV cache (vllm/v1/worker/gpu_worker.py,
determine_available_memory); the peak is inside one layer, in the sampler, or in the image encoder. First the relevant
sizes, without constants (`load`); then bytes (`overheads`), the only part that calibration varies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from llmservice_vllm.facts import facts

from llmservice_planner.batching import Batching, longest_length, profiled_tokens
from llmservice_planner.constants import CONSTANTS, Constant, Constants
from llmservice_planner.kv_blocks import (
    index_bytes,
    index_width,
    is_compressed,
    value_bytes,
)
from llmservice_planner.model.architecture import Architecture, Attention, FeedForward, Kind, Layer, Split
from llmservice_planner.plan import GIB, Device, Line, Request

# vLLM's two model runners profile themselves differently before they size the KV cache. From 0.32 on the second one
# (vllm/v1/worker/gpu/model_runner.py) runs every model; from 0.28 to 0.31 dense text models without quantization.


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """How a runner profiles itself."""

    has_bare_logits: bool
    """Whether its dummy step has no sampling parameters (_dummy_sampler_run), so that logits are not copied."""
    graphs_in_budget: bool
    """Whether CUDA graphs are estimated and subtracted before the KV cache is sized."""

    def sampler_bytes(self, constants: Constants) -> Constant:
        """Bytes per sequence and vocabulary entry during sampling."""
        return constants.sampler_bytes_bare if self.has_bare_logits else constants.sampler_bytes_plain


_FIRST = ModelRunner(has_bare_logits=False, graphs_in_budget=True)
_SECOND_BEFORE_032 = ModelRunner(has_bare_logits=True, graphs_in_budget=False)
_SECOND = ModelRunner(has_bare_logits=True, graphs_in_budget=True)


def model_runner(request: Request, model: Architecture) -> ModelRunner:
    """The runner that the request's vLLM chooses for the model."""
    known = facts(request.vllm_version)
    if request.draft is not None and request.draft.method in known.first_runner_methods:
        return _FIRST
    if known.second_runner_takes_all:
        return _SECOND
    return _SECOND_BEFORE_032 if _is_dense_text(model) and not _is_quantized(request, model) else _FIRST


def _is_quantized(request: Request, model: Architecture) -> bool:
    is_stated = request.quantization is not None or request.weights in ("fp8", "int8", "int4")
    return is_stated or model.quantization is not None


def _is_dense_text(model: Architecture) -> bool:
    return not model.encoder.values and all(
        layer.attention.kind is not Kind.STATE and not layer.feed_forward.experts for layer, _ in model.distinct_layers
    )


MIB = 2**20
GRAPH_LIMIT = 512
"""Largest batch for which graphs are captured (vllm/config/vllm.py, _set_cudagraph_sizes); twice that from 10.0 on."""
DATA_CENTER_BLACKWELL = 10


@dataclass(frozen=True, slots=True)
class Load:
    """The largest step, on one GPU."""

    tokens: int
    hidden_size: int
    layer_values: float
    """Per token inside the widest layer, except copies of the hidden state and experts."""
    expert_values: float
    """Per token inside the widest layer of experts."""
    value_bytes: int
    sequences: int
    vocab_size: int
    encoder_tokens: int
    """Tokens of images or a video in one step: as many as the step has, at least one item."""
    encoder_results: int
    """Values of their results, kept while the language model runs."""
    encoder_values: float
    """Values per such token inside the encoder."""
    index_bytes: int
    """Of the keys that one step gathers for an index, or of the vectors (sparse MLA, DeepSeek V4)."""
    gathers_vectors: bool
    """Whether vectors are gathered."""
    peers: int
    """Further ranks of the tensor-parallel group."""
    graph_layers: int
    graph_sizes: int


@dataclass(frozen=True, slots=True)
class Overheads:
    """Bytes on the fullest GPU."""

    activation: float
    non_torch: float
    graphs: float
    """Memory of graphs; `counted_graphs` of it before the KV cache is sized."""
    counted_graphs: float
    lines: tuple[Line, ...]

    @property
    def counted(self) -> float:
        """Subtracted from the budget."""
        return self.activation + self.non_torch + self.counted_graphs


def load(request: Request, model: Architecture, device: Device, step: Batching) -> Load:
    """The relevant sizes."""
    guesses = request.draft.num_speculative_tokens if request.draft is not None else 0
    has_graphs = not (request.enforce_eager or request.cuda_graphs == "none" or device.is_cpu)
    layers = [layer for layer, _ in model.distinct_layers]
    encoder_tokens = profiled_tokens(model, longest_length(request), step.tokens, request.disabled_inputs)
    return Load(
        tokens=step.tokens,
        hidden_size=model.hidden_size,
        layer_values=max((_layer_values(request, model, layer) for layer in layers), default=0.0)
        + _stream_values(request, model),
        expert_values=max((_expert_values(request, model, layer) for layer in layers), default=0.0),
        value_bytes=value_bytes(request),
        sequences=min(step.sequences, step.tokens),
        vocab_size=model.vocab_size,
        encoder_tokens=encoder_tokens,
        encoder_results=encoder_tokens * model.hidden_size * model.encoder.outputs,
        encoder_values=model.encoder.values + model.encoder.shared_values / request.tensor_parallel_size,
        index_bytes=_index_bytes(request, layers) or _gathered_bytes(request, layers, step.tokens),
        gathers_vectors=is_compressed(model),
        peers=request.tensor_parallel_size - 1,
        graph_layers=-(-len(model.layers) // max(1, request.pipeline_parallel_size))
        * (_BROKEN_GRAPHS if is_compressed(model) else 1),
        graph_sizes=sum(1 for _ in capture_sizes(device, step, 1 + guesses)) if has_graphs else 0,
    )


def overheads(load: Load, runner: ModelRunner, constants: Constants = CONSTANTS) -> Overheads:
    """Everything beside weights and KV cache."""
    activation, activation_line = _activation(load, runner, constants)
    non_torch, non_torch_line = _non_torch(load, constants)
    graphs = load.graph_layers * load.graph_sizes * constants.graph_mib.value * MIB
    formula = f"{load.graph_layers} layers x {load.graph_sizes} sizes x {constants.graph_mib.value:g} MiB"
    if graphs and not runner.graphs_in_budget:
        formula += " (outside the budget of this version)"
    lines = [activation_line, non_torch_line, Line("CUDA graphs", graphs / GIB, formula, "graph_mib")]
    if load.index_bytes:
        words = "longest request x 8 x 5 (2 beyond 256K tokens) x bytes of a key and its scales"
        source = "v1/attention/backends/mla/indexer.py"
        if load.gathers_vectors:
            words, source = "vectors of four of the longest requests, or keys of the index; and its scores", _FLASH_MLA
        lines.insert(1, Line("index workspace", load.index_bytes / GIB, words, source))
    return Overheads(
        activation=activation + load.index_bytes,
        non_torch=non_torch,
        graphs=graphs,
        counted_graphs=graphs if runner.graphs_in_budget else 0.0,
        lines=tuple(lines),
    )


def _index_bytes(request: Request, layers: list[Layer]) -> int:
    """Reserved before the KV cache is sized: get_max_prefill_buffer_size entries, whatever the step's tokens."""
    width, length = max(map(index_width, layers), default=0), longest_length(request)
    if not width or length is None:
        return 0
    factor = _INDEX_FACTOR if length <= _INDEX_LONG else _INDEX_FACTOR_LONG
    return length * _INDEX_ENTRIES * factor * index_bytes(width)


def _gathered_bytes(request: Request, layers: list[Layer], tokens: int) -> int:
    """DeepSeek V4 has one workspace for the vectors of four requests that a step gathers in 16 bit and for the keys of
    its index, and memory for the index's scores."""
    found = [layer.attention for layer in layers if layer.attention.kind is Kind.COMPRESSED]
    length = longest_length(request)
    if not found or length is None:
        return 0
    ratio = min((one.compress_ratio for one in found if one.compress_ratio > 1), default=length)
    window, width = max(one.window or 0 for one in found), max(one.key_dim for one in found)
    gathered = _GATHERED_REQUESTS * (-(-length // ratio) + window + tokens) * width * 2
    index = max((one.index_dim for one in found), default=0)
    if not index:
        return gathered
    factor = _INDEX_FACTOR if length <= _INDEX_LONG else _INDEX_FACTOR_LONG
    return max(gathered, length * _INDEX_ENTRIES * factor // ratio * index_bytes(index)) + _INDEX_SCORES


_FLASH_MLA = "models/deepseek_v4/nvidia/flashmla.py"
_GATHERED_REQUESTS = 4
_INDEX_SCORES = 512 * MIB
"""VLLM_SPARSE_INDEXER_MAX_LOGITS_MB, which profiling takes (sparse_attn_indexer.py)."""
_INDEX_ENTRIES = 576 * 2 // 132
_INDEX_FACTOR, _INDEX_FACTOR_LONG = 5, 2
"""Defaults of sparse_mla_prefill_workspace_factor (vllm/config/vllm.py)."""
_INDEX_LONG = 256 * 1024


def _activation(load: Load, runner: ModelRunner, constants: Constants) -> tuple[float, Line]:
    values = max(load.layer_values, load.expert_values) + constants.hidden_copies.value * load.hidden_size
    entry = runner.sampler_bytes(constants).value
    size = load.value_bytes
    # The encoder's results exist beside the language model's own step (gpu_model_runner.py, profile_run).
    pictures = load.encoder_results * size
    peaks = (
        (load.tokens * values * size + pictures, "layer", f"{load.tokens} tokens x {values:.0f} values x {size} bytes"),
        (
            load.sequences * load.vocab_size * entry + load.tokens * load.hidden_size * size + pictures,
            "sampler",
            f"{load.sequences} sequences x {load.vocab_size} words x {entry:g} bytes, and {load.tokens} hidden states",
        ),
        (
            load.encoder_tokens * load.encoder_values * size + pictures,
            "encoder",
            f"{load.encoder_tokens} tokens of pictures or a video x {load.encoder_values:.0f} values x {size} bytes",
        ),
    )
    peak, where, formula = max(peaks)
    sources = {"layer": "hidden_copies", "sampler": "sampler_bytes", "encoder": "config.json"}
    return peak, Line(f"activation ({where})", peak / GIB, formula, sources[where])


def _non_torch(load: Load, constants: Constants) -> tuple[float, Line]:
    base, peer = constants.non_torch.value, constants.non_torch_peer.value
    gib = base + load.peers * peer
    formula = f"{base:g}" + (f" + {load.peers} x {peer:g} GiB" if load.peers else " GiB")
    return gib * GIB, Line("non-torch", gib, formula, "non_torch, non_torch_peer")


def _layer_values(request: Request, model: Architecture, layer: Layer) -> float:
    mixed = _attention_values(layer.attention, model.hidden_size, request.tensor_parallel_size)
    if layer.attention.kind is Kind.COMPRESSED:
        mixed = _compressed_values(layer, request.tensor_parallel_size)
    return max(mixed, _feed_forward_values(layer.feed_forward, request.tensor_parallel_size))


def _stream_values(request: Request, model: Architecture) -> float:
    """Residual streams before and after mixing, and three more where a layer predicts from them."""
    streams = model.residual_streams
    if streams == 1:
        return 0.0
    is_predicting = request.draft is not None and request.draft.method == "mtp"
    return streams * model.hidden_size * (5 if is_predicting else 2)


_BROKEN_GRAPHS = 3
"""Graphs of DeepSeek V4 are split at each layer's attention (VLLM_USE_BREAKABLE_CUDAGRAPH). A start that logs them:
2.51 GiB for 51 sizes of 43 layers (vllm#50576)."""


def _attention_values(attention: Attention, hidden_size: int, ranks: int) -> float:
    """Queries, keys, values and the result."""
    if attention.kind is Kind.STATE:
        return attention.parameters / max(1, hidden_size) / ranks
    heads = attention.heads / ranks
    if attention.kind is Kind.LATENT:
        # Keys and values are expanded for the prompt, and the keys are joined with their rotated part.
        return heads * (3 * attention.key_dim + 2 * attention.value_dim) + attention.latent_dim + attention.query_rank
    width = attention.key_dim + attention.value_dim
    return (heads + max(1.0, attention.kv_heads / ranks)) * width


def _compressed_values(layer: Layer, ranks: int) -> float:
    """Queries, and once more beside the result for the kernel's number of heads; down-projections, the index's queries,
    and 32-bit sums of compressors."""
    heads = layer.attention.heads / ranks
    whole = [one for one in layer.linears if one.module.startswith("self_attn.") and one.split is Split.NONE]
    projected = sum(
        one.outputs * one.count * (2 if "compressor." in one.module else 1) for one in whole if not one.wide
    )
    return (heads + 2 * (64 if heads <= 64 else 128)) * layer.attention.key_dim + projected


def _feed_forward_values(layer: FeedForward, ranks: int) -> float:
    """Gate and up, and their product."""
    matrices = 3 if layer.gated else 2
    return matrices * max(layer.intermediate, layer.shared_intermediate) / ranks


def _expert_values(request: Request, model: Architecture, layer: Layer) -> float:
    """Of all experts that a token uses (vllm/model_executor/layers/fused_moe): one workspace for the first and the last
    product, one for the middle, and the sum."""
    experts = layer.feed_forward
    if not experts.experts:
        return 0.0
    ranks = 1 if request.enable_expert_parallel else request.tensor_parallel_size
    width = experts.expert_intermediate / ranks
    first = (2 if experts.gated else 1) * width
    return experts.experts_per_token * (max(first, model.hidden_size) + width) + model.hidden_size


def capture_sizes(device: Device, step: Batching, tokens_per_seq: int = 1) -> Iterator[int]:
    """Batch sizes for which graphs are captured (vllm/config/vllm.py, _set_cudagraph_sizes)."""
    is_blackwell = device.capability is not None and device.capability[0] == DATA_CENTER_BLACKWELL
    limit = GRAPH_LIMIT * 2 if is_blackwell else GRAPH_LIMIT
    largest = min(step.sequences * tokens_per_seq * 2, limit, step.tokens)
    every = chain((1, 2, 4), range(8, min(largest + 1, 256), 8), range(256, largest + 1, 16))
    return (size for size in every if size <= largest)
