"""What grew in a soak is told, and what may grow is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from llmservice_operator.service.metrics import Metrics

from tests.chaos.usage import ALLOWED, ROUNDS, SERVICES, Usage, grown

BEFORE = Usage(memory_mib=100.0, tasks=40, series=200, descriptors=30)


@pytest.mark.parametrize(
    ("after", "told"),
    [
        pytest.param(BEFORE, [], id="the same"),
        pytest.param(replace(BEFORE, memory_mib=110.0, tasks=42, series=205, descriptors=33), [], id="a little more"),
        pytest.param(replace(BEFORE, memory_mib=50.0, tasks=1, series=1, descriptors=1), [], id="less"),
        pytest.param(replace(BEFORE, memory_mib=130.0), ["memory_mib"], id="memory"),
        pytest.param(replace(BEFORE, tasks=60), ["tasks"], id="a task a service"),
        pytest.param(replace(BEFORE, series=260), ["series"], id="a series a service"),
        pytest.param(replace(BEFORE, descriptors=90), ["descriptors"], id="a connection a service"),
        pytest.param(Usage(200.0, 100, 400, 100), ["memory_mib", "tasks", "series", "descriptors"], id="everything"),
    ],
)
def test_what_grew(after: Usage, told: list[str]) -> None:
    assert [line.partition(":")[0] for line in grown(BEFORE, after)] == told


def test_one_thing_a_service_is_always_more_than_is_allowed() -> None:
    assert max(ALLOWED.tasks, ALLOWED.series, ALLOWED.descriptors) < ROUNDS * SERVICES


def test_the_operator_says_what_it_holds() -> None:
    metrics = Metrics()
    one = Usage.of(metrics.exposition().decode())
    assert one.memory_mib > 1
    assert one.descriptors > 1
    metrics.tasks.set(one.tasks + 1)
    for number in range(7):
        metrics.streams_ended.labels("ns", f"s-{number}").inc()
    other = Usage.of(metrics.exposition().decode())
    assert other.tasks == one.tasks + 1
    assert other.series >= one.series + 7
