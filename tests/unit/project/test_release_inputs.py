"""What images and build tools are made of is named by content: bases by digest, Python packages by hash."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from localcluster.paths import REPOSITORY
from release.plan import base_of

DOCKERFILES = ("operator/Dockerfile", "runtime/Dockerfile.cpu", "runtime/Dockerfile.router")
INSTALLERS = (*DOCKERFILES, "tools/scripts/uv", "tools/localcluster/toolchain.py")
FILES = (
    "runtime/requirements-cpu.txt",
    "runtime/requirements-router.txt",
    "tools/scripts/requirements-build.txt",
    "tools/localcluster/requirements-go.txt",
)


def export_script() -> ModuleType:
    path = REPOSITORY / "tools" / "scripts" / "export_requirements.py"
    spec = importlib.util.spec_from_file_location("export_requirements", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def requirements(file: str) -> list[str]:
    """The requirements of a file, each with its hashes in one line."""
    lines = (REPOSITORY / file).read_text().replace("\\\n", " ").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_the_base_can_be_given_by_digest(dockerfile: str) -> None:
    text = (REPOSITORY / dockerfile).read_text()
    assert base_of(text) == "debian:bookworm-slim"
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.M))
    bases = {base for base in re.findall(r"^FROM (\S+)", text, re.M) if base not in stages}
    assert bases == {"${BASE}"}


@pytest.mark.parametrize("file", INSTALLERS)
def test_every_installation_checks_hashes(file: str) -> None:
    lines = (REPOSITORY / file).read_text().replace("\\\n", " ").splitlines()
    # The wheel that the step before built, without anything else.
    own = [line for line in lines if "--offline --no-deps /tmp/dist/*.whl" in line]
    installs = [line for line in lines if re.search(r"pip\"? install .*(-r|==)", line) and line not in own]
    unchecked = [line for line in installs if "--require-hashes" not in line]
    assert unchecked == []
    assert "--require-hashes" in "\n".join(lines)


@pytest.mark.parametrize("file", FILES)
def test_every_requirement_has_the_hashes_of_the_lock_file(file: str) -> None:
    lock = tomllib.loads((REPOSITORY / "uv.lock").read_text())
    locked = {
        (package["name"], package["version"]): {
            row["hash"] for row in [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
        }
        for package in lock["package"]
    }
    rows = requirements(file)
    assert rows
    for row in rows:
        name, version = row.split()[0].split("==")
        assert set(re.findall(r"--hash=(\S+)", row)) == locked[name, version], name


def test_the_requirements_files_are_what_the_lock_file_gives() -> None:
    script = export_script()
    assert tuple(each.path for each in script.FILES) == FILES
    assert script.main(["--check"]) == 0


def test_no_requirements_file_names_an_index() -> None:
    for file in FILES:
        assert "://" not in (REPOSITORY / file).read_text()


def test_bytecode_does_not_depend_on_times() -> None:
    """A release sets every file's time to its commit's: bytecode with the old time would be compiled at each start."""
    for dockerfile in DOCKERFILES:
        assert "PYC_INVALIDATION_MODE=UNCHECKED_HASH" in (REPOSITORY / dockerfile).read_text()


def test_the_build_context_lets_the_requirements_in() -> None:
    allowed = Path(REPOSITORY / ".dockerignore").read_text().splitlines()
    assert {"!runtime/requirements-cpu.txt", "!tools/scripts/requirements-build.txt"} <= set(allowed)
