"""Enums of the API are vLLM's own lists, read from the sources of the installed vLLM without importing it."""

import ast
import importlib.util
from pathlib import Path
from typing import Any, get_args

import pytest
from llmservice_operator.api.engine import KVCache, Quantization
from llmservice_operator.api.matrix.methods import AMD_METHODS

pytestmark = pytest.mark.vllm

# Refused without --allow-deprecated-quantization.
DEPRECATED = {"fbgemm_fp8", "fp_quant"}
# Intel Gaudi's, which is no accelerator of ours.
GAUDI = {"fp8_inc"}


def assigned(file: str, name: str) -> Any:
    """The strings that a module or class of vLLM assigns to a name."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    for node in ast.walk(ast.parse((Path(spec.origin).parent / file).read_text())):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return {leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)}
    raise AssertionError(f"{name} is not in {file}")


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
