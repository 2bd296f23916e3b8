"""The figures of a bench against those that vLLM's own `vllm bench serve` computes of the same moments."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from llmservice_cli.bench.result import TIMES, Slo, Time, labelled, vllm_figures
from llmservice_cli.bench.traffic import ANSWERED, RequestRecord

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

SLOS: Mapping[str, Mapping[Time, float]] = {
    "none": {},
    "ttft": {Time.TTFT: 0.2},
    "all": {Time.TTFT: 0.3, Time.TPOT: 0.05, Time.E2EL: 0.9},
    "nobody": {Time.E2EL: 0.0},
}


def answered(index: int, moments: Sequence[float], tokens: int | None = None) -> RequestRecord:
    """Sent at the first moment; a piece of the answer at each of the others."""
    sent, *pieces = moments
    return RequestRecord(
        index,
        arrival=sent - 0.5,
        sent=sent,
        outcome=ANSWERED,
        first_token=pieces[0],
        last_token=pieces[-1],
        ended=pieces[-1] + 0.001,
        prompt_tokens=7 + index,
        output_tokens=tokens or len(pieces),
        pieces=pieces,
    )


def drawn(count: int) -> Sequence[RequestRecord]:
    chance = random.Random(1)
    rows = []
    for index in range(count):
        moments = [chance.uniform(0, 20)]
        for _ in range(chance.choice((1, 2, 8, 40))):
            moments.append(moments[-1] + chance.expovariate(30))
        rows.append(answered(index, [moments[0], *(moment + 0.05 for moment in moments[1:])]))
    return rows


LOADS: Mapping[str, Sequence[RequestRecord]] = {
    "many": drawn(150),
    "one": [answered(0, (1.0, 1.25, 1.5, 2.0))],
    "one token each": [answered(index, (1.0, 1.5 + index)) for index in range(3)],
    "several tokens in a piece": [answered(0, (1.0, 1.5, 2.0), 9), answered(1, (1.0, 1.1), 4)],
    "some failed": [
        *drawn(5),
        RequestRecord(5, 0.0, 0.1, "503", ended=30.0),
        RequestRecord(6, 0.0, 0.1, "interrupted"),
    ],
    "all failed": [RequestRecord(0, 0.0, 0.1, "503", ended=2.0)],
}


def theirs(rows: Sequence[RequestRecord], seconds: float, limits: Mapping[Time, float]) -> Any:
    """By vLLM's own code."""
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
    from vllm.benchmarks.serve import calculate_metrics

    outputs = []
    for row in rows:
        output = RequestFuncOutput(success=row.is_answered, start_time=row.sent)
        if row.is_answered:
            # What async_request_openai_completions writes down.
            output.ttft = row.pieces[0] - row.sent
            output.itl = [after - before for before, after in zip(row.pieces, row.pieces[1:], strict=False)]
            output.latency = row.pieces[-1] - row.sent
            output.output_tokens, output.prompt_len = row.output_tokens, row.prompt_tokens
        outputs.append(output)
    goodput = {str(name): seconds * 1000 for name, seconds in limits.items()}
    return calculate_metrics([], outputs, seconds, None, [99.0], goodput)[0]


# Figures depend on the load, goodput on the objective too.
CASES = [*((load, "all") for load in LOADS), *(("some failed", objective) for objective in SLOS if objective != "all")]


@pytest.mark.parametrize(("load", "objective"), CASES)
def test_every_figure_is_that_of_vllm(load: str, objective: str) -> None:
    rows, limits = LOADS[load], SLOS[objective]
    ours = vllm_figures(rows, Slo(limits, 0.99))
    duration = ours["duration"]
    assert duration is not None
    metrics = theirs(rows, duration, limits)
    expected = {
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input,
        "total_output_tokens": metrics.total_output,
        "request_throughput": metrics.request_throughput,
        # Without an objective all requests meet it; vLLM's result file has null then.
        "request_goodput": metrics.request_goodput if limits else metrics.request_throughput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
    }
    for name in TIMES:
        expected |= {f"{what}_{name}_ms": getattr(metrics, f"{what}_{name}_ms") for what in ("mean", "median", "std")}
        expected[f"p99_{name}_ms"] = dict(getattr(metrics, f"percentiles_{name}_ms"))[99.0]
    assert set(ours) == {*expected, "duration"}
    for name, value in expected.items():
        # vLLM has 0 where there is nothing to measure, and this has null.
        assert (ours[name] or 0) == pytest.approx(value, rel=1e-12, abs=1e-12), name


def test_the_names_are_those_of_vllms_result_file_and_report() -> None:
    import inspect

    from vllm.benchmarks import serve

    source = inspect.getsource(serve)
    figures = vllm_figures(LOADS["many"], Slo(SLOS["all"], 0.99))
    made = {f"{what}_{name}_ms" for name in TIMES for what in ("mean", "median", "std", "p99")}
    for name in set(figures) - made:
        assert f'"{name}":' in source, name
    for template in ('f"mean_{metric_attribute_name}_ms"', 'f"p{p_word}_{metric_attribute_name}_ms"'):
        assert template in source
    for label, _ in labelled(figures):
        known = label.split()[0] in ("Mean", "Median", "P99") and label.split()[1] in map(str.upper, TIMES)
        assert known or f'"{label}:"' in source, label


def test_a_saved_load_is_one_of_vllms_custom_data_sets() -> None:
    """vLLM reads it with pandas, which the test group does not have: the names of its columns are compared."""
    import inspect

    from llmservice_cli.bench.command import lines_of
    from llmservice_cli.bench.traffic import LoadOptions, make_load
    from vllm.benchmarks.datasets.datasets import CustomDataset

    source = inspect.getsource(CustomDataset)
    saved = lines_of(make_load(LoadOptions(3, None, 1, (8,), (4,))))
    for name in ("prompt", "output_tokens"):
        assert f'item["{name}"]' in source
        assert saved.count(f'"{name}": ') == 3
