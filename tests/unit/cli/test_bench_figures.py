"""A bench without a server: the load that its options make, when batches are sent, and the figures of its rows."""

import statistics
from dataclasses import replace

import pytest
from llmservice_cli.bench.result import Slo, Time, slo_of, summarize, vllm_figures
from llmservice_cli.bench.traffic import ANSWERED, INTERRUPTED, Batch, LoadOptions, RequestRecord, make_load, next_batch
from llmservice_cli.errors import BadInput
from llmservice_cli.load.figures import percentile, spread

OPTIONS = LoadOptions(requests=200, rate=10.0, seed=1, prompt_words=(8, 32), output_tokens=(8, 8, 8, 128))


def test_a_seed_is_pinned() -> None:
    """Results of different versions are compared by their seed."""
    load = make_load(OPTIONS)
    assert [round(each.arrival, 6) for each in load[:4]] == [0.0, 0.081353, 0.196644, 0.319788]
    assert [each.output_tokens for each in load[:4]] == [128, 128, 8, 8]
    assert load[0].prompt == "when of that was this with in in"
    assert make_load(replace(OPTIONS, requests=50)) == load[:50], "a longer load begins like a shorter one"


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"seed": 2}, ["arrival", "prompt", "output_tokens"]),
        ({"rate": 20.0}, ["arrival"]),
        ({"output_tokens": (4, 4, 4, 64)}, ["output_tokens"]),
        ({"prompt_words": (4, 16)}, ["prompt"]),
    ],
    ids=str,
)
def test_an_option_changes_what_it_names_and_nothing_else(changed: dict[str, object], names: list[str]) -> None:
    before, after = make_load(OPTIONS), make_load(replace(OPTIONS, **changed))  # type: ignore[arg-type]
    of_all = {name: [getattr(each, name) for each in before] for name in ("arrival", "prompt", "output_tokens")}
    assert {name for name, values in of_all.items() if values != [getattr(each, name) for each in after]} == set(names)


def test_arrivals_come_at_the_rate_and_lengths_from_the_lists() -> None:
    load = make_load(replace(OPTIONS, requests=2000))
    assert load[0].arrival == 0.0
    assert 2000 / load[-1].arrival == pytest.approx(10.0, rel=0.1)
    assert {len(each.prompt.split()) for each in load} == {8, 32}
    long = sum(1 for each in load if each.output_tokens == 128)
    assert long / len(load) == pytest.approx(0.25, abs=0.05)


ARRIVALS = [0.0, 1.0, 2.0, 3.0, 4.0]
STATIC = None
BATCHES = {
    # window, first request, free at, size of a batch
    "static waits until the batch is full": ((STATIC, 0, 0.0, 2), Batch(0, 2, 1.0)),
    "static, free before it is full": ((STATIC, 2, 2.5, 2), Batch(2, 4, 3.0)),
    "static, full before it is free": ((STATIC, 2, 9.0, 2), Batch(2, 4, 9.0)),
    "static, the last one is what is left": ((STATIC, 4, 4.2, 2), Batch(4, 5, 4.2)),
    "static, fewer than a batch": ((STATIC, 0, 0.0, 9), Batch(0, 5, 4.0)),
    "dynamic, the window ends first": ((0.5, 0, 0.0, 4), Batch(0, 1, 0.5)),
    "dynamic, full first": ((5.0, 0, 0.0, 2), Batch(0, 2, 1.0)),
    "dynamic takes all that have arrived": ((2.5, 0, 0.0, 9), Batch(0, 3, 2.5)),
    "dynamic, busy beyond the window": ((0.5, 1, 3.6, 9), Batch(1, 4, 3.6)),
    "dynamic never takes more than a batch": ((0.5, 1, 9.0, 2), Batch(1, 3, 9.0)),
    "dynamic does not wait after the last arrival": ((9.0, 3, 3.0, 8), Batch(3, 5, 4.0)),
}


@pytest.mark.parametrize(("state", "expected"), BATCHES.values(), ids=BATCHES)
def test_next_batch(state: tuple[float | None, int, float, int], expected: Batch) -> None:
    window, first, free_at, size = state
    assert next_batch(ARRIVALS, first, free_at, size, window) == expected


@pytest.mark.parametrize("window", [STATIC, 0.1, 10.0], ids=["static", "short window", "long window"])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_every_request_is_in_one_batch_and_none_before_it_arrived(window: float | None, size: int) -> None:
    first, free_at = 0, 0.0
    while first < len(ARRIVALS):
        batch = next_batch(ARRIVALS, first, free_at, size, window)
        assert (batch.first, 0 < batch.end - batch.first <= size) == (first, True)
        assert batch.start >= max(free_at, ARRIVALS[batch.end - 1])
        first, free_at = batch.end, batch.start + 0.7
    assert first == len(ARRIVALS)


def row(
    index: int, outcome: str = ANSWERED, *, arrival: float = 0.0, ended: float = 1.0, tokens: int = 8
) -> RequestRecord:
    sent, first_token = arrival + 0.25, arrival + 0.5
    found = RequestRecord(index, arrival, sent, outcome, output_tokens=tokens, asked_tokens=8)
    return replace(found, first_token=first_token, ended=ended)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([5.0], 50, 5.0), ([5.0], 99, 5.0), ([1.0, 2.0], 50, 1.5), ([0.0, 10.0], 95, 9.5), ([1.0, 2.0, 3.0], 100, 3.0)],
)
def test_percentile(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == pytest.approx(expected)


def test_percentiles_are_the_standard_librarys() -> None:
    values = sorted((index * 7919) % 101 / 10 for index in range(60))
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (50, 95, 99):
        assert percentile(values, percent) == pytest.approx(cuts[percent - 1])


def test_a_summary_counts_from_arrival_and_over_the_makespan() -> None:
    summary = summarize(2, [row(1, arrival=2.0, ended=4.0, tokens=30), row(0, arrival=0.0, ended=1.0, tokens=10)])
    assert (summary.answered, summary.failed, summary.not_sent, summary.makespan) == (2, 0, 0, 4.0)
    assert (summary.requests_per_second, summary.output_tokens_per_second) == pytest.approx((0.5, 10.0))
    assert summary.latency is not None
    assert (summary.latency.mean, summary.latency.max) == (1.5, 2.0)
    first = summary.time_to_first_token
    assert first is not None
    assert (first.p50, first.p95, first.p99) == (0.5, 0.5, 0.5)
    assert summary.held_back is not None
    assert summary.held_back.max == 0.25


def test_failures_are_counted_by_kind_and_their_times_are_not() -> None:
    rows = [row(0, tokens=3), row(1, "503", ended=90.0), row(2, "503"), row(3, "aborted"), row(4, INTERRUPTED)]
    summary = summarize(8, rows)
    assert summary.failures == {"503": 2, "aborted": 1}
    assert (summary.answered, summary.interrupted, summary.not_sent) == (1, 1, 3)
    assert (summary.makespan, summary.output_tokens, summary.shorter_than_asked) == (1.0, 3, 1)


def test_nothing_answered_has_no_times() -> None:
    summary = summarize(1, [row(0, "503")])
    assert (summary.latency, summary.time_to_first_token, summary.requests_per_second) == (None, None, 0.0)
    assert spread([]) is None


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({Time.TTFT: 0.5}, 3),
        ({Time.TTFT: 0.49}, 0),
        ({Time.E2EL: 1.0}, 2),
        ({Time.TPOT: 0.1}, 2),
        ({Time.TTFT: 0.5, Time.TPOT: 0.1, Time.E2EL: 1.0}, 2),
        ({Time.TPOT: 0.01}, 1),
    ],
    ids=str,
)
def test_a_good_request_meets_every_limit_from_its_arrival(limits: dict[Time, float], good: int) -> None:
    """The third is slow, the fourth failed; the second has one token, and thus no time per token."""
    rows = [
        replace(row(0), last_token=1.0),
        replace(row(1), last_token=1.0, output_tokens=1),
        replace(row(2, arrival=5.0, ended=9.0), last_token=8.9),
        row(3, "503"),
    ]
    summary = summarize(5, rows, Slo(limits, 0.99))
    assert (summary.good, summary.good_share) == (good, good / 5)
    assert summary.goodput == pytest.approx(good / 9.0)


def test_a_client_that_sends_late_is_forgiven_by_vllms_definition_only() -> None:
    slo = Slo({Time.TTFT: 0.3}, 0.99)
    rows = [replace(row(0, arrival=1.0), sent=9.75, first_token=10.0, last_token=11.0, ended=11.0)]
    assert (vllm_figures(rows, slo)["request_goodput"], summarize(1, rows, slo).goodput) == (1 / 11.0, 0.0)


def test_what_was_not_measured_is_null_and_not_zero() -> None:
    found = vllm_figures([row(0, "503")])
    assert (found["completed"], found["failed"], found["request_throughput"]) == (0, 1, 0.0)
    assert {found[name] for name in ("request_goodput", "mean_ttft_ms", "p99_itl_ms", "median_tpot_ms")} == {None}
    assert vllm_figures([replace(row(0), prompt_tokens=None)])["total_token_throughput"] is None


@pytest.mark.parametrize(
    ("texts", "limits"),
    [
        (["ttft:500ms"], {Time.TTFT: 0.5}),
        (["ttft:500", "e2el:5s"], {Time.TTFT: 0.5, Time.E2EL: 5.0}),
        (["tpot:2.5ms", "tpot:50ms"], {Time.TPOT: 0.05}),
    ],
)
def test_an_objective(texts: list[str], limits: dict[Time, float]) -> None:
    assert slo_of(texts, 0.95) == Slo(limits, 0.95)
    assert slo_of([], 0.95) is None


@pytest.mark.parametrize("text", ["", "ttft", "ttft:", "itl:5ms", "ttft:-1ms", "ttft:nan", "ttft:5m", "ttft:1e3"])
def test_no_objective(text: str) -> None:
    with pytest.raises(BadInput, match="ttft, tpot or e2el"):
        slo_of([text], 0.95)
