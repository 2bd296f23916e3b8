"""What an attention backend of vLLM says of itself: from its class, or from its source where a GPU must be there."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

_LOOKED_FOR = {
    *("supported_kv_cache_dtypes", "supported_dtypes"),
    *("supports_compute_capability", "get_supported_kernel_block_sizes", "is_mla"),
}


@dataclass(frozen=True)
class Described:
    """The same five answers, wherever they come from."""

    kv_types: tuple[str, ...]
    dtypes: tuple[str, ...]
    capability: Any
    blocks: Any
    is_mla: bool

    def runs_on(self, capability: str) -> bool:
        from vllm.platforms.interface import DeviceCapability

        return bool(self.capability(DeviceCapability(*map(int, capability.split(".")))))

    def takes_block(self, size: int) -> bool:
        """As AttentionBackend.supports_block_size judges, or the backend's own."""
        return bool(self.blocks(size))


def backend_class(name: str) -> Any:
    """The class of a backend by its name in vLLM; ImportError, RuntimeError or AttributeError where it asks for a GPU.

    The module of AMD's platform imports vllm._C. On a CPU without AVX-512 vLLM has loaded vllm._C_AVX2, and a second
    library that registers the same operators aborts the process. So this CPU's kernels are loaded first, and vllm._C
    then counts as imported.
    """
    import vllm._custom_ops  # noqa: F401  (loads the kernels)
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    sys.modules.setdefault("vllm._C", ModuleType("vllm._C"))
    return AttentionBackendEnum[name].get_class()


@functools.cache
def described(name: str) -> Described:
    """Of a backend by its name in vLLM."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    member = AttentionBackendEnum[name]
    try:
        cls = backend_class(name)
    except (ImportError, RuntimeError, AttributeError):  # it asks for a GPU, its driver or its libraries
        return _from_source(*member.value.rsplit(".", 1))
    return Described(
        tuple(cls.supported_kv_cache_dtypes),
        tuple(str(dtype).removeprefix("torch.") for dtype in cls.supported_dtypes),
        cls.supports_compute_capability,
        cls.supports_block_size,
        cls.is_mla(),
    )


def _from_source(module: str, cls: str) -> Described:
    import torch
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backend import MultipleOf

    names = {
        "torch": torch,
        "DeviceCapability": DeviceCapability,
        "MultipleOf": MultipleOf,
        "get_current_vllm_config_or_none": lambda: None,
    }
    found: dict[str, Any] = {}
    for name, node in _members(module, cls).items():
        if isinstance(node, ast.FunctionDef):
            node.decorator_list, node.returns = [], None
            for argument in node.args.args:
                argument.annotation = None
            exec(compile(ast.Module([node], []), module, "exec"), scope := dict(names))
            found[name] = scope[name]
        else:
            found[name] = eval(compile(ast.Expression(node), module, "eval"), dict(names))

    def takes(size: int) -> bool:
        sizes = [getattr(some, "base", some) for some in _call(found["get_supported_kernel_block_sizes"])]
        return any(size % some == 0 for some in sizes)

    return Described(
        tuple(found["supported_kv_cache_dtypes"]),
        tuple(str(dtype).removeprefix("torch.") for dtype in found["supported_dtypes"]),
        lambda capability: found["supports_compute_capability"](None, capability),
        takes,
        _call(found["is_mla"]),
    )


def _call(function: Any) -> Any:
    """A class method or a static one, without its class."""
    return function(None) if function.__code__.co_argcount else function()


def _members(module: str, cls: str) -> dict[str, Any]:
    """The members that are looked for, of a class and then of its bases."""
    tree = _tree(module)
    if tree is None:
        return {}
    body = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls), None)
    if body is None:
        return {}
    found: dict[str, Any] = {}
    for node in body.body:
        if isinstance(node, ast.FunctionDef) and node.name in _LOOKED_FOR:
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in _LOOKED_FOR:
            found[node.target.id] = node.value
    imported = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    for base in body.bases:
        if isinstance(base, ast.Name):
            found = _members(imported.get(base.id, module), base.id) | found
    return found


@functools.cache
def _tree(module: str) -> ast.Module | None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent.parent / (module.replace(".", "/") + ".py")
    return ast.parse(path.read_text()) if path.exists() else None
