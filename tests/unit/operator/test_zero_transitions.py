"""The operator's decisions beside an activator: each change of what a service asks for gets to its end, and an
activator that lags never says that it listens where it would refuse."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubeloop.resources import POD, Key
from llmservice_activator import targets
from llmservice_api.constants import LLMSERVICE
from llmservice_api.holding import HoldingReport

from tests.support.patience import PATIENCE
from tests.unit import decide_world
from tests.unit.activator.test_scaler_targets import World as Activator
from tests.unit.operator.decide_zero_world import ONE, TWO, a_world, follow, is_held, made, scale

X = Key("team-a", "x")
RECREATE = {"rollout": {"strategy": "Recreate"}}
HELD_IN_ROLLOUTS = {"holding": {"rollouts": True}}
TO_ZERO = {"autoscaling": {"minReplicas": 0, "maxReplicas": 4}}


@dataclass
class Together:
    """The operator of `decide_world`, and an activator that watches the same service."""

    operator: decide_world.World
    activator: Activator = field(default_factory=Activator)
    lags: bool = False
    """Its watches bring nothing."""
    refused_beside_slices: int = 0
    """Steps after which the slices led to an activator that refuses."""
    were_made: bool = False
    """The slices, at any time since replicas served alone."""
    version: int = 100

    async def step(self) -> None:
        await self.seen()
        report = HoldingReport(self.activator.targets.leads_here(X), is_held(self.operator))
        self.operator.holding = {ONE.address: report, TWO.address: report}
        self.operator.step()
        follow(self.operator)
        self.were_made = self.were_made or is_held(self.operator)
        target = self.activator.told.get(X)
        if is_held(self.operator) and not (target is not None and target.is_routed):
            self.refused_beside_slices += 1

    async def steps(self) -> None:
        for _ in range(5):
            await self.step()

    async def seen(self) -> None:
        self.version += 1
        if not self.lags:
            obj = copy.deepcopy(self.operator.obj)
            obj["metadata"]["resourceVersion"] = str(self.version)
            pods = [copy.deepcopy(pod) for pod in self.operator.pods.values()]
            known = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): "" for pod in pods}
            self.activator.services.updated(LLMSERVICE, obj)
            self.activator.services.listed(POD, None, known, "1")
            for pod in pods:
                self.activator.services.updated(POD, pod)
        await self.activator.settled()

    async def until(self, condition: Callable[[decide_world.World], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition(self.operator):
                await self.step()
                await asyncio.sleep(0.002)

    async def alone(self) -> None:
        """Until replicas serve, and the activator refuses what comes."""
        await self.steps()
        await self.until(lambda world: not is_held(world) and bool(made(world)))
        async with asyncio.timeout(PATIENCE):
            while (target := self.activator.told.get(X)) is not None and target.is_routed:
                await self.step()
                await asyncio.sleep(0.002)
        self.were_made = False


def edit(world: decide_world.World, replicas: int, **scaling: Any) -> None:
    world.edit(scaling={"replicas": replicas, **scaling})


def is_at_zero(world: decide_world.World) -> bool:
    return made(world) == 0 and is_held(world)


@pytest.fixture
async def together(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Together]:
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.05)
    found = Together(a_world())
    async with found.activator.running():
        yield found
    assert found.refused_beside_slices == 0


async def alone(together: Together) -> None:
    await together.alone()


async def replicas_alone(together: Together) -> None:
    edit(together.operator, 1)
    await together.alone()
    edit(together.operator, 1, **TO_ZERO)
    await together.alone()


async def replicas_alone_then_zero_at_once(together: Together) -> None:
    edit(together.operator, 1)
    await together.alone()
    edit(together.operator, 0, **TO_ZERO)


async def removed_and_added_before_it_ended(together: Together) -> None:
    await together.alone()
    edit(together.operator, 1)
    await together.step()
    edit(together.operator, 1, **TO_ZERO)
    await together.step()


async def held_in_rollouts(together: Together) -> None:
    edit(together.operator, 1, **HELD_IN_ROLLOUTS)
    await together.alone()
    edit(together.operator, 1, **TO_ZERO)


async def removed_at_zero(together: Together) -> None:
    await to_zero(together)
    edit(together.operator, 1)
    await together.alone()
    edit(together.operator, 1, **TO_ZERO)
    await together.alone()


async def raised_at_zero(together: Together) -> None:
    await to_zero(together)
    raised = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
    edit(together.operator, 0, **raised)
    await together.until(lambda world: made(world) == 1)
    edit(together.operator, 1, **raised)
    await together.alone()
    edit(together.operator, 1, **TO_ZERO)


async def paused_at_zero(together: Together) -> None:
    await to_zero(together)
    together.operator.obj["spec"]["paused"] = True
    await together.steps()
    assert is_held(together.operator)
    del together.operator.obj["spec"]["paused"]
    await together.until(is_at_zero)
    scale(together.operator, 1)
    await together.alone()


async def paused_while_it_serves(together: Together) -> None:
    await together.alone()
    together.operator.obj["spec"]["paused"] = True
    await together.steps()
    del together.operator.obj["spec"]["paused"]
    await together.steps()


async def woken(together: Together) -> None:
    await to_zero(together)
    scale(together.operator, 1)
    await together.until(lambda world: made(world) == 1)


async def to_zero(together: Together) -> None:
    scale(together.operator, 0)
    await together.until(is_at_zero)


@pytest.mark.parametrize(
    "before",
    [
        alone,
        replicas_alone,
        replicas_alone_then_zero_at_once,
        removed_and_added_before_it_ended,
        held_in_rollouts,
        removed_at_zero,
        raised_at_zero,
        paused_at_zero,
        paused_while_it_serves,
        woken,
    ],
)
async def test_it_gets_to_zero(before: Callable[[Together], Awaitable[None]], together: Together) -> None:
    await before(together)
    await to_zero(together)
    assert together.activator.targets.leads_here(X)


@pytest.mark.parametrize("scaling", [HELD_IN_ROLLOUTS, TO_ZERO], ids=["held in rollouts", "scaled"])
async def test_a_rollout_is_held(scaling: dict[str, Any], together: Together) -> None:
    edit(together.operator, 1, **scaling)
    together.operator.edit(**RECREATE)
    await together.alone()
    before = together.operator.revision()
    together.operator.edit(batching={"maxNumSeqs": 8})
    await together.until(lambda world: world.revision() != before)
    assert together.were_made
    await together.alone()


@pytest.mark.parametrize("is_rollout", [False, True], ids=["to zero", "rollout"])
async def test_one_that_lags_does_not_listen(is_rollout: bool, together: Together) -> None:
    """It would refuse what the slices send to it."""
    together.operator.edit(**RECREATE)
    await together.alone()
    before = together.operator.revision()
    together.lags = True
    if is_rollout:
        together.operator.edit(batching={"maxNumSeqs": 8})
    else:
        scale(together.operator, 0)
    await together.steps()
    assert (made(together.operator), is_held(together.operator), together.operator.revision()) == (1, False, before)
    together.lags = False
    await together.until(lambda world: world.revision() != before if is_rollout else is_at_zero(world))


async def test_one_that_lags_while_requests_still_come_in_does_not_listen_either(
    monkeypatch: pytest.MonkeyPatch, together: Together
) -> None:
    """They are answered for a while, which ends before it learns more."""
    monkeypatch.setattr(targets, "ENDING_SECONDS", 3600.0)
    scale(together.operator, 1)
    await together.steps()
    assert together.activator.told[X].is_routed
    together.lags = True
    scale(together.operator, 0)
    await together.steps()
    assert (made(together.operator), is_held(together.operator)) == (1, False)
    together.lags = False
    await together.until(is_at_zero)
