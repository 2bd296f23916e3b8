"""deploy/kustomize is of this chart. That it renders what Helm does: tests/e2e/test_kustomize.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY
from scripts import kustomize_base
from scripts.kustomize_base import CHART, FOLDER


def test_the_base_is_as_old_as_the_chart() -> None:
    assert kustomize_base.main(["--check"]) == 0, "run `python -m scripts.kustomize_base`"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for folder in (CHART, FOLDER):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    (tmp_path / "tools" / "scripts").mkdir(parents=True)
    shutil.copy(REPOSITORY / "tools" / "scripts" / "kustomize_base.py", tmp_path / "tools" / "scripts")
    recorded = tmp_path / FOLDER / "base" / "kustomization.yaml"
    old, new = kustomize_base.recorded_hash(tmp_path), kustomize_base.inputs_hash(tmp_path)
    recorded.write_text(recorded.read_text().replace(old, new))
    return tmp_path


def test_a_changed_chart_is_noticed(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kustomize_base.main(["--check"], copied) == 0
    with (copied / CHART / "templates" / "deployment.yaml").open("a") as template:
        template.write("# more\n")
    assert kustomize_base.main(["--check"], copied) == 1
    assert (
        capsys.readouterr().err == "deploy/kustomize is older than the chart: run `python -m scripts.kustomize_base`\n"
    )


def test_without_a_base_the_check_fails(copied: Path) -> None:
    shutil.rmtree(copied / FOLDER / "base")
    assert kustomize_base.main(["--check"], copied) == 1
