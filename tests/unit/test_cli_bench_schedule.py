"""When a client that makes batches sends the next one."""

import pytest
from llmservice_cli.bench.schedule import Batch, next_batch

ARRIVALS = [0.0, 1.0, 2.0, 3.0, 4.0]
STATIC = None


@pytest.mark.parametrize(
    ("window", "first", "free_at", "size", "expected"),
    [
        pytest.param(STATIC, 0, 0.0, 2, Batch(0, 2, 1.0), id="static waits until the batch is full"),
        pytest.param(STATIC, 2, 2.5, 2, Batch(2, 4, 3.0), id="static, free before it is full"),
        pytest.param(STATIC, 2, 9.0, 2, Batch(2, 4, 9.0), id="static, full before it is free"),
        pytest.param(STATIC, 4, 4.2, 2, Batch(4, 5, 4.2), id="static, the last one is what is left"),
        pytest.param(STATIC, 0, 0.0, 9, Batch(0, 5, 4.0), id="static, fewer than a batch"),
        pytest.param(0.5, 0, 0.0, 4, Batch(0, 1, 0.5), id="dynamic, the window ends first"),
        pytest.param(5.0, 0, 0.0, 2, Batch(0, 2, 1.0), id="dynamic, full first"),
        pytest.param(2.5, 0, 0.0, 9, Batch(0, 3, 2.5), id="dynamic takes all that are there"),
        pytest.param(0.5, 1, 3.6, 9, Batch(1, 4, 3.6), id="dynamic, busy beyond the window: at once"),
        pytest.param(0.5, 1, 9.0, 2, Batch(1, 3, 9.0), id="dynamic never takes more than a batch"),
        pytest.param(9.0, 3, 3.0, 8, Batch(3, 5, 4.0), id="dynamic does not wait when nobody comes any more"),
        pytest.param(STATIC, 0, 0.0, 1, Batch(0, 1, 0.0), id="batches of one"),
    ],
)
def test_next_batch(window: float | None, first: int, free_at: float, size: int, expected: Batch) -> None:
    assert next_batch(ARRIVALS, first, free_at, size, window) == expected


@pytest.mark.parametrize("window", [STATIC, 0.1, 10.0], ids=["static", "short window", "long window"])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_request_is_in_one_batch_and_none_before_it_arrived(window: float | None, size: int) -> None:
    first, free_at = 0, 0.0
    seen: list[int] = []
    while first < len(ARRIVALS):
        batch = next_batch(ARRIVALS, first, free_at, size, window)
        assert batch.first == first
        assert 0 < batch.end - batch.first <= size
        assert batch.start >= max(free_at, ARRIVALS[batch.end - 1])
        seen += range(batch.first, batch.end)
        first, free_at = batch.end, batch.start + 0.7
    assert seen == list(range(len(ARRIVALS)))
