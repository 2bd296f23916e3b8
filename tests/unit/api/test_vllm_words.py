"""Enums of the API are the lists of all known versions, and those that these do not have are the installed vLLM's."""

import ast
import importlib.util
from pathlib import Path
from typing import Any, get_args

import pytest
from llmservice_api.dtypes import DType, KVCache, Quantization
from llmservice_api.engine import (
    AttentionBackend,
    CompilationMode,
    CudaGraphs,
    SpeculativeMethod,
)
from llmservice_api.spec import LoRA
from llmservice_operator.manifests.server import constant, snake
from llmservice_vllm.quantization import AMD_METHODS, DEPRECATED
from llmservice_vllm.versions import words_of_all

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


def members(file: str, name: str) -> set[str]:
    """The names of an enumeration's members."""
    (found,) = (n for n in ast.parse(source(file)).body if isinstance(n, ast.ClassDef) and n.name == name)
    targets = (node.targets[0] for node in found.body if isinstance(node, ast.Assign))
    return {target.id for target in targets if isinstance(target, ast.Name)}


# Vision towers', other accelerators', CPUs' (which have no choice), and placeholders.
NOT_TO_CHOOSE = {"TORCH_SDPA", "XPU_MLA_SPARSE", "CPU_ATTN", "CPU_MLA", "AMX_MLA", "NO_ATTENTION", "CUSTOM"}


def test_lists_of_words_are_those_of_all_versions_together() -> None:
    assert set(get_args(Quantization)) == words_of_all("quantizations") - DEPRECATED
    assert set(get_args(KVCache)) == words_of_all("kvCacheDtypes") - GAUDI
    assert set(get_args(AttentionBackend)) - {"auto"} == words_of_all("attentionBackends") - NOT_TO_CHOOSE
    assert set(get_args(DType)) == words_of_all("dtypes") - {"half", "float"}
    assert {snake(method) for method in get_args(SpeculativeMethod)} <= words_of_all("speculativeMethods")


@pytest.mark.vllm
def test_lists_of_words() -> None:
    layers = "model_executor/layers/quantization/__init__.py"
    assert assigned(layers, "DEPRECATED_QUANTIZATION_METHODS") == DEPRECATED
    assert '"quant_method", None) == "auto-round"' in source("model_executor/layers/quantization/inc/inc.py")
    assert set(AMD_METHODS) == assigned("platforms/rocm.py", "supported_quantization") - DEPRECATED
    compilation = "config/compilation.py"
    assert {constant(mode) for mode in get_args(CompilationMode)} == members(compilation, "CompilationMode")
    assert {constant(graphs) for graphs in get_args(CudaGraphs)} == members(compilation, "CUDAGraphMode")
    (ranks,) = (part for part in get_args(LoRA.model_fields["max_lora_rank"].annotation) if get_args(part))
    assert set(get_args(ranks)) == assigned("config/lora.py", "MaxLoRARanks")
