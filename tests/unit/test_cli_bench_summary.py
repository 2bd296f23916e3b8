"""From rows to figures: percentiles, rates over the makespan, failures by kind."""

import statistics

import pytest
from llmservice_cli.bench.summary import summarize
from llmservice_cli.bench.traffic import ANSWERED, INTERRUPTED, Row
from llmservice_cli.load.figures import percentile, spread


def row(index: int, outcome: str = ANSWERED, *, arrival: float = 0.0, ended: float = 1.0, tokens: int = 8) -> Row:
    return Row(
        index=index,
        arrival=arrival,
        sent=arrival + 0.25,
        outcome=outcome,
        first_token=arrival + 0.5,
        ended=ended,
        output_tokens=tokens,
        asked_tokens=8,
    )


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        pytest.param([5.0], 50, 5.0, id="one value is every percentile"),
        pytest.param([5.0], 99, 5.0, id="also the last"),
        pytest.param([1.0, 2.0], 50, 1.5, id="between neighbours"),
        pytest.param([0.0, 10.0], 95, 9.5, id="in proportion"),
        pytest.param([1.0, 2.0, 3.0, 4.0, 5.0], 50, 3.0, id="the middle"),
        pytest.param([1.0, 2.0, 3.0, 4.0, 5.0], 100, 5.0, id="the longest"),
        pytest.param([1.0, 2.0, 3.0, 4.0, 5.0], 0, 1.0, id="the shortest"),
    ],
)
def test_percentile(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == pytest.approx(expected)


def test_percentiles_are_the_standard_librarys() -> None:
    values = sorted((index * 7919) % 101 / 10 for index in range(60))
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (50, 95, 99):
        assert percentile(values, percent) == pytest.approx(cuts[percent - 1])


def test_a_summary_counts_from_arrival_and_over_the_makespan() -> None:
    rows = [row(1, arrival=2.0, ended=4.0, tokens=30), row(0, arrival=0.0, ended=1.0, tokens=10)]
    summary = summarize(2, rows)
    assert (summary.answered, summary.failed, summary.not_sent, summary.makespan) == (2, 0, 0, 4.0)
    assert summary.requests_per_second == pytest.approx(0.5)
    assert summary.output_tokens_per_second == pytest.approx(10.0)
    assert summary.latency is not None
    assert (summary.latency.mean, summary.latency.longest) == (1.5, 2.0)
    assert summary.ttft is not None
    assert summary.ttft.percentiles == {50: 0.5, 95: 0.5, 99: 0.5}
    assert summary.held_back is not None
    assert summary.held_back.longest == 0.25


def test_failures_are_counted_by_kind_and_their_times_are_not() -> None:
    rows = [row(0), row(1, "503", ended=90.0), row(2, "503"), row(3, "aborted"), row(4, INTERRUPTED)]
    summary = summarize(8, rows)
    assert summary.failures == {"503": 2, "aborted": 1}
    assert (summary.answered, summary.interrupted, summary.not_sent) == (1, 1, 3)
    assert (summary.makespan, summary.output_tokens) == (1.0, 8)


def test_answers_that_are_shorter_than_asked_are_told() -> None:
    assert summarize(2, [row(0), row(1, tokens=3)]).shorter_than_asked == 1


def test_nothing_answered_has_no_times() -> None:
    summary = summarize(1, [row(0, "503")])
    assert (summary.latency, summary.ttft, summary.requests_per_second) == (None, None, 0.0)
    assert spread([]) is None
