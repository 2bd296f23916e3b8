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
from llmservice_operator.planner.served import DEPRECATED, OWN_METHODS

pytestmark = pytest.mark.vllm

# Intel Gaudi's, which is no accelerator of ours.
GAUDI = {"fp8_inc"}


def source(file: str) -> str:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / file).read_text()


def value(file: str, name: str) -> ast.expr:
    """What a module or class of vLLM assigns to a name."""
    for node in ast.walk(ast.parse(source(file))):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return node.value
    raise AssertionError(f"{name} is not in {file}")


def assigned(file: str, name: str) -> Any:
    """The strings of the value."""
    return {leaf.value for leaf in ast.walk(value(file, name)) if isinstance(leaf, ast.Constant)}


def keys(file: str, name: str) -> set[Any]:
    """The keys of a dictionary."""
    found = value(file, name)
    assert isinstance(found, ast.Dict)
    return {key.value for key in found.keys if isinstance(key, ast.Constant)}


def members(file: str, name: str) -> set[str]:
    """The names of an enumeration's members."""
    (found,) = (n for n in ast.parse(source(file)).body if isinstance(n, ast.ClassDef) and n.name == name)
    targets = (node.targets[0] for node in found.body if isinstance(node, ast.Assign))
    return {target.id for target in targets if isinstance(target, ast.Name)}


_LAYERS = "model_executor/layers/quantization/__init__.py"
# Vision towers', other accelerators', CPUs' (which have no choice), and placeholders.
NOT_TO_CHOOSE = {"TORCH_SDPA", "XPU_MLA_SPARSE", "CPU_ATTN", "CPU_MLA", "AMX_MLA", "NO_ATTENTION", "CUSTOM"}


def test_lists_of_words() -> None:
    assert set(get_args(Quantization)) == assigned(_LAYERS, "QuantizationMethods") - DEPRECATED
    assert assigned(_LAYERS, "DEPRECATED_QUANTIZATION_METHODS") == DEPRECATED
    assert OWN_METHODS - {"auto-round"} | DEPRECATED == assigned(_LAYERS, "QuantizationMethods")
    assert '"quant_method", None) == "auto-round"' in source("model_executor/layers/quantization/inc/inc.py")
    assert set(get_args(KVCache)) == assigned("config/cache.py", "CacheDType") - GAUDI
    assert set(AMD_METHODS) == assigned("platforms/rocm.py", "supported_quantization") - DEPRECATED
    registry = members("v1/attention/backends/registry.py", "AttentionBackendEnum")
    assert set(get_args(AttentionBackend)) - {"auto"} == registry - NOT_TO_CHOOSE
    compilation = "config/compilation.py"
    assert {constant(mode) for mode in get_args(CompilationMode)} == members(compilation, "CompilationMode")
    assert {constant(graphs) for graphs in get_args(CudaGraphs)} == members(compilation, "CUDAGraphMode")
    (ranks,) = (part for part in get_args(LoRA.model_fields["max_lora_rank"].annotation) if get_args(part))
    assert set(get_args(ranks)) == assigned("config/lora.py", "MaxLoRARanks")
    assert set(TOOL_CALL_PARSERS) == keys("tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER")
    assert set(REASONING_PARSERS) == keys("reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER")


def test_speculative_methods() -> None:
    named = assigned("config/speculative.py", "SpeculativeMethod")
    heads = assigned("config/speculative.py", "EagleModelTypes") | assigned("config/speculative.py", "MTPModelTypes")
    asked = {snake(method) for method in get_args(SpeculativeMethod)}
    assert asked <= named | heads
