"""Messages with which vLLM ends a start: collected from its source, kept in one file, and shown on a page.

Collected by ast, without importing vLLM: the text of every `raise X("...")` and `assert ..., "..."` that a start can
reach. Text that is put in at run time stands as "…". The reason of each is the one that llmservice_runtime gives to
its log.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from llmservice_operator.api.reasons import Reason
from llmservice_runtime.contract import Failure, Phase
from llmservice_runtime.failures.failures import End, classify
from llmservice_vllm.extract import fetched, installed
from llmservice_vllm.versions import order

ROOT = Path(__file__).parents[1]
DATA = Path("scripts/vllm_messages.json")
PAGE = Path("docs/reference/vllm-messages.md")
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
"""Files and folders that no start of a server runs, and code of other projects that vLLM brings along."""
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
"""Files and folders that work on requests: only what makes their objects runs at a start (MAKING)."""
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
"""Beginnings of the names of functions, in whatever file, that only a request calls."""
ANSWER = "VLLMValidationError"
"""The exception that vLLM answers a request with."""
HOLE = "…"
_SHOWN = 140
"""Characters of a message on the page."""
HEAD = """\
<!-- Generated from scripts/vllm_messages.json by `make crds`: do not edit. -->

# What vLLM says when it does not start

{number} messages of vLLM {series}, by the [reason](reasons.md) and remedy that `status.failure` gives them. `…` \
stands for what vLLM puts in. A message that several files have is one row, with one of them; a long one is cut. The \
data file has both in full.

Listed is the text of every `raise` and `assert` with a message in vLLM's package that a start can reach, its models, \
layers and kernels among it. Left out by rule:

- tools, other ways to run vLLM, and code of other projects in the package: {tools};
- in files that work on requests, the functions that do not make their objects (those whose names do not begin with \
{making}): {serving};
- elsewhere functions that only a request calls, whose names begin with {requests};
- each `{answer}`, which is an answer to a request.

Not listed is what other packages raise (torch, NCCL, transformers, the hub's client), of which the operator knows the \
usual ones. What is not listed gets its reason by its words or by the file that raised it, else it is StartupFailed, \
with vLLM's own line as its message.

Those under StartupFailed are mostly vLLM's checks of itself, which no field mends. Report them to vLLM, and try \
another version in spec.runtime.image.
"""
_SHORTEST = 8
"""Letters of a message without its holes; less says nothing."""


@dataclass(frozen=True, order=True)
class Message:
    """One message: where it is raised, as which exception, in which versions, and what the runtime makes of it."""

    file: str
    text: str
    exception: str
    versions: tuple[str, ...]
    reason: str = ""


def collect(package: Path, series: str) -> list[Message]:
    """The messages of the vLLM whose package folder this is."""
    found = set()
    for path in package.rglob("*.py"):
        file = path.relative_to(package).as_posix()
        found |= {Message(file, text, name, (series,)) for name, text in texts(path.read_text(), file)}
    return sorted(found)


def texts(source: str, file: str = "") -> Iterator[tuple[str, str]]:
    """The name of the exception and the text of each raise and assert of a module that a start can reach."""
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
    """Each node below this one, with the name of the function that it is in."""
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield child, function
        yield from _functions(child, inner)


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """The text of each name that a module assigns a string to, in one place only."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: text_of(values[0]) for name, values in found.items() if len(values) == 1}


def text_of(node: ast.expr, named: Mapping[str, str] | None = None) -> str:
    """A string's text, with holes for what is put in at run time; `named` has the texts of variables."""
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


def log_of(message: Message) -> list[str]:
    """The end of a log that this message ends: a traceback's last place and its line."""
    filled = message.text.replace(HOLE, "7")
    return [
        "(EngineCore pid=210) ERROR 11-21 02:37:37 [core.py:1120] Traceback (most recent call last):",
        f'(EngineCore pid=210) ERROR 11-21 02:37:37 [core.py:1120]   File "/x/vllm/{message.file}", line 1, in f',
        "(EngineCore pid=210) ERROR 11-21 02:37:37 [core.py:1120]     raise",
        f"(EngineCore pid=210) ERROR 11-21 02:37:37 [core.py:1120] {message.exception}: {filled}",
    ]


def failure_of(message: Message) -> Failure:
    """What the runtime makes of it."""
    return _classified(replace(message, versions=(), reason=""))


@functools.cache
def _classified(message: Message) -> Failure:
    return classify(End(1, None, Phase.LOADING), log_of(message))


def classified(messages: Sequence[Message]) -> list[Message]:
    """The messages with their reasons."""
    return [replace(message, reason=str(failure_of(message).reason)) for message in messages]


def merged(known: Sequence[Message], found: Sequence[Message], series: str) -> list[Message]:
    """The known messages with those of one version in place of what was known of it."""
    versions: dict[tuple[str, str, str], set[str]] = {}
    for message in (*known, *found):
        kept = {version for version in message.versions if version != series or message in found}
        versions.setdefault((message.file, message.text, message.exception), set()).update(kept)
    return [Message(*key, tuple(sorted(held, key=order))) for key, held in sorted(versions.items()) if held]


def load(path: Path) -> list[Message]:
    """The messages in the file."""
    files = json.loads(path.read_text())["files"] if path.exists() else {}
    return [
        Message(file, text, name, tuple(versions.split()), reason)
        for file, rows in files.items()
        for text, name, versions, reason in rows
    ]


def data_text(messages: Sequence[Message]) -> str:
    """JSON with a line for each message, so that a difference shows in reviews."""
    files = []
    for file, of_file in groupby(sorted(messages), key=lambda one: one.file):
        rows = [[one.text, one.exception, " ".join(one.versions), one.reason] for one in of_file]
        lines = ",\n".join(f" {json.dumps(row, ensure_ascii=False)}" for row in rows)
        files.append(f"{json.dumps(file)}: [\n{lines}\n]")
    inner = ",\n".join(files)
    return f'{{"columns": ["message", "exception", "versions", "reason"], "files": {{\n{inner}\n}}}}\n'


def page_text(messages: Sequence[Message]) -> str:
    """The page: what is listed, and the messages by reason and remedy; equal ones in one row."""
    series = sorted({version for one in messages for version in one.versions}, key=order)
    groups: dict[tuple[str, str], dict[str, list[Message]]] = {}
    for one in messages:
        groups.setdefault((one.reason, failure_of(one).remedy), {}).setdefault(one.text, []).append(one)
    left_out = {"tools": TOOLS, "making": MAKING, "serving": SERVING, "requests": REQUESTS}
    told = {name: ", ".join(f"`{one}`" for one in entries) for name, entries in left_out.items()}
    parts = [HEAD.format(number=len(messages), answer=ANSWER, series=" and ".join(series), **told)]
    last = ""
    for (reason, remedy), rows in sorted(groups.items(), key=lambda one: (one[0][0] == "StartupFailed", one[0])):
        if reason != last:
            parts.append(f"## {reason}\n\n{Reason(reason).summary}\n")
        last = reason
        parts.append(f"**What to do:** {remedy}\n\n| message | raised in | only in |\n|-|-|-|")
        parts.extend(f"| {_cell(text)} | {_files(same)} | {_only_in(same, series)} |" for text, same in rows.items())
        parts.append("")
    return "\n".join(parts)


def _files(same: Sequence[Message]) -> str:
    files = sorted({one.file for one in same})
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"`{'/'.join(files[0].split('/')[-2:])}`{more}"


def _only_in(same: Sequence[Message], series: Sequence[str]) -> str:
    versions = {version for one in same for version in one.versions}
    return "" if len(versions) == len(series) else ", ".join(sorted(versions, key=order))


def _cell(text: str) -> str:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN].rstrip()} {HOLE}"
    ticks = "``" if "`" in shown else "`"
    return f"{ticks} {shown} {ticks}".replace("|", "\\|") if ticks == "``" else f"`{shown}`".replace("|", "\\|")


def package() -> Path:
    """The folder of the installed vLLM, without importing it."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise SystemExit("vLLM is not installed: run make engine")
    return Path(spec.origin).parent


def main() -> int:
    """Write the file and the page, or say whether they are stale."""
    parser = argparse.ArgumentParser("python -m scripts.vllm_messages", description=__doc__)
    parser.add_argument("version", nargs="?", help="MAJOR.MINOR.PATCH to read; without: reasons and page only")
    parser.add_argument("--installed", action="store_true", help="read the version that is installed")
    parser.add_argument("--folder", type=Path, help="the unpacked package of that version, where it is not fetched")
    parser.add_argument(
        "--check", action="store_true", help="write nothing: end with 1 where reasons or page are stale"
    )
    options = parser.parse_args()
    messages = load(ROOT / DATA)
    if options.version or options.installed:
        version = options.version or installed()[1]
        series = version.rpartition(".")[0]
        if options.folder or not options.version:
            found = collect(options.folder or package(), series)
        else:
            with fetched(version) as folder:
                found = collect(folder / "vllm", series)
        messages = merged(messages, found, series)
    written = {DATA: data_text(classified(messages)), PAGE: page_text(classified(messages))}
    stale = [path for path, text in written.items() if not (ROOT / path).exists() or (ROOT / path).read_text() != text]
    if options.check:
        for path in stale:
            print(f"{path} is stale: run make crds", file=sys.stderr)
        return bool(stale)
    for path in stale:
        (ROOT / path).write_text(written[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
