"""Looks for garbage among all objects: none while services wait, and none left to Python."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from kubeloop import garbage
from kubeloop.garbage import INTERVAL, MAX_INTERVAL, YOUNG_THRESHOLD, collect_while_idle


class Over(Exception):
    """Enough of a task that never ends."""


class Time:
    def __init__(self, until: float) -> None:
        self.now, self.until = 0.0, until

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self.until:
            raise Over


CASES: dict[str, tuple[tuple[float, float], list[float]]] = {
    "never busy": ((0, 0), [INTERVAL, 2 * INTERVAL, 3 * INTERVAL]),
    "busy when it is time": ((INTERVAL - 1, INTERVAL + 5), [INTERVAL + 5, 2 * INTERVAL + 5]),
    "always busy": ((0, 10 * MAX_INTERVAL), [MAX_INTERVAL, 2 * MAX_INTERVAL]),
}


@pytest.mark.parametrize("case", CASES)
async def test_all_objects_are_looked_at_now_and_then_while_nothing_waits(case: str) -> None:
    (busy_from, busy_until), expected = CASES[case]
    time, found = Time(until=expected[-1] + 1), list[float]()
    with pytest.raises(Over):
        await collect_while_idle(
            lambda: not busy_from <= time.now < busy_until,
            clock=time.clock,
            sleep=time.sleep,
            collect=lambda: found.append(time.now),
        )
    assert found == expected


@pytest.fixture
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def looks() -> tuple[int, int]:
    """At new objects, and at all."""
    stats = gc.get_stats()
    return stats[0]["collections"], stats[2]["collections"]


@pytest.mark.usefixtures("as_before")
def test_python_leaves_old_objects_alone() -> None:
    garbage.begin()
    young, old = looks()
    # Python's own rule would have it look at all of them: they become many more than there were.
    kept = [[number] for number in range(YOUNG_THRESHOLD * 150)]
    assert looks()[0] > young + 100
    assert looks()[1] == old
    assert kept


@pytest.mark.usefixtures("as_before")
def test_garbage_is_found_among_what_lived_at_the_last_look() -> None:
    class Cyclic:
        def __init__(self) -> None:
            self.me = self

    it = Cyclic()
    gone = weakref.ref(it)
    garbage.collect()
    del it
    assert gone() is not None
    garbage.collect()
    assert gone() is None
