"""Messages with which vLLM ends a start, collected from its sources. This module and its file are not copied into pods.

Collected by ast, without importing vLLM: the text of every `raise X("...")` and `assert ..., "..."` that a start can
reach. Run-time text is replaced by "…". Contains the default version and later ones.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from llmservice_vllm.versions import order

FILE = Path(__file__).with_name("messages.json")
TOOLS = (
    "assets/",
    "benchmarks/",
    "collect_env.py",
    "distributed/elastic_ep/",
    "distributed/weight_transfer/",
    "entrypoints/cli/benchmark/",
    "entrypoints/offline_utils.py",
    "entrypoints/llm.py",
    "grpc/",
    "kernels/helion/",
    "model_executor/determinism/",
    "snapshot/",
    "third_party/",
    "usage/",
    "vllm_flash_attn/",
)
"""Files and folders that no start of a server executes, and bundled code of other projects."""
SERVING = (
    "distributed/aux_output_connector/",
    "distributed/ec_transfer/",
    "distributed/eplb/",
    "distributed/kv_events.py",
    "distributed/kv_transfer/kv_connector/v1/",
    "distributed/mooncake_store.py",
    "entrypoints/",
    "inputs/",
    "multimodal/",
    "parser/",
    "pooling_params.py",
    "reasoning/",
    "renderers/",
    "sampling_params.py",
    "tokenizers/",
    "tool_parsers/",
    "transformers_utils/processors/",
    "v1/hisparse/",
    "v1/kv_offload/",
    "v1/metrics/",
    "v1/pool/",
    "v1/sample/",
    "v1/simple_kv_offload/",
    "v1/structured_output/",
    "v1/watermarking/",
)
"""Files and folders that process requests: only their constructors run at a start (MAKING)."""
MAKING = (
    "__init__",
    "__post_init__",
    "from_",
    "register_kv_caches",
    "load_chat_template",
    "_load_chat_template",
    "build_app",
    "setup_server",
    "validate_api_server_args",
    "validate_chat_template",
    "validate_grpc",
    "validate_multi_port",
    "validate_parsed_serve_args",
)
REQUESTS = (
    "_parse_and_validate_",
    "_process_audio",
    "_process_image",
    "_process_video",
    "_apply_hf_processor",
    "_get_prompt",
    "add_request",
    "get_generation_prompt",
    "get_mrope_input_positions",
    "get_placeholder_str",
    "get_replacement",
    "iter_mm_grid",
    "process_inputs",
    "render_",
)
"""Prefixes of functions that only requests call, in any file."""
ANSWER = "VLLMValidationError"
"""The exception with which vLLM refuses a request."""
HOLE = "…"
_SHORTEST = 8
"""Letters of a message without placeholders; shorter ones have no meaning."""


@dataclass(frozen=True, order=True)
class Message:
    """A message with its file, exception and versions."""

    file: str
    text: str
    exception: str
    versions: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """Its identity in any version."""
        return self.file, self.text, self.exception


def collect(package: Path, series: str) -> list[Message]:
    """The messages of the vLLM in this package folder."""
    found = set()
    for path in package.rglob("*.py"):
        file = path.relative_to(package).as_posix()
        found |= {Message(file, text, name, (series,)) for name, text in texts(path.read_text(), file)}
    return sorted(found)


def texts(source: str, file: str = "") -> Iterator[tuple[str, str]]:
    """Exception and text of each raise and assert of a module that a start can reach."""
    functions = list(_functions(ast.parse(source), ""))
    named = _assigned(node for node, _ in functions)
    for node, function in functions:
        name, value = "", None
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            name, value = ast.unparse(node.exc.func).rpartition(".")[2], node.exc.args[0]
            name = "" if name == ANSWER else name
        elif isinstance(node, ast.Assert) and node.msg is not None:
            name, value = "AssertionError", node.msg
        text = " ".join(text_of(value, named).split()) if value is not None else ""
        is_said = name.endswith(("Error", "Exception")) and len(re.sub("[^A-Za-z]", "", text)) >= _SHORTEST
        if is_said and is_of_start(file, function):
            yield name, text


def is_of_start(file: str, function: str) -> bool:
    """Whether a start can call this function."""
    if file.startswith(TOOLS):
        return False
    if file.startswith(SERVING):
        return function.startswith(MAKING)
    return not function.startswith(REQUESTS)


def _functions(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
    """Each node below this one, with the name of its function."""
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield child, function
        yield from _functions(child, inner)


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """The text of each name to which a module assigns a string exactly once."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: text_of(values[0]) for name, values in found.items() if len(values) == 1}


def text_of(node: ast.expr, named: Mapping[str, str] | None = None) -> str:
    """A string's text, with placeholders for run-time values; `named` has the texts of variables."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%(?:\.\d+)?[sdrf]", HOLE, node.value)
    if isinstance(node, ast.Name) and named:
        return named.get(node.id, HOLE)
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value, named) if isinstance(node.value, ast.Name) else HOLE
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part, named) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left, named) + text_of(node.right, named)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return text_of(node.left, named)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return re.sub(r"\{[^{}]*\}", HOLE, text_of(node.func.value, named))
    return HOLE


def merged(known: Sequence[Message], found: Sequence[Message], series: str) -> list[Message]:
    """The known messages, with those of one version replaced."""
    versions: dict[tuple[str, str, str], set[str]] = {}
    for message in known:
        versions.setdefault(message.key, set()).update({*message.versions} - {series})
    for message in found:
        versions.setdefault(message.key, set()).update(message.versions)
    return [Message(*key, tuple(sorted(held, key=order))) for key, held in sorted(versions.items()) if held]


def load(path: Path = FILE) -> list[Message]:
    files = json.loads(path.read_text())["files"] if path.exists() else {}
    return [
        Message(file, text, name, tuple(versions.split()))
        for file, rows in files.items()
        for text, name, versions in rows
    ]


def data_text(messages: Sequence[Message]) -> str:
    """JSON with one message per line, for readable differences."""
    files = []
    for file, of_file in groupby(sorted(messages), key=lambda one: one.file):
        rows = [[one.text, one.exception, " ".join(one.versions)] for one in of_file]
        lines = ",\n".join(f" {json.dumps(row, ensure_ascii=False)}" for row in rows)
        files.append(f"{json.dumps(file)}: [\n{lines}\n]")
    inner = ",\n".join(files)
    return f'{{"columns": ["message", "exception", "versions"], "files": {{\n{inner}\n}}}}\n'
