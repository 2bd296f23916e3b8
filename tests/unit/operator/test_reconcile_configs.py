"""A configuration that takes too long to read is reported, keeps nothing from starting, and is not read again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubeloop.resources import Key
from llmservice_operator.service.context import ServiceMemory
from llmservice_planner.model import reading
from llmservice_planner.model.reading import Stopped

from tests.unit.decide_world import QWEN_7B
from tests.unit.operator.test_reconcile_fit import a_world, deployed, knowing
from tests.unit.reconcile_world import KEY, World


@dataclass
class Configs:
    """A reader whose last answer is repeated."""

    answers: list[bytes | None]
    asked: list[str] = field(default_factory=list)

    async def read(self, key: Key, document: str) -> bytes | None:
        self.asked.append(document)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def a_world_with(*answers: bytes | None, **spec: Any) -> tuple[World, Configs]:
    world, configs = a_world(**spec), Configs(list(answers))
    world.see(knowing("other"))
    world.ctx.configs = configs
    return world, configs


def fits(world: World) -> tuple[str, str]:
    condition = world.condition("Fits")
    return condition["reason"], condition["message"]


WORDS = [(Stopped.CPU, "processor time"), (Stopped.MEMORY, "memory"), (Stopped.TIME, "longer"), (Stopped.DIED, "ended")]


@pytest.mark.parametrize(("why", "words"), WORDS)
async def test_it_is_started_without_a_plan_and_not_read_again(why: Stopped, words: str) -> None:
    world, configs = a_world_with(reading.stopped(why))
    await world.reconcile()
    reason, message = fits(world)
    assert (reason, world.condition("Fits")["status"]) == ("ConfigTooComplex", "Unknown")
    assert words in message
    assert "spec.model.architecture" in message
    assert deployed(world)
    for _ in range(3):
        world.now += 3600
        await world.reconcile()
        assert world.calls() == []
    world.ctx.memories[KEY] = ServiceMemory("u-1")  # the operator was restarted
    await world.reconcile()
    assert (len(configs.asked), fits(world)[0]) == (1, "ConfigTooComplex")


async def test_facts_of_the_spec_need_no_reading() -> None:
    facts = {"numHiddenLayers": 28, "hiddenSize": 3584, "numAttentionHeads": 28, "numKeyValueHeads": 4}
    facts |= {"vocabSize": 152064, "intermediateSize": 18944, "maxPositionEmbeddings": 32768}
    model = {"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "architecture": facts}
    world, configs = a_world_with(reading.stopped(Stopped.CPU), model=model)
    await world.reconcile()
    assert (fits(world)[0], configs.asked) == ("Fits", [])


async def test_nothing_is_made_while_it_is_read() -> None:
    world, _ = a_world_with(None, reading.read(json.dumps(QWEN_7B)))
    await world.reconcile()
    assert not deployed(world)
    assert fits(world)[0] == "InspectingModel"
    assert "being read" in fits(world)[1]
    assert world.status["model"]["config"]
    await world.reconcile()  # its reader woke it
    assert deployed(world)
    assert fits(world)[0] == "Fits"


async def test_what_serves_goes_on_while_it_is_read() -> None:
    world, _ = a_world_with(reading.read(json.dumps(QWEN_7B)))
    await world.reconcile()
    stored = world.stored()
    stored["status"]["model"]["config"] = json.dumps(QWEN_7B | {"vocab_size": 99})
    world.see(world.api.put(stored, generation=1))
    world.ctx.configs = Configs([None])
    await world.reconcile()
    assert fits(world)[0] == "Fits"
    assert deployed(world)
