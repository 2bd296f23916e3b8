"""Generated files are fresh."""

from functools import cache
from pathlib import Path

import pytest
from llmservice_api import crd
from llmservice_api.crd import main, stale

ROOT = Path(__file__).parents[3]
generated = cache(crd.generated)


def test_fresh() -> None:
    assert stale(ROOT, generated()) == [], "run `make crds`"


def test_check_names_a_stale_file_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crd, "generated", generated)
    assert main([str(tmp_path)]) == 0
    assert stale(tmp_path, generated()) == []
    page = tmp_path / "docs" / "reference" / "reasons.md"
    page.write_text("old")
    capsys.readouterr()
    assert main([str(tmp_path), "--check"]) == 1
    assert capsys.readouterr().err == "docs/reference/reasons.md is stale: run `make crds`\n"
    assert page.read_text() == "old"
    assert stale(tmp_path, generated()) == ["docs/reference/reasons.md"]
