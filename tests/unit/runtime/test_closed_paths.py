"""Which endpoints are closed to clients, against the sources of the installed vLLM: a new one must be noticed."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmservice_runtime.contract import EXEMPT_PATHS
from llmservice_runtime.middleware import CLOSED_PATHS
from llmservice_vllm.paths import DEV_PATHS

pytestmark = pytest.mark.vllm
# Packages whose routes manage the server. The first two are what VLLM_SERVER_DEV_MODE adds, in vLLM's routers.py.
DEV = ("serve/dev", "rl")
MANAGING = (*DEV, "serve/lora", "serve/profile", "serve/elastic_ep", "serve/fault_tolerance")


@pytest.fixture(scope="module")
def entrypoints() -> Path:
    """Sources only: importing them would import torch."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("needs the vllm dependency group")
    return Path(found.origin).parent / "entrypoints"


def routes(folder: Path) -> Iterator[str]:
    """Paths in decorators such as @router.post("/sleep")."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
                        (first, *_) = call.args
                        if isinstance(first, ast.Constant) and str(first.value).startswith("/"):
                            yield str(first.value)


@pytest.mark.parametrize("package", MANAGING)
def test_every_managing_endpoint_is_closed(entrypoints: Path, package: str) -> None:
    found = set(routes(entrypoints / package))
    assert found, f"vLLM has no routes in {package} any more"
    assert {path for path in found if not path.startswith(CLOSED_PATHS)} == set()


def test_nothing_is_listed_that_vllm_does_not_have(entrypoints: Path) -> None:
    assert set(DEV_PATHS) == {path for package in DEV for path in routes(entrypoints / package)}


def test_what_clients_need_is_open(entrypoints: Path) -> None:
    serving = {path for path in routes(entrypoints) if not path.startswith(CLOSED_PATHS)}
    assert {"/v1/chat/completions", "/v1/models", "/health", "/tokenize"} <= serving
    assert not any(path.startswith(CLOSED_PATHS) for path in EXEMPT_PATHS)
