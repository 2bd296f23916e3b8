"""Attention backends: their devices, KV cache types, block sizes, compute types and models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from llmservice_api.matrix.dimensions import CAPABILITIES, DIMENSIONS, ON, Check, Incompatibility, others, when

_ALL = CAPABILITIES
_FROM_8 = CAPABILITIES[CAPABILITIES.index("8.0") :]
_10 = ("10.0", "10.3")
_12 = ("12.0", "12.1")
_16 = ("auto", "float16", "bfloat16")
_FP8 = (*_16, "fp8", "fp8_e4m3")
_FP8_ANY = (*_FP8, "fp8_e5m2")
_PER_HEAD = ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head")
_BY_16 = (16, 32, 64, 128, 256)
_BY_32 = (32, 64, 128, 256)
_BY_64 = (64, 128, 256)
_BY_1 = (1, 8, *_BY_16)
_HALF = ("float16", "bfloat16")
_FLOAT = ("float16", "bfloat16", "float32")
_BF16 = ("bfloat16",)
_MSA = ("bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True, slots=True)
class Backend:
    """An attention backend of vLLM, as its class describes it."""

    name: str
    module: str
    """Below vllm/; `:Class` where the backend's class is derived from another one."""
    accelerators: tuple[str, ...]
    kv_types: tuple[str, ...]
    block_sizes: tuple[int, ...]
    dtypes: tuple[str, ...] = _HALF
    capabilities: tuple[str, ...] = _ALL
    mla: bool = False
    alibi: bool = True
    offloads: bool = True
    """Whether it works with a KV connector, which offloading is."""
    describes_itself: bool = True
    """False for combinations of two backends, which query the GPU at run time."""


_GPUS, _NVIDIA, _AMD = ("nvidia", "amd"), ("nvidia",), ("amd",)
_V1 = "v1/attention/backends"


_mla = partial(Backend, mla=True, alibi=False)
_ATTENTION = (
    Backend("FLASH_ATTN", f"{_V1}/flash_attn", _GPUS, _FP8, _BY_16, capabilities=_FROM_8),
    Backend("FLASH_ATTN_DIFFKV", f"{_V1}/flash_attn_diffkv", _GPUS, _FP8, _BY_16, capabilities=_FROM_8),
    Backend(
        "FLASHINFER", f"{_V1}/flashinfer", _NVIDIA, (*_FP8_ANY, "nvfp4", "nvfp4_4over6"), _BY_16, capabilities=_FROM_8
    ),
    Backend("TRITON_ATTN", f"{_V1}/triton_attn", _GPUS, (*_FP8_ANY, *_PER_HEAD), _BY_16, _FLOAT),
    Backend(
        "TRITON_ATTN_DIFFKV", f"{_V1}/triton_attn_diffkv", _GPUS, ("auto", "bfloat16", "fp8", "fp8_e4m3"), _BY_16,
        _FLOAT,
    ),
    Backend(
        "TRITON_FLASH_ATTN", f"{_V1}/triton_flash_attn", _NVIDIA, _FP8, _BY_16, capabilities=("9.0",),
        describes_itself=False,
    ),
    Backend(
        "TRITON_FLASHINFER", f"{_V1}/triton_flashinfer", _NVIDIA, _FP8_ANY, _BY_64, capabilities=_10,
        describes_itself=False,
    ),
    Backend("FLEX_ATTENTION", f"{_V1}/flex_attention", _GPUS, _16, _BY_16, _FLOAT, alibi=False),
    Backend(
        "HPC_ATTN", f"{_V1}/hpc_attn", _NVIDIA, ("auto", "bfloat16", "fp8_e4m3"), _BY_64, capabilities=("9.0",),
        alibi=False,
    ),
    Backend(
        "B12X", f"{_V1}/b12x", _NVIDIA, ("auto", "bfloat16", "fp8", "fp8_e4m3"), (64, 128), _BF16, _12, alibi=False
    ),
    Backend(
        "TURBOQUANT",
        f"{_V1}/turboquant_attn",
        _GPUS,
        ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
        _BY_16,
    ),
    Backend("ULTRAQUANT", f"{_V1}/ultraquant_attn", _AMD, ("ultraquant_4bit",), _BY_16, _BF16),
    Backend(
        "ROCM_OCTAVE", f"{_V1}/rocm_octave_attn", _AMD, ("octave_k3v4", "octave_k3v3", "octave_k3v3_compact"), _BY_16,
    ),
    Backend("ROCM_ATTN", f"{_V1}/rocm_attn", _AMD, _FP8_ANY, _BY_16, _FLOAT, offloads=False),
    Backend("ROCM_SEGMENTED_ATTN", f"{_V1}/rocm_segmented_attn", _AMD, _FP8, _BY_16, offloads=False),
    Backend("ROCM_AITER_FA", f"{_V1}/rocm_aiter_fa", _AMD, _FP8_ANY, _BY_16),
    Backend("ROCM_AITER_UNIFIED_ATTN", f"{_V1}/rocm_aiter_unified_attn", _AMD, _FP8_ANY, _BY_16),
    Backend("MINIMAX_M3_SPARSE", "models/minimax_m3/common/sparse_attention", _GPUS, _MSA, (128, 256), alibi=False),
)  # fmt: skip
_DSV4 = ("auto", "fp8", "fp8_ds_mla")
_DSV4_FLASHINFER = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla")
_9_10 = ("9.0", *_10)
_LATENT = (
    _mla("FLASH_ATTN_MLA", f"{_V1}/mla/flashattn_mla", _NVIDIA, _16, _BY_16, capabilities=("9.0",)),
    _mla("FLASH_ATTN_MLA_SPARSE", f"{_V1}/mla/flashattn_mla_sparse", _NVIDIA, _16, _BY_64, capabilities=("9.0",)),
    _mla("FLASHINFER_MLA", f"{_V1}/mla/flashinfer_mla", _NVIDIA, _FP8, _BY_32, capabilities=_10),
    _mla("FLASHINFER_MLA_SPARSE", f"{_V1}/mla/flashinfer_mla_sparse", _NVIDIA, _FP8, _BY_32, capabilities=_10),
    _mla(
        "FLASHINFER_MLA_SPARSE_SM90", f"{_V1}/mla/flashinfer_mla_sparse_sm90", _NVIDIA,
        ("auto", "bfloat16", "fp8", "fp8_e4m3"), _BY_64, _BF16, ("9.0",),
    ),
    _mla(
        "FLASHINFER_MLA_SPARSE_SM120", f"{_V1}/mla/flashinfer_mla_sparse", _NVIDIA,
        ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"), _BY_64, _BF16, _12,
    ),
    _mla(
        "FLASHINFER_MLA_SPARSE_DSV4", "models/deepseek_v4/nvidia/flashinfer_sparse", _NVIDIA, _DSV4_FLASHINFER, (256,),
        _BF16, (*_10, *_12),
    ),
    _mla(
        "FLASHINFER_MLA_SPARSE_DSV41", "models/deepseek_v41/nvidia/flashinfer_sparse", _NVIDIA, _DSV4_FLASHINFER,
        (128, 256), _BF16, (*_10, *_12),
    ),
    _mla("FLASHMLA", f"{_V1}/mla/flashmla", _NVIDIA, _FP8, _BY_64, capabilities=_9_10),
    _mla(
        "FLASHMLA_SPARSE", f"{_V1}/mla/flashmla_sparse", _NVIDIA,
        ("auto", "bfloat16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"), _BY_64, _BF16, _9_10,
    ),
    _mla("FLASHMLA_SPARSE_DSV4", "models/deepseek_v4/sparse_mla", _NVIDIA, _DSV4, (256,), _BF16, _9_10),
    _mla("ROCM_FLASHMLA_SPARSE_DSV4", "models/deepseek_v4/amd/rocm", _AMD, _DSV4, (256,), _BF16),
    _mla("FLASHMLA_SPARSE_DSV41", "models/deepseek_v41/sparse_mla", _NVIDIA, _DSV4, (128, 256), _BF16, _9_10),
    _mla(
        "FLASHMLA_MEGA_ATTN_DSV41", "models/deepseek_v41/sparse_mla", _NVIDIA, (*_DSV4, "nvfp4_ds_mla"), (128, 256),
        _BF16, _10,
    ),
    _mla("CUTLASS_MLA", f"{_V1}/mla/cutlass_mla", _NVIDIA, _FP8, (128, 256), capabilities=_10),
    _mla("TOKENSPEED_MLA", f"{_V1}/mla/tokenspeed_mla", _NVIDIA, ("fp8", "fp8_e4m3"), _BY_32, capabilities=_10),
    _mla("TRITON_MLA", f"{_V1}/mla/triton_mla", _GPUS, _FP8, _BY_16),
    _mla("ROCM_AITER_MLA", f"{_V1}/mla/rocm_aiter_mla", _AMD, _FP8_ANY, _BY_1),
    _mla("ROCM_AITER_TRITON_MLA", f"{_V1}/mla/aiter_triton_mla", _AMD, _FP8_ANY, _BY_1),
    _mla(
        "FLASH_ATTN_MLA_SPARSE_FA4", f"{_V1}/mla/flashattn_mla_sparse", _NVIDIA, ("auto", "bfloat16"), _BY_64, _BF16,
        _10,
    ),
    _mla("ROCM_AITER_MLA_SPARSE", f"{_V1}/mla/rocm_aiter_mla_sparse", _AMD, _FP8, _BY_1),
)  # fmt: skip
BACKENDS = (*_ATTENTION, *_LATENT)
"""Backends with known properties. The others only choose a kernel inside one model and are left to vLLM."""

# FLASHINFER's class queries the GPU; vllm/v1/attention/backends/flashinfer.py: supports_kv_cache_dtype.
_FP8_KV = ("fp8", "fp8_e4m3", "fp8_e5m2")
_READ_ON = {"nvfp4_4over6": _10} | dict.fromkeys(_FP8_KV, _FROM_8)
"""Capabilities on which the listed types can be read: Triton needs 8.9 for fp8, FlashInfer 8.0."""
_BELOW_8_9 = CAPABILITIES[: CAPABILITIES.index("8.9")]

_NAMED = DIMENSIONS["backend"].values[1:]
_AUTO = {"backend": "auto"}


def rows() -> Iterator[Incompatibility]:
    """Every incompatible combination of attention and KV cache."""
    yield Incompatibility(
        when(accelerator="cpu", backend=_NAMED),
        "backend",
        "CPUs have attention backends of their own, and vLLM ignores the choice",
        "Remove spec.attention.backend",
        "vllm/platforms/cpu.py: get_attn_backend_cls",
        _AUTO,
        Check.CALL,
    )
    for backend in BACKENDS:
        yield from _rows(backend)
    yield Incompatibility(
        when(
            accelerator="nvidia",
            backend=("FLASH_ATTN", "FLASH_ATTN_DIFFKV"),
            kvCache=("fp8", "fp8_e4m3"),
            capability=[c for c in _FROM_8 if c not in _9_10],
        ),
        "kvCache",
        "FlashAttention reads an fp8 KV cache in version 3 (compute capability 9.0) and 4 (10.x) only",
        "Set spec.precision.kvCache to auto, or spec.attention.backend to FLASHINFER or TRITON_ATTN",
        "vllm/v1/attention/backends/fa_utils.py: flash_attn_supports_kv_cache_dtype",
        {"kvCache": "auto"},
    )
    for name, module in (("TRITON_ATTN", f"{_V1}/triton_attn"), ("TRITON_MLA", f"{_V1}/mla/triton_mla")):
        yield Incompatibility(
            when(accelerator="nvidia", backend=name, kvCache=_FP8_KV, capability=_BELOW_8_9),
            "kvCache",
            f"{name} reads an fp8 KV cache from compute capability 8.9 on",
            "Set spec.precision.kvCache to auto, or spec.attention.backend to auto",
            f"vllm/{module}.py: __init__",
            {"kvCache": "auto"},
        )
    yield Incompatibility(
        when(accelerator="nvidia", mla="yes", kvCache=_FP8_KV, capability=_BELOW_8_9),
        "kvCache",
        "an fp8 KV cache of MLA models needs compute capability 8.9",
        "Set spec.precision.kvCache to auto",
        f"vllm/{_V1}/mla/triton_mla.py: __init__",
        {"kvCache": "auto"},
    )
    yield from _no_backend()
    yield Incompatibility(
        when(mla="yes", kvCache=("nvfp4", "nvfp4_4over6")),
        "kvCache",
        "nvfp4 does not fit the latent KV cache of MLA models",
        "Set spec.precision.kvCache to auto, fp8 or nvfp4_ds_mla",
        "vllm/config/vllm.py: validate_nvfp4_kv_cache_with_mla",
        {"kvCache": "auto"},
        Check.ENGINE,
    )


def _rows(backend: Backend) -> Iterator[Incompatibility]:
    source = f"vllm/{backend.module}.py"
    for accelerator in others("accelerator", "cpu", *backend.accelerators):
        kind = "NVIDIA" if accelerator == "nvidia" else "AMD"
        yield _row(backend, f"does not run on {kind} GPUs", source, Check.NONE, accelerator=(accelerator,))
    if "nvidia" in backend.accelerators and backend.capabilities != _ALL:
        yield _row(
            backend,
            f"runs on compute capability {_listed(backend.capabilities)} only",
            f"{source}: supports_compute_capability",
            accelerator=("nvidia",),
            capability=others("capability", *backend.capabilities),
        )
    yield _row(
        backend,
        f"reads a KV cache in {', '.join(backend.kv_types)} only",
        f"{source}: supported_kv_cache_dtypes",
        kvCache=others("kvCache", *backend.kv_types),
    )
    sizes = [str(size) for size in backend.block_sizes]
    if refused := others("blockSize", *sizes):
        what = f"takes blocks of {', '.join(sizes)} tokens only"
        yield _row(backend, what, f"{source}: get_supported_kernel_block_sizes", blockSize=refused)
    if refused := others("dtype", *backend.dtypes):
        what = f"computes in {' and '.join(backend.dtypes)} only"
        yield _row(backend, what, f"{source}: supported_dtypes", dtype=refused)
    of = "models with multi-head latent attention (MLA)" if backend.mla else "models without latent attention (MLA)"
    yield _row(backend, f"is for {of} only", f"{source}: is_mla", mla=("no" if backend.mla else "yes",))
    if not backend.alibi and not backend.mla:
        yield _row(backend, "has no ALiBi", source, Check.NONE, positions=("alibi",))
    if not backend.offloads:
        what = "does not offload its KV cache"
        yield _row(backend, what, f"{source}: supports_kv_connector", kvOffloading=(ON,))


def _row(
    backend: Backend, what: str, source: str, check: Check = Check.CALL, /, **condition: tuple[str, ...]
) -> Incompatibility:
    return Incompatibility(
        when(backend=backend.name, **condition),
        "backend",
        f"the attention backend {backend.name} {what}",
        _remedy(next(reversed(condition))),
        source,
        _AUTO,
        check if backend.describes_itself else Check.NONE,
    )


def _remedy(dimension: str) -> str:
    if dimension in ("accelerator", "capability", "mla", "positions"):
        return "Set spec.attention.backend to auto or to one for this GPU and model"
    return f"Set spec.attention.backend to auto, or change {DIMENSIONS[dimension].field}"


def _no_backend() -> Iterator[Incompatibility]:
    """KV cache types that no backend reads on a GPU."""
    for kv_type in DIMENSIONS["kvCache"].values:
        able = [backend for backend in BACKENDS if kv_type in backend.kv_types]
        some = {capability for b in able if "nvidia" in b.accelerators for capability in b.capabilities}
        some &= set(_READ_ON.get(kv_type, _ALL))
        refused = others("capability", *some)
        fix = {"kvCache": "auto"}
        remedy = f"Set spec.precision.kvCache to auto{'' if kv_type in _FP8_KV else ' or fp8'}"
        source = "vllm/platforms: get_valid_backends"
        if refused and some:
            yield Incompatibility(
                when(accelerator="nvidia", kvCache=kv_type, capability=refused),
                "kvCache",
                f"no attention backend reads a KV cache in {kv_type} on this GPU; compute capability "
                f"{_listed(sorted(some, key=CAPABILITIES.index))} is needed",
                remedy,
                source,
                fix,
            )
        for accelerator in ("nvidia", "amd"):
            if not any(accelerator in backend.accelerators for backend in able):
                kind = "NVIDIA" if accelerator == "nvidia" else "AMD"
                yield Incompatibility(
                    when(accelerator=accelerator, kvCache=kv_type),
                    "kvCache",
                    f"no attention backend reads a KV cache in {kv_type} on {kind} GPUs",
                    remedy,
                    source,
                    fix,
                )


def _listed(capabilities: Sequence[str]) -> str:
    if capabilities and tuple(capabilities) == _ALL[_ALL.index(capabilities[0]) :]:
        return f"{capabilities[0]} or higher"
    return ", ".join(capabilities)
