"""Rows of the matrix that only a GPU's platform applies, against the lists and functions that it applies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from llmservice_api.matrix import DIMENSIONS, ROWS, Check, Incompatibility
from llmservice_api.matrix.dimensions import CAPABILITIES
from llmservice_api.matrix.methods import capability_of
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.failures.rules import RULES
from llmservice_vllm.quantization import CPU_KV_TYPES, DEPRECATED, NO_CPU_KERNEL
from llmservice_vllm.versions import default_version, words

from tests.unit.api.test_vllm_words import assigned
from tests.unit.api.vllm_backends import Described, backend_class, described

# vLLM and torch warn while they are imported; that is theirs.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


INSTALLED = words(default_version(), "attentionBackends")
"""Backends that only later versions have cannot be asked."""


def rows(*dimensions: str) -> list[Incompatibility]:
    """The rows of exactly these dimensions that the installed vLLM's lists can be asked about."""
    some = [row for row in ROWS if row.check is Check.CALL and set(row.when) == set(dimensions)]
    some = [row for row in some if not INSTALLED.isdisjoint(row.when.get("backend", INSTALLED))]
    assert some
    return some


def taken(row: Incompatibility, dimension: str) -> set[str]:
    return set(DIMENSIONS[dimension].values) - row.when[dimension]


TAKEN: dict[str, Callable[[Described], set[str]]] = {
    "kvCache": lambda seen: set(seen.kv_types),
    "capability": lambda seen: {capability for capability in CAPABILITIES if seen.runs_on(capability)},
    "blockSize": lambda seen: {size for size in DIMENSIONS["blockSize"].values if seen.takes_block(int(size))},
    "dtype": lambda seen: set(seen.dtypes),
    "mla": lambda seen: {"yes" if seen.is_mla else "no"},
}
"""What a backend's class says that it takes, by dimension."""


@pytest.mark.parametrize("dimension", TAKEN)
def test_what_a_backend_takes(dimension: str) -> None:
    of_nvidia = ("accelerator",) if dimension == "capability" else ()
    for row in rows("backend", dimension, *of_nvidia):
        (name,) = row.when["backend"]
        assert taken(row, dimension) == TAKEN[dimension](described(name)), row.name


def test_backends_without_offloading() -> None:
    for row in rows("backend", "kvOffloading"):
        (name,) = row.when["backend"]
        assert not backend_class(name).supports_kv_connector(), row.name


def compute_types(method: str) -> set[str]:
    from vllm.model_executor.layers.quantization import get_quantization_config

    # Some classes answer, of others an instance.
    made = object.__new__(get_quantization_config(method))
    return {str(dtype).removeprefix("torch.") for dtype in made.get_supported_act_dtypes()}


def test_compute_types_of_methods() -> None:
    for row in rows("method", "dtype"):
        for method in row.when["method"]:
            assert not compute_types(method) & row.when["dtype"], method


def test_methods_that_take_float32() -> None:
    (row,) = (row for row in ROWS if set(row.when) == {"method", "dtype"} and "float32" in row.when["dtype"])
    assert taken(row, "method") == {m for m in DIMENSIONS["method"].values if "float32" in compute_types(m)}


def test_capabilities_of_methods() -> None:
    from vllm.model_executor.layers.quantization import get_quantization_config

    for row in rows("accelerator", "method", "capability"):
        for method in row.when["method"]:
            least = get_quantization_config(method).get_min_capability()
            assert f"{least // 10}.{least % 10}" == capability_of(method)
            assert all(int(capability.replace(".", "")) < least for capability in row.when["capability"])
            assert all(int(capability.replace(".", "")) >= least for capability in taken(row, "capability"))


def test_capabilities_of_compute_types(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = rows("accelerator", "dtype", "capability")
    # The module of NVIDIA's platform loads its kernels, which this wheel does not have; the check needs none.
    monkeypatch.setitem(sys.modules, "vllm._C_stable_libtorch", ModuleType("vllm._C_stable_libtorch"))
    import torch
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    for capability in CAPABILITIES:
        seen = DeviceCapability(*map(int, capability.split(".")))

        class Platform(CudaPlatformBase):  # type: ignore[misc]
            @classmethod
            def get_device_capability(cls, device_id: int = 0) -> Any:
                return seen  # noqa: B023

            @classmethod
            def get_device_name(cls, device_id: int = 0) -> str:
                return "a GPU"

            @classmethod
            def has_device_capability(cls, capability: Any, device_id: int = 0) -> bool:
                return bool(seen.to_int() >= capability)  # noqa: B023

        if capability in row.when["capability"]:
            with pytest.raises(ValueError):
                Platform.check_if_supports_dtype(torch.bfloat16)
        else:
            Platform.check_if_supports_dtype(torch.bfloat16)


def test_methods_on_amd() -> None:
    (row,) = (row for row in ROWS if set(row.when) == {"accelerator", "method"} and "amd" in row.when["accelerator"])
    assert taken(row, "method") == assigned("platforms/rocm.py", "supported_quantization") - DEPRECATED


def test_methods_without_a_kernel_on_cpus() -> None:
    from vllm.model_executor.kernels import linear
    from vllm.platforms.interface import PlatformEnum

    for layers in NO_CPU_KERNEL:
        assert PlatformEnum.CPU not in getattr(linear, f"_POSSIBLE_{layers}_KERNELS")
    assert PlatformEnum.CPU in linear._POSSIBLE_FP8_KERNELS


def test_kv_types_on_cpus() -> None:
    assert set(described("CPU_ATTN").kv_types) <= set(CPU_KV_TYPES)


def test_what_vllm_needs_of_a_cpu_beyond_avx2() -> None:
    """Here with this machine's features; project/test_without_avx512.py runs it without AVX-512."""
    import torch
    from llmservice_runtime.preflight.cpu_features import requirements
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    features = frozenset(["avx512f"] if torch.cpu._is_avx512_supported() else [])
    (cache,) = requirements("fp8", None, None)
    if cache.is_met_by(features):
        _get_attn_isa(torch.float32, 32, 64, "fp8")
    else:
        with pytest.raises(NotImplementedError) as refused:
            _get_attn_isa(torch.float32, 32, 64, "fp8")
        reasons = [rule.reason for rule in RULES if rule.matches(str(refused.value))]
        assert reasons[:1] == [R.CPU_FEATURE_MISSING]
    (packed,) = requirements("auto", "awq", 4)
    assert packed.is_met_by(features) == hasattr(torch.ops._C, "cpu_gemm_wna16")


def test_backends_on_cpus() -> None:
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    (row,) = rows("accelerator", "backend")
    plain: Any = SimpleNamespace(use_sparse=False, use_mla=False)
    for name in row.when["backend"] & INSTALLED:
        chosen = CpuPlatform.get_attn_backend_cls(AttentionBackendEnum[name], plain)
        assert chosen == AttentionBackendEnum.CPU_ATTN.get_path()


def test_every_row_that_lists_can_answer_is_asked() -> None:
    asked = [
        *({"backend", other} for other in (*TAKEN, "kvOffloading")),
        {"backend", "accelerator", "capability"},
        {"method", "dtype"},
        {"accelerator", "method", "capability"},
        {"accelerator", "dtype", "capability"},
        *({"accelerator", other} for other in ("method", "kvCache", "backend")),
    ]
    assert [row.name for row in ROWS if row.check is Check.CALL and set(row.when) not in asked] == []
