"""Which paths a POST may wake a service for, against the sources of the installed vLLM."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from llmservice_activator.holding.check import HEALTH, POSTS
from llmservice_runtime.middleware import CLOSED_PATHS

pytestmark = pytest.mark.vllm


def test_every_post_of_vllm_that_needs_no_running_pod() -> None:
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("needs the vllm dependency group")
    entrypoints = Path(found.origin).parent / "entrypoints"  # sources only: importing them would import torch
    posts = {
        str(call.args[0].value)
        for path in entrypoints.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "post"
        if call.args and isinstance(call.args[0], ast.Constant)
    }
    of_a_running_pod = {path for path in posts if path.startswith(CLOSED_PATHS) or "{" in path}
    assert posts - of_a_running_pod - HEALTH == POSTS
