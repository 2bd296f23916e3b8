"""A flame graph that is kept says what it shows, and nothing of the machine that made it."""

from pathlib import Path

from benchmarks.scale.process import PROFILE_TITLE, retitle

KEPT = Path(__file__).parents[3] / "docs/scale-profile.svg"


def test_the_title_takes_the_place_of_the_command(tmp_path: Path) -> None:
    profile = tmp_path / "profile.svg"
    profile.write_text("<text>/home/a/bin/py-spy record --pid 1</text><title>main (2 samples)</title>")
    retitle(profile, "/home/a/bin/py-spy record --pid 1")
    assert profile.read_text() == f"<text>{PROFILE_TITLE}</text><title>main (2 samples)</title>"


def test_the_kept_profile() -> None:
    text = KEPT.read_text()
    assert PROFILE_TITLE in text
    assert "py-spy record" not in text
    assert "/reconcile.py" in text, "as its modules were called when it was drawn"
