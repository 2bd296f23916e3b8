"""A configuration that takes too long to read is told of, keeps nothing from starting, and is not read again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from llmservice_operator.api.service import Key
from llmservice_operator.control.context import Memory
from llmservice_operator.control.watch.kinds import PARENT
from llmservice_operator.planner.model import reading
from llmservice_operator.planner.model.reading import Stopped

from tests.unit.decide_world import QWEN_7B
from tests.unit.reconcile_world import KEY, World
from tests.unit.test_reconcile_fit import a_world, condition, deployed, knowing, status


@dataclass
class Configs:
    """A reader that says what the test wants."""

    answers: list[bytes | None]
    asked: list[str] = field(default_factory=list)

    async def read(self, key: Key, document: str) -> bytes | None:
        self.asked.append(document)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def a_world_with(*answers: bytes | None, **spec: Any) -> tuple[World, Configs]:
    world = a_world(**spec)
    world.ctx.cache.update(PARENT, knowing("other"))
    configs = Configs(list(answers))
    world.ctx.configs = configs
    return world, configs


WORDS = [(Stopped.CPU, "processor time"), (Stopped.MEMORY, "memory"), (Stopped.TIME, "longer"), (Stopped.DIED, "ended")]


@pytest.mark.parametrize(("why", "words"), WORDS)
async def test_it_is_started_without_a_plan_and_told_why(why: Stopped, words: str) -> None:
    world, _ = a_world_with(reading.stopped(why))
    await world.look()
    fits = condition(world, "Fits")
    assert (fits["status"], fits["reason"]) == ("Unknown", "ConfigTooComplex")
    assert words in fits["message"]
    assert "spec.model.architecture" in fits["message"]
    assert deployed(world)


async def test_it_is_not_read_again_until_it_changes() -> None:
    world, configs = a_world_with(reading.stopped(Stopped.CPU))
    await world.look()
    for _ in range(3):
        world.now += 3600
        await world.look()
        assert world.api.calls == []
    world.ctx.memories[KEY] = Memory("u-1")  # the operator was restarted
    await world.look()
    assert len(configs.asked) == 1
    assert condition(world, "Fits")["reason"] == "ConfigTooComplex"


async def test_facts_of_the_spec_need_no_reading() -> None:
    facts = {"numHiddenLayers": 28, "hiddenSize": 3584, "numAttentionHeads": 28, "numKeyValueHeads": 4}
    world, configs = a_world_with(
        reading.stopped(Stopped.CPU),
        model={
            "uri": "hf://Qwen/Qwen2.5-7B-Instruct",
            "architecture": {**facts, "vocabSize": 152064, "intermediateSize": 18944, "maxPositionEmbeddings": 32768},
        },
    )
    await world.look()
    assert condition(world, "Fits")["reason"] == "Fits"
    assert configs.asked == []


async def test_nothing_is_made_while_it_is_read() -> None:
    world, _ = a_world_with(None, reading.read(json.dumps(QWEN_7B)))
    await world.look()
    assert not deployed(world)
    assert condition(world, "Fits")["reason"] == "InspectingModel"
    assert "being read" in condition(world, "Fits")["message"]
    assert status(world)["model"]["config"]
    await world.look()  # its reader woke it
    assert deployed(world)
    assert condition(world, "Fits")["reason"] == "Fits"


async def test_what_serves_goes_on_while_it_is_read() -> None:
    world, _ = a_world_with(reading.read(json.dumps(QWEN_7B)))
    await world.look()
    before = status(world)
    edited = world.api.objects[PARENT, "chat"]
    edited["status"] = {**before, "model": {**before["model"], "config": json.dumps(QWEN_7B | {"vocab_size": 99})}}
    edited["metadata"] |= {"resourceVersion": "999"}
    world.ctx.cache.update(PARENT, edited)
    world.ctx.configs = Configs([None])
    await world.look()
    assert condition(world, "Fits")["reason"] == "Fits"
    assert deployed(world)
