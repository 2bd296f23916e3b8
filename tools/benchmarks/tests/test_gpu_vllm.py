"""What the run on a GPU uses of vLLM stands in vLLM's own code: flags, metrics, endpoints, variables, lines of the log.

The installed vLLM is the one of the rehearsal; 0.26 is the one that can be carried to a machine with a GPU, and its
files are fetched (`make test-full`).
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmservice_vllm.extract import fetched

from benchmarks.gpu.served import engine_log, server
from benchmarks.gpu.served.__main__ import GROUPS
from benchmarks.gpu.served.cases import Machine, arguments
from benchmarks.gpu.served.engine_log import LINES, PHASES
from benchmarks.gpu.served.without_vllm import RECORDED

ROOT = Path(__file__).parents[3]
CARRIED = "0.26.0"
H100 = Machine("NVIDIA H100 80GB HBM3", 79.19, CARRIED)
METRICS = ("num_requests_running", "kv_cache_usage_perc", "prefix_cache_hits")
SPECULATION = ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
ENDPOINTS = ("/sleep", "/wake_up", "/health")
FOLDERS = (
    "v1/core",
    "v1/engine",
    "v1/metrics",
    "v1/spec_decode",
    "v1/worker",
    "compilation",
    "config",
    "entrypoints",
    "platforms",
)
PARSE = """
import contextlib, io, json, sys
with contextlib.redirect_stdout(sys.stderr):
    from pathlib import Path
    from llmservice_vllm.extract import Sources, server_parser
    parser = server_parser(Sources(Path(sys.argv[1]) / "vllm"))
refused = {}
for name, arguments in json.load(sys.stdin).items():
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(arguments)
    except SystemExit:
        refused[name] = said.getvalue()[-300:]
print(json.dumps(refused))
"""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("installed", marks=pytest.mark.vllm),
        pytest.param(CARRIED, marks=[pytest.mark.full, pytest.mark.vllm]),
    ],
)
def vllm(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder that holds the package."""
    if request.param == "installed":
        spec = importlib.util.find_spec("vllm")
        assert spec is not None
        assert spec.origin is not None
        yield Path(spec.origin).parents[1]
        return
    with fetched(CARRIED) as folder:
        yield folder


@pytest.fixture(scope="module")
def texts(vllm: Path) -> frozenset[str]:
    """The text constants of its code outside of models and kernels, with {} for what is put in."""
    files = (file for folder in FOLDERS for file in (vllm / "vllm" / folder).rglob("*.py"))
    return frozenset(text for file in files for text in _texts(file))


_PUT_IN = re.compile(r"%\.?\d*[sdfr]")


def _texts(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _PUT_IN.sub("{}", node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def version_of(request: pytest.FixtureRequest) -> str:
    return "0.26" if CARRIED in request.node.name else "0.32"


def test_every_line_is_one_that_it_writes(request: pytest.FixtureRequest, texts: frozenset[str]) -> None:
    version = version_of(request)
    wanted = {line.template for line in LINES if version in line.versions}
    # The server's last line is uvicorn's.
    wanted |= {words for _, words in PHASES if words != "Application startup complete"}
    written = "\n".join(texts)
    assert not {template for template in wanted if template not in written}
    others = {line.template for line in LINES if version not in line.versions}
    assert not {template for template in others if template in written}, "these are written by this version too"


@pytest.mark.full
def test_every_command_line_is_one_that_it_takes(vllm: Path) -> None:
    lines = {group.name: arguments(group.case, H100, Path("/m"), 1) for group in GROUPS if group.case is not None}
    assert len(lines) >= 18
    environment = os.environ | {"PYTHONPATH": f"{vllm}{os.pathsep}{ROOT}"}
    lines["a flag that there is not"] = ("--no-such-flag", "1")
    command = [sys.executable, "-c", PARSE, str(vllm)]
    done = subprocess.run(command, input=json.dumps(lines), env=environment, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    refused = json.loads(done.stdout.splitlines()[-1])
    assert list(refused) == ["a flag that there is not"], refused


def test_metrics_and_endpoints_are_there(texts: frozenset[str]) -> None:
    assert not {f"vllm:{name}" for name in (*METRICS, *SPECULATION)} - texts
    assert not set(ENDPOINTS) - texts


def test_what_the_steps_ask_for_is_what_is_looked_up() -> None:
    sources = "".join(file.read_text() for file in Path(server.__file__).parent.glob("*.py"))
    assert {name.removesuffix("_total") for name in re.findall(r'"vllm:(\w+)"', sources)} == {*METRICS, *SPECULATION}
    assert set(re.findall(r'manage\(f?"(/\w+)', sources)) == {"/sleep", "/wake_up"}


def test_each_line_is_read_from_its_own_words() -> None:
    for number, line in enumerate(LINES):
        values = [str(10 * number + place + 1) for place in range(line.template.count("{}"))]
        text = line.template.format(*values)
        expected = dict(zip(line.names, values, strict=True))
        for prefix in ("", "(EngineCore pid=3) INFO 11-27 10:00:02 [a.py:1] ", "INFO 11-27 10:00:02 [a.py:1] GPU "):
            found = engine_log.figures([f"{prefix}{text}", "INFO 11-27 10:00:02 [a.py:2] nothing"])
            assert {name: str(found[name]) for name in expected if name} == {
                name: value for name, value in expected.items() if name
            }, text


def test_the_recorded_start_has_a_figure_of_each_kind() -> None:
    found = engine_log.figures((RECORDED / "start-0.26.log").read_text().splitlines())
    expected = {name for line in LINES if "0.26" in line.versions for name in line.names if name}
    assert set(found) == expected - {"estimated_max_len"}
    assert found["kv_cache_tokens"] == 462_848
    assert found["attention_backend"] == "FLASH_ATTN"
