"""The init container's copy: whole, readable for any user, and able to run where it lies."""

from __future__ import annotations

import compileall
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from llmservice_runtime import __main__
from llmservice_runtime.__main__ import PACKAGES, install

NAMES = {"llmservice_runtime", "llmservice_vllm"}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def test_copies_everything_readable(tmp_path: Path) -> None:
    targets = install(tmp_path)
    assert targets == [tmp_path / name for name in sorted(NAMES)]
    for target, package in zip(targets, PACKAGES, strict=True):
        assert files(target) == files(package) - {"extract.py", "extract_messages.py", "messages.json"}
        assert {path.stat().st_mode & 0o777 for path in target.rglob("*") if path.is_file()} == {0o644}
    assert {path.name for path in tmp_path.iterdir()} == NAMES


def test_replaces_an_older_copy_whole(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "gone.py").write_text("")
    assert not any("gone.py" in files(copy) for copy in install(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == NAMES


def test_a_failure_leaves_the_older_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("shutil.copytree", fail)
    with pytest.raises(OSError, match="disk full"):
        install(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == NAMES


def test_an_images_python_of_the_same_version_compiles_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the operator's image: byte code that does not go by the time of its source."""
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    built, copy = tmp_path / "built", tmp_path / "copy"
    built.mkdir()
    copy.mkdir()
    monkeypatch.setattr(__main__, "PACKAGES", tuple(install(built)))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    assert compileall.compile_dir(built, quiet=1, invalidation_mode=mode)
    install(copy)
    command = [sys.executable, "-S", "-v", "-m", "llmservice_runtime", "--help"]
    done = subprocess.run(command, env={"PYTHONPATH": str(copy)}, capture_output=True, text=True, check=True)
    read = [line.split()[-1].strip("'") for line in done.stderr.splitlines() if line.startswith("# code object from")]
    ours = [each for each in read if each.startswith(str(copy))]
    assert len(ours) > 3
    assert [each for each in ours if not each.endswith(".pyc")] == []


def test_the_copy_runs_without_anything_else(tmp_path: Path) -> None:
    install(tmp_path)
    # -S: no site-packages, as in an image that knows nothing of us.
    command = [sys.executable, "-S", "-W", "error", "-m", "llmservice_runtime", "--help"]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert "python3 -m llmservice_runtime serve --accelerator=cpu -- --model" in done.stdout


def test_nothing_but_the_standard_library_is_imported(tmp_path: Path) -> None:
    """But for the module that runs vLLM."""
    install(tmp_path)
    code = (
        "import importlib, pkgutil, llmservice_runtime, llmservice_vllm\n"
        "for r in (llmservice_runtime, llmservice_vllm):\n"
        "  for m in pkgutil.walk_packages(r.__path__, r.__name__ + '.'):\n"
        "    m.name.endswith(('__main__', '.headless')) or importlib.import_module(m.name)\n"
    )
    subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(tmp_path)}, check=True)
