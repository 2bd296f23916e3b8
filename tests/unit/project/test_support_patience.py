"""Waits of tests: what takes longer than usual says what the machine did, and only a hang fails."""

from __future__ import annotations

import pytest

from tests.support import cluster
from tests.support.cluster import eventually
from tests.support.patience import ALONE, SLOWNESS, at_most


def test_what_takes_longer_than_usual_passes_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    looks = iter(["", "", "here"])
    assert eventually("it comes", lambda: next(looks), timeout=0.0) == "here"
    assert "more than 0 s: it comes; load " in capsys.readouterr().out


def test_a_hang_ends_with_what_was_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "at_most", lambda usual: usual + 0.1)
    with pytest.raises(AssertionError, match=r"not within 0 s: it comes; last seen: ''; after 0 s: load "):
        eventually("it comes", lambda: "", timeout=0.0)


def test_a_limit_is_never_below_two_minutes_and_grows_with_what_is_usual() -> None:
    assert at_most(1) == ALONE * SLOWNESS
    assert at_most(600) == 600 * SLOWNESS
    assert 1 <= SLOWNESS <= 5
