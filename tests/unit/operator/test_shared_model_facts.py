"""What another service of the namespace knows of the same model is found without reading all services."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.informer import Cache
from kubeloop.resources import Key
from llmservice_operator.service.gather import sibling_model
from llmservice_operator.service.watch import INDICES, PARENT, PROJECTIONS

from tests.unit.reconcile_world import KEY, World, parent


def known(
    name: str, *, namespace: str = "ns", inspection: str = "i", config: str | None = "{}", version: int = 1
) -> dict[str, Any]:
    made: dict[str, Any] = parent(version, name=name, namespace=namespace, uid=f"u-{name}")
    made["status"] = {"model": {"inspection": inspection, **({"config": config} if config else {})}}
    return made


@pytest.mark.parametrize(
    ("others", "found"),
    [
        pytest.param([], None, id="nobody"),
        pytest.param([known("other")], "{}", id="a neighbour"),
        pytest.param([known("chat")], None, id="the service itself"),
        pytest.param([known("other", namespace="elsewhere")], None, id="in another namespace"),
        pytest.param([known("other", inspection="j")], None, id="of another model"),
        pytest.param([known("other", config=None)], None, id="one that found nothing"),
        pytest.param([known("other"), known("other", inspection="j", version=2)], None, id="it has another model now"),
        pytest.param([known("other", inspection="j"), known("other", version=2)], "{}", id="it has it now"),
    ],
)
def test_whose_facts_are_shared(others: list[dict[str, Any]], found: str | None) -> None:
    world = World(parent())
    for other in others:
        world.see(other)
    assert sibling_model("i", KEY, world.ctx).get("config") == found
    world.ctx.cache.remove(PARENT, "ns", "other", "u-other")
    assert sibling_model("i", KEY, world.ctx) == {}, "one that is gone shares nothing"


class Counting(Cache):
    """Counts the projections that are read."""

    reads = 0

    def get(self, kind: str, namespace: str, name: str) -> Any:
        self.reads += 1
        return super().get(kind, namespace, name)

    def indexed(self, kind: str, value: Any) -> Any:
        for facts in super().indexed(kind, value):
            self.reads += 1
            yield facts


def test_a_mass_start_reads_as_much_for_each_service_however_many_there_are() -> None:
    """Each of them asks; if each read all others, a thousand would make a million reads."""
    world, count = World(parent()), 300
    cache = world.ctx.cache = Counting(PROJECTIONS, INDICES)
    keys = [Key("ns", f"service-{number}") for number in range(count)]
    for key in keys:
        cache.update(PARENT, known(key.name, inspection="i" if key.name == "service-0" else "none"))
    cache.reads = 0
    for key in keys:
        assert bool(sibling_model("i", key, world.ctx)) is (key.name != "service-0")
    assert cache.reads <= 2 * count
