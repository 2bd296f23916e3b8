"""Which pods NAME-direct leads a router to while replicas move between one node and several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_api.constants import RANK_LABEL

from tests.unit.decide_world import SETTINGS, World, a_pod
from tests.unit.operator.test_decide_nodes import ONE, TWO, pods_of, room, served, there
from tests.unit.operator.test_decide_routing import OF_REPLICAS, ROUTED, with_ready_router

Json = dict[str, Any]


def direct(world: World) -> Any:
    """What NAME-direct selects."""
    return world.children["Service", "x-direct"]["spec"]["selector"]


def moving() -> World:
    """Routed, with two replicas of one node that serve, and to move to two nodes."""
    world = served(ONE, replicas=2)
    world.settings = replace(SETTINGS, router_image="router:1")
    world.change(routing=ROUTED)
    with_ready_router(world)
    assert direct(world) == OF_REPLICAS
    world.room = room(8, 8)
    world.change(parallelism=TWO)
    assert direct(world) == OF_REPLICAS, "no pod of a group is there"
    return world


def test_no_worker_of_a_new_group_is_led_to() -> None:
    world = moving()
    revision = world.revision()
    world.pods |= pods_of(world, "LeaderWorkerSet", ready=False)
    world.step()
    assert direct(world) == OF_REPLICAS | {"llmservice.dev/revision": revision}, "before one is ready"
    first = {name: pod for name, pod in pods_of(world, "LeaderWorkerSet", ready=True).items() if "-0" in name}
    world.pods |= first
    world.settle()
    assert direct(world) == OF_REPLICAS | {"llmservice.dev/revision": revision}
    world.pods |= pods_of(world, "LeaderWorkerSet", ready=True)
    world.step()
    assert direct(world) == OF_REPLICAS | {RANK_LABEL: "0"}


def test_an_edit_that_is_undone_selects_as_before() -> None:
    world = moving()
    olds = dict(world.pods)
    world.pods = olds | pods_of(world, "LeaderWorkerSet", ready=False)
    world.settle()
    assert direct(world) != OF_REPLICAS
    world.change(parallelism=ONE)
    assert direct(world) != OF_REPLICAS, "they are there still"
    world.pods = olds
    world.settle()
    assert direct(world) == OF_REPLICAS
    assert world.decide().is_steady


EARLIER, LAST = "0123456789", ""
"""Revisions; empty: that of the Deployment."""
SINGLES: dict[str, tuple[list[tuple[str, Json]], str | None]] = {
    "one revision": ([(LAST, {"ready": True}), (LAST, {"ready": True})], LAST),
    "most are of an earlier one": ([(EARLIER, {"ready": True}), (EARLIER, {"ready": True}), (LAST, {})], EARLIER),
    "as many are of both": ([(EARLIER, {"ready": True}), (LAST, {"ready": True})], LAST),
    "an earlier one ends": ([(EARLIER, {"ready": True, "deleting": True}), (LAST, {"ready": True})], LAST),
    "none is ready": ([(EARLIER, {}), (LAST, {})], None),
    "none is there": ([], None),
}


@pytest.mark.parametrize(("singles", "chosen"), SINGLES.values(), ids=SINGLES)
def test_of_two_revisions_that_one_is_led_to_of_which_more_pods_serve(
    singles: list[tuple[str, Json]], chosen: str | None
) -> None:
    world = moving()
    last = world.revision()
    world.pods = {f"x-{n}": a_pod(f"x-{n}", label or last, **how) for n, (label, how) in enumerate(singles)}
    world.pods |= pods_of(world, "LeaderWorkerSet", ready=False)
    world.step()
    of_one = {} if chosen is None else {"llmservice.dev/revision": chosen or last}
    assert direct(world) == OF_REPLICAS | of_one


MOVES = {"to two nodes": (ONE, TWO, "Deployment"), "to one node": (TWO, ONE, "LeaderWorkerSet")}


@pytest.mark.parametrize(("before", "after", "left"), MOVES.values(), ids=MOVES)
def test_a_routed_move_comes_to_its_end(before: Json, after: Json, left: str) -> None:
    """The Service selects the router all the time: which replicas serve NAME-direct says."""
    world = served(before, replicas=2)
    world.settings = replace(SETTINGS, router_image="router:1")
    world.change(routing=ROUTED)
    with_ready_router(world)
    olds, to = dict(world.pods), "LeaderWorkerSet" if left == "Deployment" else "Deployment"
    world.room = room(8, 8)
    world.change(parallelism=after)
    made = pods_of(world, to, ready=False)
    world.pods = olds | made
    world.settle()
    served_before = direct(world)
    news = pods_of(world, to, ready=True)
    world.pods = olds | made | {name: pod for name, pod in news.items() if "-0" in name}
    world.settle()
    assert there(world)[left] == 2, "one of two is ready"
    assert direct(world) == served_before
    world.pods = olds | news
    world.settle()
    world.pods = news
    world.settle()
    assert there(world)[left] == 0
    assert world.condition("Ready") == ("True", "RolledOut")
