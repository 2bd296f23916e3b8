"""What vLLM refuses on a device whatever its memory: an old GPU, or one that cannot compute with the checkpoint's
quantization. checks.py checks the spec itself before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from llmservice_vllm.facts import facts
from llmservice_vllm.quantization import DEPRECATED, MINIMUM_CAPABILITY
from llmservice_vllm.versions import known_or_default, words

from llmservice_planner import kv_cache
from llmservice_planner.kv_blocks import (
    COMPRESSED_BLOCK,
    OCTAVE_WIDTH,
    PLAIN_ROWS,
    is_compressed,
    value_bytes,
)
from llmservice_planner.model import quantized
from llmservice_planner.model.architecture import Architecture, Incomplete, Kind, Quantization
from llmservice_planner.plan import Device, Request

Capability = tuple[int, int]

_LEAST_OF_IMAGES: Capability = (7, 5)
"""Of an NVIDIA GPU, for the vLLM project's own images, by its installation guide."""
_MX_BLOCK = 32
"""Values that share one 8-bit scale in the MX formats."""
_COMPRESSED_LEAST: Capability = (7, 5)
"""For compressed-tensors the scheme decides and not the method; all except MXFP4 need this."""


_ANOTHER = "another checkpoint of the model: in 16 bit, or quantized with AWQ, GPTQ, compressed-tensors or fp8."
_OTHER = f"Take {_ANOTHER}"
_AUTO_ROUND = "auto-round"
"""Read by another method's class (quantization/inc/inc.py)."""
_PLUGINS: Mapping[str, str] = {"bitsandbytes": "a plugin, vllm-bnb-plugin", "gguf": "a plugin, vllm-gguf-plugin"}


def device_refusal(request: Request) -> str | None:
    """Why vLLM refuses to start, in a sentence with the device's name and the remedy; None if no reason is known."""
    return next(_reasons(request), None)


def _reasons(request: Request) -> Iterator[str]:
    device = request.device
    if device is None:
        return
    if not request.own_image and (too_old := _below(device, _LEAST_OF_IMAGES)) is not None:
        remedy = "Take a newer GPU, or an image that is built for it."
        yield f"{device.name}: vLLM's own images need compute capability {too_old}. {remedy}"
    yield from (why for why, _ in _of_compressed(request, device))
    stored, computed = request.kv_cache_dtype, request.compute_dtype
    is_other = stored in ("float16", "bfloat16") and computed not in ("auto", stored)
    if is_other and facts(request.vllm_version).refuses_other_float_kv_cache:
        yield (
            f"vLLM {known_or_default(request.vllm_version)} refuses a KV cache in {stored} for a model that it "
            f"computes in {computed}. Set spec.precision.kvCache to auto, or spec.precision.dtype to {stored}."
        )
    if stored.startswith("octave_") and (width := _other_width(request.architecture)):
        yield (
            f"A KV cache in {stored} is for heads that are {OCTAVE_WIDTH} wide, and the model's are "
            f"{width}. Set spec.precision.kvCache to auto or fp8."
        )
    if (name := _class_without_lora(request)) is not None:
        yield (
            f"vLLM {known_or_default(request.vllm_version)} has no LoRA for {name}. Remove spec.lora and "
            "spec.adapters, or serve a model with the adapter merged into its weights."
        )
    if (unread := unreadable_checkpoint(request)) is not None:
        yield unread
    own = _own(request)
    if own is None:
        return
    method = method_of(own)
    if (too_old := _below(device, least_capability(own))) is not None:
        yield (
            f"{device.name}: the checkpoint is quantized with {own.method}, and {method} needs compute capability "
            f"{too_old}. Choose a newer GPU, or a checkpoint in another precision."
        )
    for why in _refused(request, device, method):
        yield f"{device.name}: the checkpoint is quantized with {own.method}, and {why}."


def _class_without_lora(request: Request) -> str | None:
    """The model's class, if adapters are requested and it does not support them (vllm/config/lora.py,
    verify_with_model_config; before 0.33 load_lora_model of the runners, after the weights are loaded)."""
    model, version = request.architecture, known_or_default(request.vllm_version)
    if model is None or request.adapters is None or not request.own_class:
        return None
    return model.name if model.name in words(version, "architecturesWithoutLora") else None


def _other_width(model: Architecture | None) -> int:
    """Width of heads that octave's kernels do not support (v1/attention/backends/rocm_octave_attn.py), or 0."""
    layers = () if model is None else model.distinct_layers
    widths = [layer.attention.key_dim for layer, _ in layers if layer.attention.kind in (Kind.FULL, Kind.SLIDING)]
    return next((width for width in widths if width != OCTAVE_WIDTH), 0)


_NOT_OF_V4 = ("FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120")
"""Attention backends that DeepSeek V4 refuses; it uses its own where others are named (vllm/models/deepseek_v4,
nvidia/model.py, _select_dsv4_attn_cls)."""
_FIELDS: Mapping[str, str] = {
    "attention_backend": "attention.backend",
    "block_size": "batching.blockSize",
    "kv_cache_dtype": "precision.kvCache",
}


def with_accepted_settings(request: Request) -> tuple[Request, tuple[tuple[str, object], ...]]:
    """The request with the settings that its refusals name, and their fields of the spec; unchanged where none names
    one."""
    device, fields = request.device, dict[str, object]()
    if device is None:
        return request, ()
    for _ in _FIELDS:
        fix = next((fix for _, fix in _of_compressed(request, device) if fix), None)
        if fix is None:
            break
        request = replace(request, **fix)
        fields |= {_FIELDS[name]: "auto" if value is None else value for name, value in fix.items()}
    return request, tuple(fields.items())


def _of_compressed(request: Request, device: Device) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What DeepSeek V4's attention does not support (vllm/models/deepseek_v4), each with the request's fields that
    resolve it; empty for other models."""
    model, backend = request.architecture, request.attention_backend
    if model is None or device.is_cpu or not is_compressed(model):
        return
    capability = device.capability
    is_nvidia = not device.is_amd and capability is not None
    if is_nvidia and capability is not None and capability[0] not in (9, 10, 12) and not request.own_image:
        yield (
            f"{device.name}: DeepSeek V4's attention runs on compute capability 9.0, 10.0, 10.3, 12.0 and 12.1; the "
            "GPU has {}.{}. Choose a GPU of the Hopper or Blackwell generation.".format(*capability),
            {},
        )
    if backend in _NOT_OF_V4:
        yield (
            f"vLLM refuses the attention backend {backend} for DeepSeek V4: leave spec.attention.backend out, or set "
            f"it to {PLAIN_ROWS}.",
            {"attention_backend": None},
        )
    if request.block_size not in (None, COMPRESSED_BLOCK):
        yield (
            f"DeepSeek V4's attention takes blocks of {COMPRESSED_BLOCK} tokens only: leave spec.batching.blockSize "
            f"out, or set it to {COMPRESSED_BLOCK}.",
            {"block_size": COMPRESSED_BLOCK},
        )
    stored = request.kv_cache_dtype
    is_plain = backend == PLAIN_ROWS and capability is not None and capability[0] == 10
    if not (stored == "auto" or stored.startswith("fp8") or (is_plain and stored == "bfloat16")):
        yield (
            f"DeepSeek V4's KV cache is in fp8, and vLLM refuses {stored}: leave spec.precision.kvCache out, or set it "
            "to fp8.",
            {"kv_cache_dtype": "fp8"},
        )
    elif is_plain and not _has_whole_rows(request, model):
        yield (
            f"{PLAIN_ROWS} needs blocks of whole rows, and this model's KV cache has none in that type: set "
            "spec.precision.kvCache to fp8, or leave spec.attention.backend out.",
            {"kv_cache_dtype": "fp8"},
        )


def _has_whole_rows(request: Request, model: Architecture) -> bool:
    """Whether a block of plain rows and of the index's keys is a multiple of rows, on the GPUs of each pipeline stage
    (_packed_block_span)."""
    row = max(layer.attention.key_dim for layer, _ in model.distinct_layers)
    size = 1 if request.kv_cache_dtype.startswith("fp8") else value_bytes(request)
    try:
        groups = kv_cache.layout(request).groups
    except Incomplete:
        return True
    stages = zip(*(group.bytes_of_stages for group in groups), strict=True)
    return all(max(held) % (row * size) == 0 for held in stages)


def unreadable_checkpoint(request: Request) -> str | None:
    """Why vLLM cannot read the checkpoint on any device, with the remedy; None if it can."""
    if (unread := _unread_words(request)) is not None and not request.own_image and _is_read(request):
        return f"{unread} Take a checkpoint with compress_ratios in its config.json, as its publisher has it."
    own = _own(request)
    if own is None:
        return None
    if (foreign := _foreign(request, own)) is not None and not request.own_image:
        return f"The checkpoint is quantized with {own.method}, and {foreign}"
    return f"The checkpoint {own.refused}. {_OTHER}" if own.refused and _is_read(request) else None


def unsure(request: Request) -> str | None:
    """What only a user's image may support, with the remedy, or None."""
    if (words := _unread_words(request)) is not None:
        return f"{words} Whether this version or image does is not known; as far as the arithmetic goes:"
    own = _own(request)
    if own is None or not request.own_image or (foreign := _foreign(request, own)) is None:
        return None
    return (
        f"The checkpoint is quantized with {own.method}, and {foreign} Whether the image of spec.runtime.image has it "
        "is not known; as far as the arithmetic goes:"
    )


def _unread_words(request: Request) -> str | None:
    """That vLLM's class requires other keys than the file has (vllm/models/deepseek_v4/attention.py), or None."""
    model = request.architecture
    if model is None or not model.ratios_by_word or facts(request.vllm_version).reads_layer_types:
        return None
    return (
        "The checkpoint's config.json has layer_types, as transformers saves it, and no compress_ratios, which vLLM's "
        "DeepSeek V4 asks for before 0.33."
    )


def _own(request: Request) -> Quantization | None:
    """The checkpoint's own quantization, unless another one is stated."""
    model = request.architecture
    return None if model is None or request.quantization is not None else model.quantization


def _foreign(request: Request, own: Quantization) -> str | None:
    """Why this vLLM does not read checkpoints of that method, with the remedy (vllm/config/model.py,
    _verify_quantization); None if it does, or if that version was not examined."""
    name, version = own.method, known_or_default(request.vllm_version)
    if name in DEPRECATED:
        if request.allow_deprecated_quantization:
            return None
        return f"vLLM {version} takes it only with --allow-deprecated-quantization in spec.runtime.extraArgs."
    if name == _AUTO_ROUND or name in words(version, "quantizations"):
        return None
    if (plugin := _PLUGINS.get(name)) is not None:
        return f"vLLM {version} has it only by {plugin}. Take an image with it (spec.runtime.image), or {_ANOTHER}"
    return f"vLLM {version} has no {name}. {_OTHER}"


def _is_read(request: Request) -> bool:
    """Whether the refusals of that version were read from its sources."""
    return facts(request.vllm_version).are_refusals_read


def method_of(own: Quantization) -> str:
    """vLLM's method for a checkpoint's quantization: ModelOpt's all have one name in the checkpoint."""
    if own.method.startswith("modelopt"):
        if own.bits == 4:
            return "modelopt_mixed" if "mixed" in own.method else "modelopt_fp4"
        return "modelopt_mxfp8" if own.group_size == _MX_BLOCK else "modelopt"
    known = quantized.method(own.method)
    return own.method if known is None else known.method


def least_capability(own: Quantization) -> Capability:
    """The compute capability that vLLM requires for it (get_min_capability of the method, or of the scheme)."""
    method = method_of(own)
    if method == "compressed-tensors":
        is_mxfp4 = (own.bits, own.group_size, own.scale_bits) == (4, _MX_BLOCK, 8)
        return (8, 0) if is_mxfp4 else _COMPRESSED_LEAST
    return divmod(MINIMUM_CAPABILITY.get(method, 0), 10)


def _below(device: Device, least: Capability) -> str | None:
    """The required capability and the device's, if that is lower."""
    if device.is_cpu or device.is_amd or device.capability is None or device.capability >= least:
        return None
    return "{}.{}; the GPU has {}.{}".format(*least, *device.capability)


def _refused(request: Request, device: Device, method: str) -> Iterator[str]:
    """Refusals by the compatibility matrix, except capabilities, which are checked above."""
    from llmservice_api.matrix import DIMENSIONS, ROWS  # imports some of the spec's models

    values: Mapping[str, str] = {
        "accelerator": device.accelerator,
        "method": method,
        "dtype": request.compute_dtype,
    }
    known = {name: value for name, value in values.items() if value in DIMENSIONS[name].values}
    for row in ROWS:
        if "method" in row.when and all(known.get(name) in some for name, some in row.when.items()):
            yield f"{row.why} ({DIMENSIONS['dtype'].field})" if "dtype" in row.when else row.why
