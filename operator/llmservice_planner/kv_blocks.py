"""Blocks of the KV cache: tokens per block, the requested number or the attention backend's (vLLM, platforms/), and
bytes per token, by the cache's type (vLLM: the backends' customize_spec).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmservice_api.dtypes import KVCache

from llmservice_planner.model.architecture import Architecture, Attention, Kind, Layer
from llmservice_planner.plan import Request

_SCALES = 8
"""Two float32 scales beside the values of one head, with per_token_head types."""
_TURBOQUANT = {"k8v4": (8, 4), "4bit_nc": (4, 4), "k3v4_nc": (3, 4), "3bit_nc": (3, 3)}
OCTAVE_WIDTH = 256
_OCTAVE = {"octave_k3v4": 248, "octave_k3v3": 216, "octave_k3v3_compact": 196}
"""For heads of width 256 with 64 rotated values, which the kernels require (v1/attention/ops/rocm_octave.py)."""
_PACKED_LATENT = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}


def stored_type(request: Request, *, sparse: bool) -> KVCache:
    """The stored type, with `auto` resolved, and its format: they depend on checkpoint and GPU."""
    stored, architecture = request.kv_cache_dtype, request.architecture
    device = request.device
    major = device.capability[0] if device is not None and device.capability is not None else 0
    if stored == "auto" and architecture is not None:
        stored = (architecture.quantization and architecture.quantization.kv_cache) or stored
        if stored == "auto" and architecture.name == "GlmMoeDsaForCausalLM" and major == 10:
            stored = "fp8"
    if architecture is not None and is_compressed(architecture):
        return _stored_compressed(request, stored, major)
    # Sparse MLA packs 8-bit rows with their scales, except on the first Blackwell chips; on others there is no
    # alternative.
    if sparse and (
        (stored.startswith("fp8") and major == 9) or (stored in ("auto", "fp8", "fp8_e4m3") and major == 12)
    ):
        return "fp8_ds_mla"
    return stored


def is_compressed(architecture: Architecture) -> bool:
    """Whether one vector represents several tokens (DeepSeek V4)."""
    return any(layer.attention.kind is Kind.COMPRESSED for layer, _ in architecture.distinct_layers)


def _stored_compressed(request: Request, stored: KVCache, major: int) -> KVCache:
    """FlashInfer on the first Blackwell chips stores plain rows; others pack 8 bits with scales, whatever is requested
    (vllm/models/deepseek_v4/attention.py)."""
    if request.attention_backend == PLAIN_ROWS and major == 10:
        return stored
    return "fp8_ds_mla" if stored == "auto" or stored.startswith("fp8") else stored


PLAIN_ROWS = "FLASHINFER_MLA_SPARSE_DSV4"


def value_bytes(request: Request) -> int:
    """Bytes of one value of the compute type. `auto` is never float32: vLLM rounds such checkpoints to 16 bit
    (config/model.py, _resolve_auto_dtype)."""
    return 4 if request.compute_dtype == "float32" else 2


def head_bytes(kv_dtype: str, key: int, value: int, plain: int) -> int:
    """Bytes of one token in one key/value head of widths `key` and `value`; `plain`: bytes of an unquantized value."""
    if kv_dtype.startswith("fp8") and kv_dtype != "fp8_per_token_head":
        return key + value
    if kv_dtype in ("fp8_per_token_head", "int8_per_token_head"):
        return key + value + _SCALES
    if kv_dtype == "int4_per_token_head":
        return key // 2 + value // 2 + _SCALES
    if kv_dtype.startswith("nvfp4"):
        # 4 bits, and an 8-bit scale for every 16 values.
        return key // 2 + key // 16 + value // 2 + value // 16
    if kv_dtype == "ultraquant_4bit":
        # 4 bits, and an 8-bit scale for every 32 values.
        return 2 * (key // 2 + key // 32)
    if kv_dtype in _OCTAVE:
        return _OCTAVE[kv_dtype]
    if kv_dtype.startswith("turboquant_"):
        return _turboquant(kv_dtype.removeprefix("turboquant_"), key)
    return (key + value) * _plain(kv_dtype, plain)


def latent_bytes(kv_dtype: str, width: int, plain: int) -> int:
    """Bytes of one token's compressed vector (MLA)."""
    if kv_dtype in _PACKED_LATENT:
        return _PACKED_LATENT[kv_dtype]
    if kv_dtype in ("fp8_per_token_head", "int8_per_token_head"):
        return width + _SCALES
    if kv_dtype == "int4_per_token_head":
        return width // 2 + _SCALES
    if kv_dtype.startswith("fp8"):
        return width
    return width * _plain(kv_dtype, plain)


def compressed_bytes(kv_dtype: str, width: int, rope: int, plain: int) -> int:
    """Bytes of one vector of DeepSeek V4, of `width` values with `rope` rotated: packed ones have these in 16 bit, the
    others in 8 bit with a scale for every 64, and one more byte."""
    if kv_dtype in _PACKED_LATENT:
        return width - rope + 2 * rope + (width - rope) // 64 + 1
    return width if kv_dtype.startswith("fp8") else width * _plain(kv_dtype, plain)


def is_packed(kv_dtype: str) -> bool:
    """Whether a type leaves the outermost layers in the compute type."""
    return kv_dtype.startswith("turboquant_") or kv_dtype == "ultraquant_4bit"


def _turboquant(preset: str, width: int) -> int:
    """8-bit keys unchanged, others with a norm; values with scale and zero; padded to an even number."""
    key_bits, value_bits = _TURBOQUANT[preset]
    key = width if key_bits == 8 else -(-width * key_bits // 8) + 2
    value = -(-width * value_bits // 8) + 4
    return (key + value + 1) // 2 * 2


def _plain(kv_dtype: str, plain: int) -> int:
    return {"float32": 4, "float16": 2, "bfloat16": 2}.get(kv_dtype, plain)


# States of fixed size: Mamba, linear attention, short convolutions (vLLM, model_executor/layers/mamba).

_KERNEL = 4
_SHORT_KERNEL = 3
"""Width of the convolution in published models, with and without a recurrent state; its state has one value less."""
_HEEDED = ("NemotronH", "Nemotron_Nano", "Qwen3_5", "Qwen4Exp")
"""Classes for which vLLM uses the type of the recurrent state in config.json."""
_FLOAT32 = ("NemotronH", "Nemotron_Nano", "KimiLinear", "KimiK3", "Glm5Next")
"""Classes whose state is float32 unless config.json sets a type."""


def has_state(attention: Attention) -> bool:
    """Whether a layer keeps a state, alone or beside attention."""
    return bool(attention.conv_values or attention.recurrent_values)


def state_bytes(request: Request, attention: Attention, ranks: int, wide: bool) -> int:
    """Bytes of one request's state in one layer on one GPU. `wide`: float32, as on CPUs with AVX-512 BF16."""
    size = value_bytes(request)
    conv = attention.conv_values
    if attention.state_groups % ranks:
        # Every rank holds the groups of its own heads: there are as many as ranks.
        conv += (ranks - attention.state_groups) * attention.group_values
    # Speculation keeps values of tokens that may be rejected.
    kernel = _KERNEL if attention.recurrent_values else _SHORT_KERNEL
    conv += conv // (kernel - 1) * _guesses(request)
    recurrent = 4 if wide else _recurrent_bytes(request, attention, size)
    return conv // ranks * size + attention.recurrent_values // ranks * recurrent


def state_blocks(request: Request, attention: Attention) -> int:
    """States of one request: its own, one for each guessed token, and one or two for prefix caching.

    Prefix caching is assumed to be on, its default. Models with states only have none.
    """
    architecture = request.architecture
    layers = architecture.layers if architecture is not None else ()
    if not any(layer.attention.heads for layer in layers):
        return 1 + _guesses(request)
    # Mamba 2, which alone has groups, writes one more at the end of a prompt.
    return 2 + _guesses(request) + (1 if attention.state_groups else 0)


def _recurrent_bytes(request: Request, attention: Attention, size: int) -> int:
    name = request.architecture.name if request.architecture is not None else ""
    if attention.recurrent_bytes and name.startswith(_HEEDED):
        return attention.recurrent_bytes
    return 4 if name.startswith(_FLOAT32) else size


def _guesses(request: Request) -> int:
    return request.draft.num_speculative_tokens if request.draft is not None else 0


@dataclass(frozen=True, slots=True)
class Blocks:
    """Tokens of a block."""

    full: int
    sliding: int


@dataclass(frozen=True, slots=True)
class _Backend:
    default: int
    sizes: tuple[int, ...]
    """Kernel block sizes."""
    multiples: bool = True
    """Any multiple of the only size."""

    def at_most(self, tokens: int) -> int:
        """The largest size up to `tokens`; the smallest if there is none."""
        if self.multiples:
            return max(self.sizes[0], tokens // self.sizes[0] * self.sizes[0])
        return max((size for size in self.sizes if size <= tokens), default=self.sizes[0])


_CPU = _Backend(128, (32,))
_CPU_MLA = _Backend(16, (16,), multiples=False)
_GPU = _Backend(16, (16,))
_FLASHINFER = _Backend(16, (16, 32, 64), multiples=False)
_FLASH_MLA = _Backend(64, (64,), multiples=False)
_SPARSE_MLA = _Backend(64, (64,))
COMPRESSED_BLOCK = 256
"""The only size of DeepSeek V4's kernels; specs.py has the blocks of its windows and compressors."""
_FLASHINFER_MLA = _Backend(32, (32, 64), multiples=False)


def blocks(request: Request, architecture: Architecture, *, amx: bool, wide_states: bool) -> Blocks:
    """For one model on one device. `amx`, `wide_states`: the CPU has AMX tiles, AVX-512 BF16."""
    if is_compressed(architecture):
        return Blocks(COMPRESSED_BLOCK, COMPRESSED_BLOCK)
    layers = {id(layer): layer for layer in architecture.layers}.values()
    latent = any(layer.attention.kind is Kind.LATENT for layer in layers)
    backend = _SPARSE_MLA if is_sparse(architecture) else _backend(request, latent, amx)
    full = backend.default if backend is _CPU_MLA else request.block_size or backend.default
    attending = [one.attention for one in layers if one.attention.kind not in (Kind.STATE, Kind.ENCODER)]
    if attending and len(attending) == len(layers) and is_packed(request.kv_cache_dtype):
        full = _covering(full, request, attending[0])
    states = [
        state_bytes(request, layer.attention, request.tensor_parallel_size, wide_states)
        for layer in layers
        if has_state(layer.attention)
    ]
    if states and attending:
        full = _aligned(full, backend, max(states), _token_bytes(request, attending[0]), latent)
    return Blocks(full, backend.at_most(full))


def is_sparse(architecture: Architecture) -> bool:
    """Whether attention reads only tokens that an index selects (DeepSeek V3.2)."""
    return any(map(index_width, {id(layer): layer for layer in architecture.layers}.values()))


def index_width(layer: Layer) -> int:
    """Width of sparse MLA's index (DeepSeek V3.2); 0: the layer has none."""
    return next((linear.outputs for linear in layer.linears if linear.module.endswith("indexer.wk")), 0)


def index_bytes(width: int) -> int:
    """Bytes of one token's key in the index: 8-bit values, and a 32-bit scale for every 128."""
    return width + width // 128 * 4


def _aligned(full: int, backend: _Backend, state: int, token: int, latent: bool) -> int:
    """A block of attention is at least as large as a state, since both come from one pool."""
    step = max(backend.sizes[0], full, 128 if latent else 0)
    tokens = step * -(-state // (step * token))
    return max(full, -(-tokens // backend.sizes[0]) * backend.sizes[0])


def _covering(full: int, request: Request, attention: Attention) -> int:
    """With unquantized layers, a block of the others holds at least 16 tokens of those."""
    packed, plain = _token_bytes(request, attention), _token_bytes(replace(request, kv_cache_dtype="auto"), attention)
    return max(full, full * -(-16 * plain // (full * packed)))


def _token_bytes(request: Request, attention: Attention) -> int:
    plain = value_bytes(request)
    if attention.kind is Kind.LATENT:
        return latent_bytes(request.kv_cache_dtype, attention.latent_dim + attention.rope_dim, plain)
    heads = max(1, attention.kv_heads // request.tensor_parallel_size)
    return heads * head_bytes(request.kv_cache_dtype, attention.key_dim, attention.value_dim, plain)


def _backend(request: Request, latent: bool, amx: bool) -> _Backend:
    """vLLM's first choice on the device."""
    device = request.device
    if device is not None and device.is_cpu:
        return _CPU if not latent or amx else _CPU_MLA
    major = device.capability[0] if device is not None and device.capability is not None else 0
    if not latent:
        return _FLASHINFER if major == 10 else _GPU
    if major == 10:
        return _FLASHINFER_MLA
    if major == 9 and request.kv_cache_dtype.startswith("fp8"):
        return _FLASH_MLA
    return _GPU
