"""Bytes of the KV cache per token, by its type (vLLM: the backends' customize_spec)."""

from __future__ import annotations

from llmservice_api.dtypes import KVCache

from llmservice_planner.model.architecture import Architecture, Kind
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
