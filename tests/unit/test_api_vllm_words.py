"""Enums of the API are vLLM's own lists, read from the sources of the installed vLLM without importing it."""

import ast
import importlib.util
from pathlib import Path
from typing import Any, get_args

import pytest
from llmservice_operator.api.adapters import LoRA
from llmservice_operator.api.dtypes import KVCache, Quantization
from llmservice_operator.api.matrix.methods import AMD_METHODS
from llmservice_operator.api.techniques import AttentionBackend, CompilationMode, CudaGraphs, SpeculativeMethod
from llmservice_operator.build.engine import constant, snake
from llmservice_operator.planner.parsers import REASONING_PARSERS, TOOL_CALL_PARSERS

pytestmark = pytest.mark.vllm

# Refused without --allow-deprecated-quantization.
DEPRECATED = {"fbgemm_fp8", "fp_quant"}
# Intel Gaudi's, which is no accelerator of ours.
GAUDI = {"fp8_inc"}


def source(file: str) -> str:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / file).read_text()


def assigned(file: str, name: str) -> Any:
    """The strings that a module or class of vLLM assigns to a name."""
    for node in ast.walk(ast.parse(source(file))):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return {leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)}
    raise AssertionError(f"{name} is not in {file}")


def keys(file: str, name: str) -> set[Any]:
    """The keys of a dictionary that a module of vLLM assigns to a name."""
    for node in ast.walk(ast.parse(source(file))):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    raise AssertionError(f"{name} is not in {file}")


def members(file: str, name: str) -> set[str]:
    """The names of an enumeration's members."""
    (found,) = (n for n in ast.parse(source(file)).body if isinstance(n, ast.ClassDef) and n.name == name)
    targets = (node.targets[0] for node in found.body if isinstance(node, ast.Assign))
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_quantization_methods() -> None:
    methods = assigned("model_executor/layers/quantization/__init__.py", "QuantizationMethods")
    assert set(get_args(Quantization)) == methods - DEPRECATED


def test_deprecated_methods() -> None:
    listed = assigned("model_executor/layers/quantization/__init__.py", "DEPRECATED_QUANTIZATION_METHODS")
    assert listed == DEPRECATED


def test_kv_cache_types() -> None:
    assert set(get_args(KVCache)) == assigned("config/cache.py", "CacheDType") - GAUDI


def test_methods_on_amd() -> None:
    assert set(AMD_METHODS) == assigned("platforms/rocm.py", "supported_quantization") - DEPRECATED


def test_attention_backends() -> None:
    """But for those of vision towers, of other accelerators, of CPUs (which have no choice), and placeholders."""
    not_to_choose = {"TORCH_SDPA", "XPU_MLA_SPARSE", "CPU_ATTN", "CPU_MLA", "AMX_MLA", "NO_ATTENTION", "CUSTOM"}
    registry = members("v1/attention/backends/registry.py", "AttentionBackendEnum")
    assert set(get_args(AttentionBackend)) - {"auto"} == registry - not_to_choose


def test_compilation() -> None:
    assert {constant(mode) for mode in get_args(CompilationMode)} == members("config/compilation.py", "CompilationMode")
    assert {constant(graphs) for graphs in get_args(CudaGraphs)} == members("config/compilation.py", "CUDAGraphMode")


def test_speculative_methods() -> None:
    named = assigned("config/speculative.py", "SpeculativeMethod")
    heads = assigned("config/speculative.py", "EagleModelTypes") | assigned("config/speculative.py", "MTPModelTypes")
    asked = {snake(method) for method in get_args(SpeculativeMethod)}
    assert asked <= named | heads


def test_ranks_of_adapters() -> None:
    (ranks,) = (part for part in get_args(LoRA.model_fields["max_lora_rank"].annotation) if get_args(part))
    assert set(get_args(ranks)) == assigned("config/lora.py", "MaxLoRARanks")


def test_parsers() -> None:
    assert set(TOOL_CALL_PARSERS) == keys("tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER")
    assert set(REASONING_PARSERS) == keys("reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER")
