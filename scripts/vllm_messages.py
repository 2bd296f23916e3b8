"""Messages with which vLLM ends a start: collected from its source, kept in one file, and shown on a page.

Collected by ast, without importing vLLM: the text of every `raise X("...")` and `assert ..., "..."` in SCOPE. Text
that is put in at run time stands as "…". The reason of each is the one that llmservice_runtime gives to its log.
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

from scripts.add_vllm_version import fetched, installed_version, order

ROOT = Path(__file__).parents[1]
DATA = Path("scripts/vllm_messages.json")
PAGE = Path("docs/reference/vllm-messages.md")
SCOPE = (
    "config/",
    "engine/arg_utils.py",
    "platforms/",
    "transformers_utils/config.py",
    "transformers_utils/model_arch_config_convertor.py",
    "model_executor/model_loader/",
    "model_executor/models/registry.py",
    "model_executor/layers/quantization/",
    "model_executor/layers/linear.py",
    "model_executor/layers/vocab_parallel_embedding.py",
    "model_executor/layers/attention/",
    "v1/attention/selector.py",
    "v1/core/encoder_cache_manager.py",
    "v1/core/kv_cache_config_builder.py",
    "v1/core/kv_cache_planning.py",
    "v1/core/kv_cache_utils.py",
    "v1/core/sched/scheduler.py",
    "v1/engine/core.py",
    "v1/engine/utils.py",
    "v1/executor/",
    "v1/worker/gpu_model_runner.py",
    "v1/worker/gpu_worker.py",
    "v1/worker/gpu/model_runner.py",
    "v1/worker/utils.py",
    "v1/worker/cpu_worker.py",
    "v1/worker/cpu_model_runner.py",
    "v1/worker/lora_model_runner_mixin.py",
    "lora/model_manager.py",
    "lora/utils.py",
    "distributed/parallel_state.py",
    "distributed/utils.py",
    "distributed/device_communicators/pynccl.py",
    "distributed/device_communicators/pynccl_wrapper.py",
    "distributed/device_communicators/shm_broadcast.py",
    "distributed/kv_transfer/kv_connector/factory.py",
)
"""Files and folders of the package that run between the command line and the first request."""
HOLE = "…"
_SHOWN = 300
"""Characters of a message on the page."""
HEAD = """\
<!-- Generated from scripts/vllm_messages.json by `make crds`: do not edit. -->

# What vLLM says when it does not start

{number} messages of vLLM {series}, by the [reason](reasons.md) and remedy that `status.failure` gives them. `…` \
stands for what vLLM puts in.

Listed is the text of every `raise` and `assert` with a message in these files and folders of vLLM's package, on its \
way from the command line to the first request: {scope}. Some of them are also reached by requests.

Not listed: the code of each model, kernels and attention backends, connectors, other entrypoints, and what other \
packages raise (torch, NCCL, transformers, the hub's client), of which the operator knows the usual ones. What is not \
listed gets its reason by its words or by the file that raised it, else it is StartupFailed, with vLLM's own line as \
its message.

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
    paths = [
        path
        for entry in SCOPE
        for path in ((package / entry).rglob("*.py") if entry.endswith("/") else [package / entry])
    ]
    found = set()
    for path in paths:
        # Some files are in one version only.
        if path.exists():
            file = path.relative_to(package).as_posix()
            found |= {Message(file, text, name, (series,)) for name, text in texts(path.read_text())}
    return sorted(found)


def texts(source: str) -> Iterator[tuple[str, str]]:
    """The name of the exception and the text of each raise and assert of a module."""
    nodes = list(ast.walk(ast.parse(source)))
    named = _assigned(nodes)
    for node in nodes:
        name, value = "", None
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            name, value = ast.unparse(node.exc.func).rpartition(".")[2], node.exc.args[0]
        elif isinstance(node, ast.Assert) and node.msg is not None:
            name, value = "AssertionError", node.msg
        text = " ".join(text_of(value, named).split()) if value is not None else ""
        if name.endswith(("Error", "Exception")) and len(re.sub("[^A-Za-z]", "", text)) >= _SHORTEST:
            yield name, text


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
    rows = json.loads(path.read_text())["messages"] if path.exists() else []
    return [Message(file, text, name, tuple(versions.split()), reason) for file, text, name, versions, reason in rows]


def data_text(messages: Sequence[Message]) -> str:
    """JSON with a line for each message, so that a difference shows in reviews."""
    rows = [[one.file, one.text, one.exception, " ".join(one.versions), one.reason] for one in messages]
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    return f'{{\n "columns": ["file", "text", "exception", "versions", "reason"],\n "messages": [\n{lines}\n ]\n}}\n'


def page_text(messages: Sequence[Message]) -> str:
    """The page: the scope, and the messages by reason, remedy and file."""
    series = sorted({version for one in messages for version in one.versions}, key=order)
    remedies = {message: failure_of(message).remedy for message in messages}

    def place(one: Message) -> tuple[bool, str, str, str, str]:
        return one.reason == "StartupFailed", one.reason, remedies[one], one.file, one.text

    scope = ", ".join(f"`{one}`" for one in SCOPE)
    parts = [HEAD.format(number=len(messages), series=" and ".join(series), scope=scope)]
    for reason, of_reason in groupby(sorted(messages, key=place), key=lambda one: one.reason):
        parts.append(f"## {reason}\n\n{Reason(reason).summary}\n")
        for remedy, of_remedy in groupby(of_reason, key=remedies.__getitem__):
            parts.append(f"**What to do:** {remedy}\n")
            for file, of_file in groupby(of_remedy, key=lambda one: one.file):
                rows = [f"| {_cell(one.text)} | {_only_in(one, series)} |" for one in of_file]
                parts.append("\n".join([f"`{file}`\n", "| message | only in |", "|-|-|", *rows]) + "\n")
    return "\n".join(parts)


def _only_in(message: Message, series: Sequence[str]) -> str:
    return "" if len(message.versions) == len(series) else ", ".join(message.versions)


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
        version = options.version or installed_version()
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
