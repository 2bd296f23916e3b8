"""The way to zero and back on an API server: which requests are sent in which order, and none in a steady state."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.errors import FieldConflict, Forbidden, Invalid, KubeError, NotLeader, Refused, ServerError
from kubeloop.resources import Key
from llmservice_api.holding import Activator, HoldingReport
from llmservice_operator.behaviours.holding import LOST, MAX_WAIT_SECONDS, WAITING
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.activators import SPREAD_SECONDS
from llmservice_operator.readers.holding_ports import HoldingPorts, candidates
from llmservice_operator.readers.pod_port import Unreadable
from llmservice_operator.service.decide import decide
from llmservice_operator.service.reconcile import Next, reconcile

from tests.unit.decide_world import a_pod
from tests.unit.operator.test_decide_autoscaling import SCALING
from tests.unit.reconcile_world import KEY, LABELS, World, parent

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
            pod = a_pod(f"chat-{number}", label, ready=True, address=f"10.2.0.{number}", service="chat")
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
    assert world.calls("Lease") == ["get Lease"], "no pod is listed"
    world.restart()
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
    assert MAX_WAIT_SECONDS <= world.now - start < MAX_WAIT_SECONDS + 5
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


def addresses(world: ZeroWorld) -> list[str]:
    """Where the slice of ours sends requests to."""
    return [each["addresses"][0] for each in world.stored("EndpointSlice", SLICE)["endpoints"]]


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


EDIT = "apply Deployment by force"
REFUSED_EDITS = {
    "a quota": Refused("exceeded quota: team", code=403),
    "no right": Forbidden("no", right="patch deployments", code=403),
    "an invalid field": Invalid("spec.template: Invalid value", code=422),
}


async def edited(world: ZeroWorld, error: KubeError, *, in_one_pass: bool, requests: int = 8) -> None:
    """An edit whose Deployment is refused: before what follows, or together with it. Its rollout leaves no gap."""
    world.api.fails[EDIT] = [error] * 99
    world.edit({"batching": {"maxNumSeqs": requests}, "rollout": {"strategy": "Surge"}})
    if not in_one_pass:
        await world.settle()
        assert world.condition("Stalled")["status"] == "True"


@pytest.mark.parametrize("error", REFUSED_EDITS.values(), ids=REFUSED_EDITS.keys())
@pytest.mark.parametrize("in_one_pass", [True, False], ids=["in one pass", "while the refusal waits"])
async def test_a_refused_edit_leaves_requests_on_their_way(error: KubeError, in_one_pass: bool) -> None:
    world = await at_zero()
    await edited(world, error, in_one_pass=in_one_pass)
    world.activators = (TWO,)
    await world.settle()
    assert addresses(world) == [TWO.address], "to the activators of now"
    del world.api.fails[EDIT]
    world.scale(1)
    await world.settle()
    assert world.deployed() == 1
    await edited(world, error, in_one_pass=in_one_pass, requests=16)
    world.pods(1)
    await world.settle()
    assert world.stored("EndpointSlice", SLICE) is None, "and to the pod alone"
    assert world.condition("Stalled")["status"] == "True"
    await world.settle()
    assert world.calls() == [], "nothing before its time"


async def test_a_write_that_fails_leaves_requests_on_their_way() -> None:
    world = await at_zero()
    world.scale(1)
    await world.settle()
    world.api.fails[EDIT] = [ServerError("failed calling webhook", code=500)]
    world.pods(1)
    world.edit({"rollout": {"strategy": "Surge"}, "batching": {"maxNumSeqs": 8}})
    with pytest.raises(ServerError):
        await world.settle()
    assert world.stored("EndpointSlice", SLICE) is None


async def test_a_slice_that_is_written_brings_no_refused_edit_forward() -> None:
    world = await at_zero()
    await edited(world, Refused("exceeded quota: team", code=403), in_one_pass=False)
    for _ in range(8):
        world.now += 60
        assert (await world.settle()).after is not None
    world.activators = (TWO,)
    assert (await world.settle()).after == SPREAD_SECONDS, "the activators are asked"
    assert world.calls("apply") == ["apply EndpointSlice by force"]
    world.now += SPREAD_SECONDS
    assert (await world.settle()).after == 60 - SPREAD_SECONDS
    world.now += 60
    assert (await world.settle()).after == 60


async def test_where_a_way_was_made_and_another_ends_the_new_one_is_made_first() -> None:
    world = await at_zero()
    world.activators = (Activator("fd00::1"),)
    await world.settle()
    assert world.calls("EndpointSlice") == ["apply EndpointSlice", "delete EndpointSlice u-EndpointSlice"]


UNDELETED = {
    "a policy refuses it": Refused("admission webhook denied the request", code=403),
    "no right": Forbidden("no", right="delete endpointslices", code=403),
    "a webhook that does not answer": ServerError("failed calling webhook", code=500),
}


@pytest.mark.parametrize("case", UNDELETED)
async def test_a_slice_that_cannot_be_deleted_is_reported_stops_nothing_and_is_tried_each_minute(case: str) -> None:
    world = await at_zero()
    world.scale(1)
    await world.settle()
    world.api.fails["delete EndpointSlice u-EndpointSlice"] = [UNDELETED[case]] * 2
    world.pods(1)
    world.scale(2)
    then = await world.settle()
    assert world.deployed() == 2
    assert then.after == 60
    ready = world.condition("Ready")
    assert ready["reason"] == ("AdmissionUnavailable" if "webhook" in case else "AdmissionRefused")
    assert f"EndpointSlice {SLICE} is to go and cannot be deleted: " in ready["message"]
    await world.settle()
    assert world.calls() == [], "nothing before its time"
    world.now += 60
    await world.settle()
    assert world.calls() == ["delete EndpointSlice u-EndpointSlice"], "no status says it again"
    world.now += 60
    await world.settle()
    assert world.stored("EndpointSlice", SLICE) is None
    assert "cannot be deleted" not in world.condition("Ready")["message"]


async def test_an_operator_without_autoscaling_takes_the_slices_away_and_leaves_the_port() -> None:
    world = await at_zero()
    world.restart()
    world.ctx.settings, world.activators = Settings(), None
    await world.settle()
    assert world.calls("EndpointSlice", "Lease") == ["delete EndpointSlice u-EndpointSlice"]
    assert world.deployed() == 0
    assert world.condition("Autoscaled")["reason"] == "AutoscalingDisabled"
    assert world.condition("Available")["reason"] == "ScaledToZero"
    world.scale(1)
    await world.settle()
    assert world.deployed() == 1
    assert world.stored("Lease", f"llmservice-port-{PORT}") is not None


async def test_a_silent_activator_is_no_activator_that_can_hold() -> None:
    world = await serving()
    del world.reports[TWO.address]
    world.scale(0)
    for _ in range(20):
        then = await world.settle()
        world.now += then.after or 0
    assert world.deployed() == 1
    assert (
        "10.1.0.2 does not report whether it can hold requests: it does not answer"
        in world.condition("Autoscaled")["message"]
    )
    assert world.stored("EndpointSlice", SLICE) is None
