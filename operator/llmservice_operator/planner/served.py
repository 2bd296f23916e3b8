"""What vLLM does not serve on a device whatever its memory: too old a GPU, or one that cannot compute with a
checkpoint as it is quantized. What the spec itself asks for is judged before, by compatibility.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llmservice_runtime.preflight.capabilities import MINIMUM_CAPABILITY

from llmservice_operator.planner.model import quantized
from llmservice_operator.planner.model.architecture import Quantization
from llmservice_operator.planner.plan import Device, Request

Capability = tuple[int, int]

_LEAST_OF_IMAGES: Capability = (7, 5)
"""Of an NVIDIA GPU, for the vLLM project's own images, by its installation guide."""
_MX_BLOCK = 32
"""Values that share one scale of 8 bit in the MX formats."""
_COMPRESSED_LEAST: Capability = (7, 5)
"""Of compressed-tensors the scheme decides and not the method; all of them but MXFP4 need this."""


def unserved(request: Request) -> str | None:
    """Why vLLM refuses to start, in a sentence with the device's name and what to do; None where nothing is known
    that speaks against it."""
    return next(_reasons(request), None)


def _reasons(request: Request) -> Iterator[str]:
    device = request.device
    if device is None:
        return
    if not request.own_image and (too_old := _below(device, _LEAST_OF_IMAGES)) is not None:
        remedy = "Take a newer GPU, or an image that is built for it."
        yield f"{device.name}: vLLM's own images need compute capability {too_old}. {remedy}"
    own = request.architecture.quantization if request.architecture is not None else None
    if own is None or request.quantization is not None:
        return
    method = method_of(own)
    if (too_old := _below(device, least_capability(own))) is not None:
        yield (
            f"{device.name}: the checkpoint is quantized with {own.method}, and {method} needs compute capability "
            f"{too_old}. Choose a newer GPU, or a checkpoint in another precision."
        )
    for why in _refused(request, device, method):
        yield f"{device.name}: the checkpoint is quantized with {own.method}, and {why}."


def method_of(own: Quantization) -> str:
    """vLLM's method for a checkpoint's quantization: ModelOpt's all have one name in the checkpoint."""
    if own.method.startswith("modelopt"):
        if own.bits == 4:
            return "modelopt_mixed" if "mixed" in own.method else "modelopt_fp4"
        return "modelopt_mxfp8" if own.group_size == _MX_BLOCK else "modelopt"
    known = quantized.method(own.method)
    return own.method if known is None else known.method


def least_capability(own: Quantization) -> Capability:
    """What vLLM asks of an NVIDIA GPU for it (get_min_capability of the method, or of the scheme)."""
    method = method_of(own)
    if method == "compressed-tensors":
        is_mxfp4 = (own.bits, own.group_size, own.scale_bits) == (4, _MX_BLOCK, 8)
        return (8, 0) if is_mxfp4 else _COMPRESSED_LEAST
    return divmod(MINIMUM_CAPABILITY.get(method, 0), 10)


def _below(device: Device, least: Capability) -> str | None:
    """The least capability and the device's, where that is lower."""
    if device.is_cpu or device.is_amd or device.capability is None or device.capability >= least:
        return None
    return "{}.{}; the GPU has {}.{}".format(*least, *device.capability)


def _refused(request: Request, device: Device, method: str) -> Iterator[str]:
    """By the compatibility matrix, of which capabilities are the rows above."""
    from llmservice_operator.api.matrix import DIMENSIONS, ROWS  # and with them some of the spec's models

    values: Mapping[str, str] = {
        "accelerator": device.accelerator,
        "method": method,
        "dtype": request.compute_dtype,
    }
    known = {name: value for name, value in values.items() if value in DIMENSIONS[name].values}
    for row in ROWS:
        if "method" in row.when and all(known.get(name) in some for name, some in row.when.items()):
            yield f"{row.why} ({DIMENSIONS['dtype'].field})" if "dtype" in row.when else row.why
