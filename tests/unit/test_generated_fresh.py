"""Generated files are fresh."""

from pathlib import Path

import pytest
from llmservice_operator.api import crd
from llmservice_operator.api.crd import generated, main, stale

ROOT = Path(__file__).parents[2]
FILES = generated()


@pytest.mark.parametrize("name", sorted(FILES))
def test_fresh(name: str) -> None:
    assert stale(ROOT, {name: FILES[name]}) == [], "run `make crds`"


def test_check_names_a_stale_file_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crd, "generated", lambda: FILES)
    assert main([str(tmp_path)]) == 0
    assert stale(tmp_path, FILES) == []
    page = tmp_path / "docs" / "reference" / "reasons.md"
    page.write_text("old")
    capsys.readouterr()
    assert main([str(tmp_path), "--check"]) == 1
    assert capsys.readouterr().err == "docs/reference/reasons.md is stale: run `make crds`\n"
    assert page.read_text() == "old"
    assert stale(tmp_path, FILES) == ["docs/reference/reasons.md"]
