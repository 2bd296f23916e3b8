"""Which loss belongs to which mark, and how long nobody was answered."""

from __future__ import annotations

import json
import random

import pytest
from llmservice_cli.load.answer import Loss
from llmservice_cli.probe import Mode
from llmservice_cli.probe.report import (
    Mark,
    ProbedRequest,
    stretches,
    tally,
)
from llmservice_cli.probe.sender import in_turn


def row(index: int, sent: float, ended: float, loss: str | None = None, attempts: int = 1) -> ProbedRequest:
    return ProbedRequest(index, Mode.STREAM_POOLED, sent, ended, loss, attempts=attempts)


ROWS = [
    row(0, 0.0, 1.0),
    row(1, 1.0, 2.5),  # under way at the first mark, and answered
    row(2, 1.5, 3.0, Loss.CUT),  # under way at it, and lost
    row(3, 2.1, 3.5, Loss.NOT_CONNECTED),  # sent after it, and lost
    row(4, 3.0, 4.5),
    row(5, 4.0, 6.0, Loss.ABORTED),  # sent before the second mark, lost after it
    row(6, 5.5, 6.5, attempts=2),
]
MARKS = [Mark("kill", 2.0), Mark("restart", 5.0)]


def test_a_loss_belongs_to_the_mark_before_its_end() -> None:
    kill, restart = stretches(ROWS, MARKS)
    assert (kill.mark.name, kill.in_flight, kill.lost_in_flight, kill.sent, kill.lost_later) == ("kill", 2, 1, 3, 1)
    assert (kill.ended.first_loss, kill.ended.last_loss) == (3.0, 3.5)
    assert dict(kill.ended.by_kind) == {"cut": 1, "not-connected": 1}
    assert (restart.in_flight, restart.lost_in_flight, restart.sent, restart.lost_later) == (1, 1, 1, 0)


def test_every_loss_after_the_first_mark_is_counted_once_in_any_order() -> None:
    found = stretches(ROWS, MARKS)
    assert sum(each.lost_in_flight + each.lost_later for each in found) == tally(ROWS).lost == 3
    assert stretches(random.Random(7).sample(ROWS, len(ROWS)), MARKS[::-1]) == found


def test_a_mark_after_the_last_answer_and_nothing_at_all() -> None:
    (late,) = stretches(ROWS, [Mark("late", 9.0)])
    assert (late.in_flight, late.sent, late.lost_later, late.ended.latency) == (0, 0, 0, None)
    assert stretches(ROWS, []) == []
    nothing = tally([])
    assert (nothing.sent, nothing.lost, nothing.longest_gap, nothing.latency) == (0, 0, 0.0, None)


def test_of_all() -> None:
    whole = tally(ROWS)
    assert (whole.sent, whole.complete, whole.retried) == (7, 4, 1)
    assert dict(whole.by_mode) == {"stream-pooled": 3}
    assert (whole.first_loss, whole.last_loss) == (3.0, 6.0)
    assert whole.longest_gap == 2.0  # from 2.5 to 4.5, and from 4.5 to 6.5


@pytest.mark.parametrize(
    ("moments", "began", "gap"), [([5.0], 0.0, 5.0), ([1.0], 0.0, 5.0), ([], 2.0, 4.0)], ids=["begin", "end", "all"]
)
def test_a_gap_at_either_end_counts(moments: list[float], began: float, gap: float) -> None:
    rows = [row(index, began, moment) for index, moment in enumerate(moments)]
    assert tally(rows, (began, 6.0)).longest_gap == gap


def test_a_row_comes_back_from_its_line() -> None:
    for given in ROWS:
        assert ProbedRequest.from_document({**json.loads(given.to_line()), "of a later version": 1}) == given


def test_every_mode_meets_every_length() -> None:
    met = {in_turn(list(Mode), [8, 32, 64], index) for index in range(12)}
    assert met == {(mode, tokens) for mode in Mode for tokens in (8, 32, 64)}
