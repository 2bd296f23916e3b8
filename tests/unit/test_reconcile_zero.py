"""The way to zero and back on an API server: which requests are sent in which order, and none in a steady state."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.api.holding import Activator, HoldingReport
from llmservice_operator.api.service import Key
from llmservice_operator.control.reconcile import Next, reconcile
from llmservice_operator.decide.decide import decide
from llmservice_operator.decide.gap import LOST, PATIENCE, WAITING
from llmservice_operator.decide.questions import SPREAD_SECONDS
from llmservice_operator.kube.errors import FieldConflict, Forbidden, NotLeader, Refused
from llmservice_operator.kube.holding_ports import HoldingPorts, candidates
from llmservice_operator.kube.pod_port import Unreadable

from tests.unit.decide_world import a_pod
from tests.unit.reconcile_world import KEY, LABELS, World, parent
from tests.unit.test_decide_autoscaling import SCALING

ONE, TWO = Activator("10.1.0.1"), Activator("10.1.0.2")
GOOD, LISTENING = HoldingReport(is_listening=True, is_reachable=True), HoldingReport(is_listening=True)
PORT = next(candidates("u-1"))
SLICE = "chat-activator-ipv4"
CLUSTERS = "chat-abcde"


class ZeroWorld(World):
    """The operator's own decisions about a service that may be at zero; the model is not planned."""

    def __init__(self) -> None:
        service = parent()
        scaling = {"replicas": 1, "autoscaling": {"minReplicas": 0, "maxReplicas": 4}}
        service["spec"] |= {"fitPolicy": "Ignore", "scaling": scaling}
        super().__init__(service)
        self.activators: Any = (ONE, TWO)
        self.reports: dict[str, HoldingReport] = {ONE.address: GOOD, TWO.address: GOOD}
        self.asked: list[tuple[str, str, int]] = []
        self.leases_read = 0
        self.restart()

    def restart(self) -> None:
        """What the process remembers is gone."""
        self.ctx.decide, self.ctx.settings = decide, SCALING
        self.ctx.activators = lambda: self.activators
        self.ctx.ask_activator = self.ask
        self.ctx.claim_port = HoldingPorts(self.kube, "system").claim
        self.ctx.memories.clear()

    async def ask(self, address: str, key: Key, uid: str, port: int) -> HoldingReport:
        assert key == KEY
        self.asked.append((address, uid, port))
        if address not in self.reports:
            raise Unreadable("it does not answer")
        return self.reports[address]

    def deployed(self) -> int:
        return int(self.stored("Deployment")["spec"]["replicas"])

    def scale(self, replicas: int) -> None:
        self.edit({"scaling": self.stored()["spec"]["scaling"] | {"replicas": replicas}})

    def pods(self, count: int) -> None:
        """So many are ready, and listed by the cluster's own slice."""
        live = self.stored("Deployment")
        label = live["spec"]["template"]["metadata"]["labels"]["llmservice.dev/revision"]
        for name in [facts.name for facts in self.ctx.cache.all_of("Pod")]:
            self.ctx.cache.remove("Pod", "ns", name, f"uid-{name}")
        endpoints = []
        for number in range(count):
            pod = a_pod(f"chat-{number}", label, ready=True, address=f"10.2.0.{number}")
            pod["metadata"] |= {"namespace": "ns", "resourceVersion": str(self.api.version)}
            pod["metadata"]["labels"] |= LABELS
            self.ctx.cache.update("Pod", pod)
            endpoints.append(
                {"addresses": [f"10.2.0.{number}"], "targetRef": {"kind": "Pod", "uid": f"uid-chat-{number}"}}
            )
            self.in_flight[f"10.2.0.{number}"] = 0
        labels = LABELS | {"kubernetes.io/service-name": "chat"}
        metadata = {"namespace": "ns", "name": CLUSTERS, "labels": labels}
        found = {"kind": "EndpointSlice", "metadata": metadata, "endpoints": endpoints, "ports": [{"port": 8000}]}
        self.see(self.api.put(found, uid="u-slice"))
        names = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        status = dict.fromkeys(names, count) | {"observedGeneration": live["metadata"].get("generation", 0)}
        self.see(self.api.put(live | {"status": status}, uid="u-Deployment"))

    async def until(self, replicas: int, seconds: int = 20) -> Next:
        """Passes as they are asked for, until the Deployment has so many."""
        for _ in range(seconds):
            then = await self.settle()
            if self.deployed() == replicas:
                return then
            assert then.after is not None, "nothing wakes this key"
            self.now += then.after
        raise AssertionError(f"{self.deployed()} replicas after {seconds} passes")


async def serving() -> ZeroWorld:
    world = ZeroWorld()
    await world.settle()
    assert world.stored("EndpointSlice", SLICE) is not None, "the first start is held"
    world.pods(1)
    await world.settle()
    assert world.stored("EndpointSlice", SLICE) is None
    assert world.status["ready"] == "1/1"
    return world


async def at_zero() -> ZeroWorld:
    world = await serving()
    world.scale(0)
    await world.until(0)
    world.pods(0)
    await world.settle()
    assert world.condition("Ready")["reason"] == "Idle"
    return world


async def test_the_port_is_allotted_once_and_found_again() -> None:
    world = ZeroWorld()
    await world.settle()
    assert world.calls("Lease") == ["get Lease", "get Lease", "create Lease"]
    assert world.status["holding"]["port"] == PORT
    world.restart()
    await world.settle()
    assert world.calls("Lease") == []
    world.see(world.api.put(world.stored() | {"status": {}}, resourceVersion="999"))
    await world.settle()
    assert world.calls("Lease") == ["get Lease"]
    assert world.status["holding"]["port"] == PORT


async def test_to_zero_the_slice_is_written_first_and_the_deployment_last() -> None:
    world = await serving()
    world.scale(0)
    await world.settle()
    writes = world.calls("apply", "delete", "status")
    assert writes[0] == "apply EndpointSlice"
    assert world.deployed() == 1
    before = world.now
    await world.until(0)
    assert world.now - before >= SPREAD_SECONDS, "the slice gets its time"
    assert {(address, uid, port) for address, uid, port in world.asked} == {
        (each.address, "u-1", PORT) for each in (ONE, TWO)
    }
    world.pods(0)
    await world.settle()
    for _ in range(3):
        world.now += 60
        await world.settle()
        assert world.calls() == [], "nothing at zero"


async def test_the_activators_are_asked_at_most_each_second_and_less_often_later() -> None:
    world = await serving()
    world.in_flight["10.2.0.0"] = 1
    world.scale(0)
    await world.settle()
    world.asked.clear()
    for _ in range(5):
        await world.settle()
    assert len(world.asked) <= 2, "once each, whatever wakes the key"
    asked_before, start = len(world.asked), world.now
    while world.now - start < 300:
        then = await world.settle()
        assert then.after is not None
        world.now += max(then.after, 0.25)
    passes = (len(world.asked) - asked_before) / 2
    assert 60 + 20 < passes < 60 + 30
    assert world.deployed() == 1
    world.in_flight["10.2.0.0"] = 0
    await world.until(0)


async def test_up_the_deployment_comes_first_and_the_slice_goes_last() -> None:
    world = await at_zero()
    world.scale(1)
    await world.settle()
    assert world.deployed() == 1
    assert world.stored("EndpointSlice", SLICE) is not None
    world.pods(1)
    await world.settle()
    assert world.stored("EndpointSlice", SLICE) is None
    assert world.calls("EndpointSlice") == ["delete EndpointSlice u-EndpointSlice"]
    await world.settle()
    assert world.calls() == []


@pytest.mark.parametrize("phase", ["the first start", "serving", "going down", "at zero", "coming up"])
async def test_an_operator_that_is_restarted_at_any_time_ends_in_the_same_state(phase: str) -> None:
    world = ZeroWorld() if phase == "the first start" else await (at_zero() if "zero" in phase else serving())
    if phase == "the first start":
        await world.settle()
    elif phase == "going down":
        world.scale(0)
        await world.settle()
    elif phase == "coming up":
        world = await at_zero()
        world.scale(1)
        await world.settle()
    before, slices = world.deployed(), world.stored("EndpointSlice", SLICE) is not None
    world.activators = None
    world.restart()
    await world.settle()
    assert world.calls("EndpointSlice", "Lease") == [], "nothing before the activators are known"
    assert (world.deployed(), world.stored("EndpointSlice", SLICE) is not None) == (before, slices)
    world.activators = (ONE, TWO)
    wanted = world.stored()["spec"]["scaling"]["replicas"]
    await world.until(wanted)
    world.pods(wanted)
    await world.settle()
    assert (world.stored("EndpointSlice", SLICE) is None) == bool(wanted)
    assert world.condition("Ready")["status"] == "True"
    await world.settle()
    assert world.calls() == []


@pytest.mark.parametrize("flickers", [False, True])
async def test_a_rollout_waits_a_minute_for_activators_that_are_not_known(*, flickers: bool) -> None:
    world = await serving()
    if flickers:
        world.activators = None
        await world.settle()
        world.now += 3600
        world.activators = (ONE, TWO)
        await world.settle()
    world.activators, start = None, world.now
    world.edit({"rollout": {"strategy": "Recreate"}, "batching": {"maxNumSeqs": 8}})
    for _ in range(90):
        then = await world.settle()
        if world.status["rollout"]["gap"] != WAITING:
            break
        world.now += then.after or 0.0
    assert PATIENCE <= world.now - start < PATIENCE + 5
    assert world.status["rollout"]["gap"].startswith(LOST)
    assert world.stored("Deployment")["spec"]["strategy"] == {"type": "Recreate"}


async def test_without_the_right_to_leases_a_replica_stays_and_each_minute_it_is_tried() -> None:
    world = ZeroWorld()
    world.api.fails["create Lease"] = [Forbidden("no", right="create leases", code=403)] * 99
    world.scale(0)
    then = await world.settle()
    assert world.deployed() == 1
    assert "create leases" in world.condition("Autoscaled")["message"]
    assert then.after == 60.0
    world.api.fails.clear()
    world.now += 60
    await world.settle()
    assert world.status["holding"]["port"] == PORT


async def test_a_process_that_does_not_lead_claims_nothing() -> None:
    world = ZeroWorld()

    async def claim(key: Key, uid: str, stored: int | None) -> int:
        raise NotLeader("another leads")

    world.ctx.claim_port = claim
    with pytest.raises(NotLeader):
        await reconcile(KEY, world.ctx)
    assert world.api.calls == []


REFUSALS = {
    "a slice of the name is somebody's": FieldConflict('conflict with "helm"', code=409),
    "a policy refuses it": Refused("admission webhook denied the request", code=403),
    "no right to foreign addresses": Refused("endpoint address 10.1.0.1 is not allowed", code=403),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_slice_that_cannot_be_applied_keeps_a_replica_and_is_tried_each_minute(case: str) -> None:
    world = await serving()
    if case.startswith("a slice"):
        metadata = {"namespace": "ns", "name": SLICE, "uid": "theirs"}
        world.api.put({"kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4", "endpoints": []})
    world.api.fails["apply EndpointSlice"] = [REFUSALS[case]] * 9
    world.scale(0)
    await world.settle()
    assert world.deployed() == 1
    assert world.condition("Autoscaled")["reason"] == "HoldingUnavailable"
    assert world.condition("Ready")["status"] == "True"
    world.api.calls.clear()
    await world.settle()
    assert world.calls("apply EndpointSlice") == []
    world.now += 60
    await world.settle()
    assert world.calls("apply EndpointSlice"), "each minute"


async def test_a_silent_activator_is_no_activator_that_can_hold() -> None:
    world = await serving()
    del world.reports[TWO.address]
    world.scale(0)
    for _ in range(20):
        then = await world.settle()
        world.now += then.after or 0
    assert world.deployed() == 1
    assert "10.1.0.2 does not listen" in world.condition("Autoscaled")["message"]
    assert world.stored("EndpointSlice", SLICE) is None
