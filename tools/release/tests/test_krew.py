"""The plugin of krew: what its archive and its manifest hold, and that its script installs once and runs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from release import krew

EPOCH = 1_700_000_000
FAKE_PYTHON = """\
#!/bin/sh
# Records its calls; `-m venv FOLDER` makes one whose programs do likewise.
echo "python3 $*" >> "$CALLS"
case "$*" in
  "-m venv "*)
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
    printf '#!/bin/sh\\necho "$*"\\n' > "$3/bin/kubectl-llmservice"
    chmod +x "$3/bin/kubectl-llmservice" ;;
  -c*) exit "${TOO_OLD:-0}" ;;
esac
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    wheel = tmp_path / "llmservice_operator-1.2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("llmservice_cli/__init__.py", "")
    licence = tmp_path / "LICENSE"
    licence.write_text("Apache")
    return krew.archive(wheel, licence, "1.2.0", EPOCH)


def run(plugin: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script as krew installs it: by a link, from another folder."""
    store, links, programs = plugin.parent / "store", plugin.parent / "bin", plugin.parent / "programs"
    if not store.exists():
        with tarfile.open(plugin) as packed:
            packed.extractall(store, filter="data")
        links.mkdir()
        (links / krew.BINARY).symlink_to(store / krew.BINARY)
        programs.mkdir()
        (programs / "python3").write_text(FAKE_PYTHON)
        (programs / "python3").chmod(0o755)
    known = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(plugin.parent / "cache"),
        "CALLS": str(plugin.parent / "calls"),
    }
    command = [str(links / krew.BINARY), *words]
    return subprocess.run(command, env=known | environment, cwd="/", capture_output=True, text=True, check=False)


def test_it_installs_the_wheel_once_and_hands_its_arguments_over(plugin: Path) -> None:
    first, second = run(plugin, "status", "a b"), run(plugin, "status")
    assert (first.returncode, first.stdout, second.stdout) == (0, "status a b\n", "status\n"), first.stderr
    assert "installing llmservice 1.2.0" in first.stderr
    assert second.stderr == ""
    installs = [call for call in (plugin.parent / "calls").read_text().splitlines() if " install " in call]
    wheel = plugin.parent / "store" / "llmservice_operator-1.2.0-py3-none-any.whl"
    assert installs == [f"python3 -m pip install --quiet {wheel}[cli]"]


def test_an_old_python_is_refused_with_a_remedy(plugin: Path) -> None:
    ran = run(plugin, "status", TOO_OLD="1")
    assert (ran.returncode, "install Python 3.11" in ran.stderr) == (1, True)


def test_the_archive_is_the_same_for_the_same_wheel(plugin: Path) -> None:
    before = plugin.read_bytes()
    wheel = plugin.parent / "llmservice_operator-1.2.0-py3-none-any.whl"
    assert krew.archive(wheel, plugin.parent / "LICENSE", "1.2.0", EPOCH).read_bytes() == before
    with tarfile.open(plugin) as packed:
        modes = {member.name: oct(member.mode) for member in packed}
    assert modes == {"LICENSE": "0o644", krew.BINARY: "0o755", wheel.name: "0o644"}


def test_the_manifest_names_the_archive_by_its_checksum(plugin: Path) -> None:
    found = yaml.safe_load(krew.manifest(plugin, "1.2.0", "https://example.com/team/operator.git"))
    (platform,) = found["spec"]["platforms"]
    assert found["metadata"]["name"] == "llmservice"
    assert found["spec"]["version"] == "v1.2.0"
    assert len(found["spec"]["shortDescription"]) <= 50, "an index of krew asks for that"
    assert platform["uri"] == f"https://example.com/team/operator/releases/download/v1.2.0/{plugin.name}"
    assert platform["sha256"] == hashlib.sha256(plugin.read_bytes()).hexdigest()
    assert platform["bin"] == krew.BINARY
