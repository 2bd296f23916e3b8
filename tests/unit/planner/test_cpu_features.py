"""A CPU feature that is missing is named by the preflight, before vLLM starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime.contract import Failure, FailureReason, Phase
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight import cpu_features, preflight
from llmservice_runtime.supervisor.vllm_process import read_flags

OLD = frozenset({"sse4_2", "avx", "avx2", "fma"})
AVX512 = OLD | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
AMX = OLD | {"amx_tile"}
INT4 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 4}}}}
INT8 = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {"weights": {"type": "int", "num_bits": 8}, "input_activations": {"type": "int", "num_bits": 8}}
    },
}


def messages(features: frozenset[str] | None, kv_cache: str, quantized: Any = None) -> list[str]:
    method, bits = cpu_features.declared({"quantization_config": quantized})
    return [failure.message for failure in cpu_features.check(features, kv_cache, method, bits)]


def gptq(**bits: int) -> dict[str, Any]:
    return {"quant_method": "gptq", **bits}


REQUIREMENTS: dict[str, tuple[frozenset[str] | None, str, Any, list[str]]] = {
    "fp8 cache on AVX2": (OLD, "fp8", None, ["AVX-512 or AMX"]),
    "another fp8 cache on AVX2": (OLD, "fp8_e5m2", None, ["AVX-512 or AMX"]),
    "fp8 cache on AVX-512": (AVX512, "fp8", None, []),
    "fp8 cache on AMX": (AMX, "fp8", None, []),
    "plain on AVX2": (OLD, "auto", None, []),
    "AWQ on AVX2": (OLD, "auto", {"quant_method": "awq"}, ["AVX-512"]),
    "GPTQ of four bits on AVX2": (OLD, "auto", gptq(bits=4), ["AVX-512"]),
    "GPTQ of eight bits": (OLD, "auto", gptq(bits=8), []),
    "GPTQ without bits": (OLD, "auto", gptq(), []),
    "int4 on AVX2": (OLD, "auto", INT4, ["AVX-512"]),
    "int8 on AVX2": (OLD, "auto", INT8, []),
    "int4 on AVX-512": (AVX512, "auto", INT4, []),
    "both on AVX2": (OLD, "fp8", INT4, ["AVX-512 or AMX", "AVX-512"]),
    "an unknown machine": (None, "fp8", INT4, []),
    "nonsense": (OLD, "auto", {"quant_method": 5, "bits": "x", "config_groups": [1]}, []),
}


@pytest.mark.parametrize(("features", "kv_cache", "quantized", "named"), REQUIREMENTS.values(), ids=REQUIREMENTS)
def test_requirements(features: frozenset[str] | None, kv_cache: str, quantized: Any, named: list[str]) -> None:
    found_messages = messages(features, kv_cache, quantized)
    assert len(found_messages) == len(named)
    for message, words in zip(found_messages, named, strict=True):
        assert f"needs a CPU with {words};" in message


X86 = "processor : 0\nflags\t\t: fpu avx2 avx512f\n\nprocessor : 1\n"


@pytest.mark.parametrize(
    ("text", "features"),
    [(X86, {"fpu", "avx2", "avx512f"}), ("processor : 0\nFeatures\t: fp asimd\n", None), ("", None), (None, None)],
    ids=["x86", "arm", "empty", "no file"],
)
def test_features_in_proc(tmp_path: Path, text: str | None, features: set[str] | None) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert cpu_features.read_features(tmp_path / "cpuinfo") == features


@pytest.mark.parametrize(("accelerator", "refused"), [("cpu", True), ("nvidia", False)])
def test_the_preflight_names_it_before_vllm_starts(
    monkeypatch: pytest.MonkeyPatch, accelerator: str, refused: bool
) -> None:
    monkeypatch.setattr(preflight, "vllm_version", lambda: "0.32.0")
    monkeypatch.setattr(cpu_features, "read_features", lambda: OLD)
    monkeypatch.setattr("llmservice_runtime.preflight.accelerators.list_devices", list)
    options = ServeOptions(accelerator=accelerator)
    found = list(preflight.check(options, read_flags(("--model", "m", "--kv-cache-dtype=fp8"))))
    missing = [failure for failure in found if failure.reason is FailureReason.CPU_FEATURE_MISSING]
    assert bool(missing) is refused
    if refused:
        assert missing[0].phase is Phase.PREFLIGHT
        assert "spec.precision.kvCache: auto" in missing[0].remedy
        assert "cpu-cpuid.AVX512F" in missing[0].remedy
        assert Failure.from_json(missing[0].to_json()) == missing[0]
