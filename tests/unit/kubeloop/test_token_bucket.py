"""A pod that flips what it says costs no more Events, status writes and looks than a stated rate, whatever it flips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from kubeloop.queue import (
    EDIT_WRITES,
    EVENT_BURST,
    EVENT_SECONDS,
    STEP_BURST,
    STEP_SECONDS,
    WRITE_BURST,
    WRITE_SECONDS,
    Bucket,
)
from llmservice_operator.readers.pod_port import Unreadable
from llmservice_operator.service.state_poller import INTERVAL
from llmservice_operator.service.status import events
from llmservice_runtime.contract import AdapterState, Phase, State, Transfer, TransferStep

from tests.unit.operator.test_state_poller import KEY, ask, running
from tests.unit.reconcile_world import World, parent

HOUR = 3600.0


def test_a_bucket() -> None:
    bucket = Bucket(3, 10.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.wait(0.0) == 10.0
    assert [bucket.take(now) for now in (9.0, 10.0, 11.0, 20.0)] == [False, True, False, True]
    assert [bucket.take(HOUR) for _ in range(4)] == [True, True, True, False]
    bucket.give(2)
    assert [bucket.take(HOUR) for _ in range(3)] == [True, True, False]


SERVING = State(Phase.SERVING, started=True, adapters_hash="h")
LOADING = State(Phase.LOADING)
FETCHING = State(Phase.FETCHING, transfer=Transfer("model", TransferStep.LISTING))

FLIPS: dict[str, Callable[[int], State | Unreadable]] = {
    "phase": lambda n: LOADING if n % 2 else State(Phase.SMOKE),
    "started": lambda n: replace(SERVING, started=bool(n % 2)),
    "ready": lambda n: replace(SERVING, ready=bool(n % 2)),
    "artifact of the transfer": lambda n: replace(FETCHING, transfer=Transfer(f"a-{n}", TransferStep.LISTING)),
    "step of the transfer": lambda n: replace(
        FETCHING, transfer=Transfer("model", (TransferStep.LISTING, TransferStep.WAITING)[n % 2])
    ),
    "messages of adapters": lambda n: replace(SERVING, adapters=(AdapterState("a", False, str(n)),)),
    "digest of the adapters": lambda n: replace(SERVING, adapters_hash=str(n)),
    "whether it answers at all": lambda n: LOADING if n % 4 == 3 else Unreadable("shy"),
}


@pytest.mark.parametrize("flips", FLIPS)
async def test_what_pods_flip_reaches_decisions_at_a_bounded_rate(flips: str) -> None:
    pods = 4
    async with running() as world:
        world.want(*(ask(f"x-{pod}") for pod in range(pods)))
        for number in range(int(400 / INTERVAL)):
            for pod in range(pods):
                world.answers[f"x-{pod}"] = FLIPS[flips](number + pod)
            await world.after(INTERVAL)
        assert world.woken() <= STEP_BURST + 400 / STEP_SECONDS + 1


async def test_the_last_report_is_passed_on() -> None:
    async with running() as world:
        world.want(ask("x-0"), ask("x-1"))
        for number in range(2 * STEP_BURST):
            world.answers["x-0"] = FLIPS["phase"](number)
            world.answers["x-1"] = FLIPS["started"](number)
            await world.after(INTERVAL)
        world.answers |= {"x-0": SERVING, "x-1": SERVING}
        for _ in range(10):
            await world.after(INTERVAL)
        assert {name: r.state and r.state.started for name, r in world.state_poller.reports(KEY).items()} == {
            "x-0": True,
            "x-1": True,
        }
        assert world.metrics.rate_limited.labels("report")._value.get() > 0


async def test_what_flips_back_before_it_is_passed_on_is_none() -> None:
    async with running() as world:
        world.want(ask())
        world.answers["x-0"] = LOADING
        await world.after()
        service = world.state_poller._services[KEY]
        while service.steps.take(world.now):
            pass
        world.woken()
        world.answers["x-0"] = SERVING
        await world.after(INTERVAL)
        world.answers["x-0"] = LOADING
        for _ in range(10):
            await world.after(INTERVAL)
        assert world.woken() == 0


async def test_an_ordinary_start_is_passed_on_step_by_step() -> None:
    """Two artifacts, three steps each, and the phases, of four pods."""
    steps = [Transfer(artifact, step) for artifact in ("model", "draft") for step in TransferStep]
    life = [*(replace(FETCHING, transfer=step) for step in steps), LOADING, SERVING]
    async with running() as world:
        world.want(*(ask(f"x-{pod}") for pod in range(4)))
        for state in life:
            world.answers |= {f"x-{pod}": state for pod in range(4)}
            await world.after(INTERVAL)
            assert world.woken() == 4


class Flipping(World):
    """A service whose status is another at each pass."""

    async def for_an_hour(self, *, every: float = 3.0) -> tuple[int, int]:
        """How many statuses and Events were written, and no request for those that were not."""
        statuses = events = 0
        until = self.now + HOUR
        while self.now < until:
            self.deciding.more["flips"] = self.now
            await self.reconcile()
            statuses += self.calls().count("status")
            events += self.calls().count("event Told")
            assert "status" in self.calls() or self.calls() == []
            self.now += every
        return statuses, events


async def test_status_writes_and_events_of_a_flood_are_bounded_and_the_last_status_is_written() -> None:
    world = Flipping(parent())
    statuses, events = await world.for_an_hour()
    assert statuses == pytest.approx(WRITE_BURST + HOUR / WRITE_SECONDS, abs=2)
    assert events == pytest.approx(EVENT_BURST + HOUR / EVENT_SECONDS, abs=2)
    limited = world.ctx.metrics.rate_limited
    assert limited.labels("status")._value.get() > 0
    assert limited.labels("event")._value.get() == statuses - events
    world.deciding.more["flips"] = "the last"
    then = await world.reconcile()
    while then.after is not None:
        world.now += then.after
        then = await world.reconcile()
    assert world.status["flips"] == "the last"
    await world.for_an_hour()
    for generation in range(2, 5):
        world.edit({"model": {"uri": f"hf://a/b-{generation}"}})
        for number in range(EDIT_WRITES):
            world.deciding.more["flips"] = f"{generation} {number}"
            await world.reconcile()
            assert world.calls().count("status") == 1, "an edit is reported at once, whatever was before"


def test_many_adapters_that_fail_share_an_event() -> None:
    failing = [{"name": f"a-{n}", "loaded": False, "message": f"no {n}"} for n in range(64)]
    found = events({}, {"adapters": failing})
    assert len(found) == 4
    assert found[0].message == "Adapter a-0: no 0"
    assert found[-1].message.startswith("61 more adapters are not served; status.adapters says why: a-3, a-4")
    assert events({"adapters": failing}, {"adapters": failing}) == ()
