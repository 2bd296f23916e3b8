"""CPU features beyond AVX2 that vLLM's CPU build needs; checked by the operator and by the preflight.

Source: `_get_attn_isa` of vLLM's v1/attention/backends/cpu_attn.py, and the operators that `_C_AVX2`, the library for
processors without AVX-512, does not register. Where neither a node's labels nor /proc/cpuinfo list the features,
nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmservice_vllm.quantization import AWQ, PACKED

from llmservice_runtime.contract import Failure, FailureReason

CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Requirement:
    """A setting of a service that needs one of several CPU features."""

    what: str
    """The field and its value, for messages."""
    any_of: tuple[str, ...]
    """As /proc/cpuinfo names them."""
    words: str
    instead: str
    """The setting that avoids the requirement."""
    is_x86_only: bool = True
    """True: only x86 supports it; False: other architectures have kernels of their own."""

    @property
    def remedy(self) -> str:
        """What to do."""
        return (
            f"{self.instead}, or place the pods on nodes with {self.words} with spec.podTemplate.spec.nodeSelector "
            f'(feature.node.kubernetes.io/cpu-cpuid.{LABELS[self.any_of[0]]}: "true" where node-feature-discovery '
            "labels them)."
        )

    def is_met_by(self, features: frozenset[str]) -> bool:
        """Whether an x86 processor with these features meets it."""
        return not features.isdisjoint(self.any_of)


LABELS = {"avx512f": "AVX512F", "amx_tile": "AMXTILE"}
"""Feature in /proc/cpuinfo -> name in node-feature-discovery."""


def declared(config: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """(quantization method, bits per weight) of a config.json; None where it is not given."""
    quantized = config.get("quantization_config")
    if not isinstance(quantized, Mapping):
        return None, None
    method, bits = quantized.get("quant_method"), quantized.get("bits", quantized.get("w_bit"))
    groups = quantized.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and weights.get("type") == "int" and not group.get("input_activations"):
            bits = weights.get("num_bits")
    return (method if isinstance(method, str) else None), (bits if isinstance(bits, int) else None)


def requirements(kv_cache: str, method: str | None, bits: int | None) -> Iterator[Requirement]:
    """Requirements of a service on CPUs. `kv_cache` is the cache's dtype; `method` and `bits` are the weights'."""
    if kv_cache.startswith("fp8"):
        yield Requirement(
            f"spec.precision.kvCache {kv_cache}",
            ("avx512f", "amx_tile"),
            "AVX-512 or AMX",
            "Set spec.precision.kvCache: auto",
        )
    if method in AWQ or (method in PACKED and bits == 4):
        yield Requirement(
            f"Weights of four bits ({method})",
            ("avx512f",),
            "AVX-512",
            "Choose a checkpoint that is not quantized to four bits",
            is_x86_only=False,
        )


def read_features(cpuinfo: Path = CPUINFO) -> frozenset[str] | None:
    """The features of this machine's x86 processor; None on other architectures or where they are not listed."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return None
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split()) or None


def check(
    features: frozenset[str] | None, kv_cache: str, method: str | None, bits: int | None = None
) -> Iterator[Failure]:
    """A failure for each requirement that this processor does not meet."""
    for required in requirements(kv_cache, method, bits):
        if features is not None and not required.is_met_by(features):
            message = f"{required.what} needs a CPU with {required.words}; this node's CPU lacks it."
            evidence = (f"{CPUINFO}: no {' and no '.join(required.any_of)}",)
            yield Failure(FailureReason.CPU_FEATURE_MISSING, message, required.remedy, evidence)
