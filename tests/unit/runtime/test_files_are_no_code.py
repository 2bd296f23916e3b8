"""Files that lie in a server's home or working directory, or in a model, never become code."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import llmservice_runtime
import pytest
from llmservice_api.service import LLMService
from llmservice_operator.manifests.containers import environment
from llmservice_operator.manifests.settings import Settings
from llmservice_runtime import contract
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor import vllm_process

from tests.unit.decide_world import an_llmservice, spec

PYTHON = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
"""Not that of a virtual environment, which has no user site: images of vLLM have a plain one."""
RUNTIME = Path(llmservice_runtime.__file__).parent.parent
PLANTED = "import os; os.write(1, b'planted\\n')\n"
SITE = f".local/lib/python3.{sys.version_info.minor}/site-packages"
PLACES = [
    pytest.param(f"home/{SITE}/usercustomize.py", id="usercustomize"),
    pytest.param(f"home/{SITE}/sitecustomize.py", id="sitecustomize"),
    pytest.param(f"home/{SITE}/planted.pth", id="a path file"),
    pytest.param("work/json.py", id="a module of Python's"),
    pytest.param("work/vllm/__init__.py", id="vLLM itself"),
]


def variables(**sections: object) -> dict[str, str]:
    llm = LLMService.from_object(an_llmservice(spec(**sections)))
    return {item["name"]: item["value"] for item in environment(llm, Settings()) if "value" in item}


def of_vllm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[str, ...], dict[str, str]]:
    """The process as the supervisor starts it: a Python that asks for json before it says that it serves."""
    package = folder / "installed" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for parent in (package, package.parent, package.parent.parent):
        (parent / "__init__.py").touch()
    (package / "api_server.py").write_text("import json\nif __name__ == '__main__': print('serves')\n")
    for name in ("home", "work"):
        (folder / name).mkdir(exist_ok=True)
    monkeypatch.setattr(sys, "executable", PYTHON)
    rendered = variables() | {"HOME": str(folder / "home"), "PYTHONPATH": f"{folder / 'installed'}:{RUNTIME}"}
    options = ServeOptions(accelerator="cpu")
    return vllm_process.command(), vllm_process.environment(options, vllm_process.Flags(), rendered, lambda text: None)


def plant(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(PLANTED)


def output(command: tuple[str, ...], given: dict[str, str], folder: Path) -> list[str]:
    done = subprocess.run(
        command, env=given, cwd=folder / "work", capture_output=True, text=True, check=False, input="[]"
    )
    return done.stdout.split()


@pytest.mark.parametrize("place", PLACES)
def test_what_is_planted_beside_the_engine_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    plant(tmp_path / place)
    command, given = of_vllm(tmp_path, monkeypatch)
    assert output(command, given, tmp_path) == ["serves"]


@pytest.mark.parametrize(("place", "guard"), [(PLACES[0].values[0], "-s"), (PLACES[3].values[0], "-P")])
def test_nor_beside_what_runs_in_the_operators_image(tmp_path: Path, place: object, guard: str) -> None:
    plant(tmp_path / str(place))
    (tmp_path / "work").mkdir(exist_ok=True)
    given = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    start = (PYTHON, *contract.OPERATOR_PYTHON[1:])
    without = tuple(item for item in start if item != guard)
    assert "planted" in output((*without, "json.tool", "--help"), given, tmp_path), "the test can fail"
    assert "planted" not in output((*start, "json.tool", "--help"), given, tmp_path)
    for container in (contract.INSTALL_COMMAND, contract.INSPECT_COMMAND):
        assert container[: len(contract.OPERATOR_PYTHON)] == contract.OPERATOR_PYTHON


def test_pickled_files_hold_tensors_only() -> None:
    """Whatever asks torch for one. A model's own code may do as it likes, and so may who knows torch's variable."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    own = {"model": {"uri": "hf://team/model", "trustRemoteCode": True}}
    other = {"runtime": {"env": [{"name": "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "value": "1"}]}}
    assert variables()[name] == "1"
    assert name not in variables(**own)
    assert name not in variables(**other)


def test_vllm_itself_asks_for_tensors_only() -> None:
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("there is no vLLM")
    calls = []
    for path in Path(found.origin).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "torch.load(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                calls.append(f"{path}:{node.lineno} {[ast.unparse(keyword) for keyword in node.keywords]}")
    assert len(calls) > 5
    assert not [call for call in calls if "'weights_only=True'" not in call]
