"""A service that may be at zero, in the cluster of `decide_world`, with two activators that can hold its requests."""

from __future__ import annotations

import copy
import functools
from typing import Any

from llmservice_api.holding import Activator, HoldingReport

from tests.unit.decide_world import H100, Json, World, a_pod, an_llmservice, serving, spec
from tests.unit.decision_goldens import unrecorded
from tests.unit.operator.test_decide_autoscaling import READY, SCALING

ONE, TWO = Activator("10.1.0.1", "node-a"), Activator("10.1.0.2")
SIX = Activator("fd00::1", "node-a")
SLICE, SLICE_6 = ("EndpointSlice", "x-activator-ipv4"), ("EndpointSlice", "x-activator-ipv6")
GOOD = HoldingReport(is_listening=True, is_reachable=True)
LISTENING, SILENT = HoldingReport(is_listening=True), HoldingReport()
NO_KEY = HoldingReport(is_listening=True, is_reachable=True, problem="Secret k cannot be read. Grant get on it.")


@functools.cache
def _served(replicas: int) -> World:
    scaling = {"replicas": replicas, "autoscaling": {"minReplicas": 0, "maxReplicas": 4}}
    world = World(an_llmservice(spec(scaling=scaling)), settings=SCALING, activators=(ONE, TWO))
    world.gpus = serving(H100).gpus
    world.holding = {ONE.address: GOOD, TWO.address: GOOD}
    serve(world)
    world.children["ScaledObject", "x"]["status"] = {"conditions": [READY]}
    world.settle()
    return world


def a_world(replicas: int = 1) -> World:
    """Rolled out, with two activators that can hold."""
    with unrecorded():
        return copy.deepcopy(_served(replicas))


def held_in_rollouts(replicas: int = 1, **sections: Any) -> World:
    """The same without autoscaling, and with holding.rollouts."""
    world = a_world(replicas)
    world.edit(scaling={"replicas": replicas, "holding": {"rollouts": True}}, **sections)
    serve(world)
    return world


def serve(world: World) -> None:
    world.settle()
    follow(world)
    world.settle()


def follow(world: World, *, ready: bool = True) -> None:
    """The cluster makes as many pods as the Deployment asks for."""
    wanted = world.deployment["spec"]["replicas"]
    world.roll_out(**({} if ready else dict.fromkeys(("updated", "ready", "available"), 0)))
    names = [f"x-{n}" for n in range(wanted)]
    pods = [a_pod(name, world.revision(), ready=ready, address=f"10.2.0.{n}") for n, name in enumerate(names)]
    world.pods = dict(zip(names, pods, strict=True))
    world.in_flight = dict.fromkeys(names, 0)


def scale(world: World, replicas: int) -> None:
    """As KEDA and the activators do, by /scale."""
    world.obj["spec"]["scaling"]["replicas"] = replicas
    world.obj["metadata"]["generation"] += 1


def at_zero() -> World:
    world = a_world()
    scale(world, 0)
    world.settle()
    assert made(world) == 0
    follow(world)
    world.settle()
    return world


def made(world: World) -> int:
    """Replicas of the Deployment."""
    replicas: int = world.deployment["spec"]["replicas"]
    return replicas


def is_held(world: World) -> bool:
    return bool(world.of_kind("EndpointSlice"))


def busy(world: World) -> None:
    world.in_flight = {"x-0": 1}


def mute(world: World) -> None:
    world.in_flight = {}


def taken(world: World) -> None:
    owner = {"kind": "App", "name": "a", "uid": "b", "controller": True}
    world.children[SLICE] = a_slice(ownerReferences=[owner])


def a_slice(**metadata: Any) -> Json:
    given = {"name": SLICE[1], "namespace": "team-a", "uid": "theirs", "resourceVersion": "1", "generation": 1}
    return {"kind": "EndpointSlice", "metadata": given | metadata, "addressType": "IPv4", "endpoints": [], "ports": []}


def is_taken(world: World) -> bool:
    return SLICE in world.children and is_theirs(world.children[SLICE])


def is_theirs(child: Json) -> bool:
    return bool(child["metadata"]["ownerReferences"][0]["kind"] == "App")
