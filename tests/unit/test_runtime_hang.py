"""A hung engine is found; an idle, a busy and a slowly prefilling one are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from llmservice_runtime.contract import FailureReason, Phase
from llmservice_runtime.hang import MOVING, RUNNING, Counts, Sample, Thresholds, Verdict, Watch, parse_metrics, sample

from tests.unit.runtime_harness import supervised

LIMITS = Thresholds(unready=30, restart=90)
STILL = (1.0, 2.0)
METRICS = Path(__file__).parent / "fixtures" / "vllm_metrics.txt"


def verdicts(samples: list[Sample], thresholds: Thresholds = LIMITS, every: float = 5) -> list[Verdict]:
    """What is said of samples that come at even times."""
    watch, found = Watch(0.0), []
    for number, seen in enumerate(samples, start=1):
        watch = watch.seen(seen, number * every)
        found.append(watch.verdict(thresholds, number * every))
    return found


@pytest.mark.parametrize(
    ("samples", "last"),
    [
        pytest.param([Sample(False, STILL)] * 1000, Verdict.HEALTHY, id="idle for ever"),
        pytest.param([Sample(True, (float(n),)) for n in range(1000)], Verdict.HEALTHY, id="busy for ever"),
        pytest.param([Sample(True, STILL)] * 6, Verdict.HEALTHY, id="still for 25 s"),
        pytest.param([Sample(True, STILL)] * 7, Verdict.UNREADY, id="still for 30 s"),
        pytest.param([Sample(True, STILL)] * 24, Verdict.UNREADY, id="still for 115 s"),
        pytest.param([Sample(True, STILL)] * 25, Verdict.RESTART, id="still for 120 s"),
        pytest.param([Sample(True, STILL)] * 7 + [Sample(True, (2.0, 2.0))], Verdict.HEALTHY, id="moves again"),
        pytest.param([Sample(True, STILL)] * 7 + [Sample(False, STILL)], Verdict.HEALTHY, id="its clients left"),
        pytest.param([Sample(False, STILL)] * 99 + [Sample(True, STILL)] * 6, Verdict.UNREADY, id="hangs after idling"),
        pytest.param([Sample(True, None)] * 6, Verdict.UNREADY, id="does not answer"),
        pytest.param([Sample(True, None)] * 24, Verdict.RESTART, id="does not answer for long"),
        pytest.param([Sample(True, STILL), Sample(True, None)] * 10, Verdict.UNREADY, id="hangs, answers at times"),
    ],
)
def test_verdict(samples: list[Sample], last: Verdict) -> None:
    assert verdicts(samples)[-1] is last


@pytest.mark.parametrize(
    ("thresholds", "last"),
    [
        pytest.param(Thresholds(0, 90), Verdict.HEALTHY, id="off"),
        pytest.param(Thresholds(30, 0), Verdict.UNREADY, id="never restarted"),
    ],
)
def test_thresholds_can_be_switched_off(thresholds: Thresholds, last: Verdict) -> None:
    assert verdicts([Sample(True, STILL)] * 1000, thresholds)[-1] is last


@pytest.mark.parametrize(
    ("running", "counts", "busy"),
    [
        pytest.param(0, Counts(0, 0), False, id="idle"),
        pytest.param(2, Counts(2, 0), True, id="streams run"),
        pytest.param(0, Counts(1, 1), True, id="a request waits for its first byte"),
        pytest.param(0, Counts(3, 0), False, id="slow uploads and slow readers"),
        pytest.param(1, Counts(0, 0), False, id="an old number without requests"),
        pytest.param(1, Counts(0, None), True, id="no middleware: the engine's word counts"),
        pytest.param(0, Counts(0, None), False, id="no middleware, idle"),
    ],
)
def test_busy(running: int, counts: Counts, busy: bool) -> None:
    assert sample({RUNNING: float(running)}, counts).busy is busy


def test_without_statistics_nothing_is_judged() -> None:
    assert sample({}, Counts(5, 5)).busy is False


def test_no_answer_is_no_movement() -> None:
    assert sample(None, Counts()) == Sample(True, None)


def test_vllms_page_holds_what_is_looked_for() -> None:
    found = parse_metrics(METRICS.read_text())
    assert set(MOVING) == set(found)
    assert found["vllm:generation_tokens_total"] == 3
    assert found["vllm:request_success_total"] == 1


async def test_a_hung_server_goes_unready_and_is_ended(tmp_path: Path) -> None:
    async with supervised(tmp_path, hang_unready_seconds=0.5, hang_restart_seconds=1.0) as server:
        await server.ready()
        waiting = server.hold("@hang")
        await server.until(lambda state: not state.ready and state.phase is Phase.SERVING)
        assert await server.ended() == 1
        waiting.cancel()
        failure = server.failure()
        assert failure is not None
        assert failure.reason is FailureReason.ENGINE_HUNG


async def test_a_long_prefill_is_no_hang(tmp_path: Path) -> None:
    async with supervised(tmp_path, hang_unready_seconds=0.4, hang_restart_seconds=0.4) as server:
        await server.ready()
        waiting = server.hold("@slow:60")
        for _ in range(15):
            assert await server.probe("/readyz") == 200
            assert not waiting.done()
            await server.passed(0.1)
        waiting.cancel()
