"""From LLMServices, pods and keys to targets: what each has, whose a port is, and why there is none."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubeloop.resources import POD, Key
from llmservice_activator import targets
from llmservice_activator.api_keys import KeyReader
from llmservice_activator.holding.interface import HeldRequests, HoldingTarget
from llmservice_activator.holding.limits import NAMESPACES, Limits
from llmservice_activator.holding_config import SEQUENCES
from llmservice_activator.services import Services, Unknown, service_of
from llmservice_activator.targets import TargetUpdater
from llmservice_api.constants import LLMSERVICE

from tests.support.patience import PATIENCE, until
from tests.unit.api_server import ApiServer, Connection
from tests.unit.scaler_world import pod, service
from tests.unit.scaler_zero_world import CHAT, NOON, at_zero

PORT = 12_000
NIGHT = {"start": "0 22 * * *", "end": "0 6 * * *", "maxReplicas": 1}
KEY_REF = {"endpoint": {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}}


def secret(text: bytes = b"one\ntwo\n", key: str = "api-key") -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "keys", "uid": "u-keys"}
    data = {key: base64.b64encode(text).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


class World:
    """A TargetUpdater that reports to this object; every change is awaited until it is told."""

    def __init__(self, *secrets: dict[str, Any]) -> None:
        self.api = ApiServer(*secrets)
        self.told: dict[Key, HoldingTarget] = {}
        self.log: list[str] = []
        self.taken: set[int] = set()
        self.activators, self.time = 2, 100.0
        self.waiting = 0
        self.came = 0.0
        """Until when requests come, by the loop's time."""
        self.services = Services(now=lambda: NOON, touched=lambda key: self.targets.touched(key))
        self.keys = KeyReader(Connection(self.api), lambda key: self.targets.touched(key), clock=lambda: self.time)
        self.targets = TargetUpdater(self.services, self, self.keys, lambda: self.activators)

    async def update(self, target: HoldingTarget) -> None:
        if target.port in self.taken:
            raise OSError("address in use")
        self.log.append(f"update {target.key.name}")
        self.told[target.key] = target

    async def remove(self, key: Key) -> None:
        self.log.append(f"remove {key.name}")
        self.told.pop(key, None)

    def held(self, key: Key) -> HeldRequests:
        return HeldRequests(self.waiting)

    def last_connection(self, key: Key) -> float:
        return min(self.came, asyncio.get_running_loop().time())

    def see(self, *objects: dict[str, Any]) -> None:
        for obj in objects:
            self.services.updated(POD if obj["kind"] == "Pod" else LLMSERVICE, obj)

    @contextlib.asynccontextmanager
    async def running(self, *objects: dict[str, Any]) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self.targets.run()), asyncio.ensure_future(self.keys.run())]
        self.see(*objects)
        try:
            await self.settled()
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended

    async def settled(self) -> None:
        """Nothing here waits for anything but the loop."""
        for _ in range(50):
            await asyncio.sleep(0)

    def problem(self, key: Key = CHAT) -> str:
        return self.targets.problem(key)


async def test_a_target_has_what_the_service_says() -> None:
    spec = {"model": {"uri": "hf://a/b", "servedModelNames": ["big", "large"]}, "adapters": [{"name": "x", "uri": "y"}]}
    status = {"effective": {"batching": {"maxNumSeqs": 64}}}
    holding = {"holding": {"maxRequests": 7, "maxBytes": "1Ki", "timeoutSeconds": 9}}
    world = World()
    pods = pod("a", address="10.0.0.1"), pod("b", address="fd00::1"), pod("c", ready=False, address="10.0.0.3")
    async with world.running(at_zero(port=PORT, spec=spec, status=status, scaling=holding), *pods):
        assert world.told[CHAT] == HoldingTarget(
            key=CHAT,
            uid="uid-chat",
            port=PORT,
            model_names=frozenset({"big", "large", "x"}),
            max_requests=7,
            max_bytes=1024,
            timeout_seconds=9,
            at_once=32,
            pods=("http://10.0.0.1:8000", "http://[fd00::1]:8000"),
            keys=None,
            refusal=None,
        )
        world.see(at_zero(port=PORT, spec=spec, status=status | {"replicas": 1}, scaling=holding, version=11))
        await world.settled()
        assert world.log == ["update chat"], "told once, as nothing of it changed"
        world.activators = 100
        world.targets.touched_all()
        await world.settled()
        assert world.told[CHAT].at_once == 1


async def test_defaults_of_a_target() -> None:
    world = World()
    async with world.running(at_zero(port=PORT)):
        found = world.told[CHAT]
        assert found.model_names == {"chat"}
        assert (found.max_requests, found.max_bytes, found.timeout_seconds) == (100, 32 * 2**20, 600)
        assert found.at_once == SEQUENCES // 2


@pytest.mark.parametrize(
    ("arguments", "any_origin"),
    [
        (["--max-logprobs", "5"], True),
        (["--no-allow-credentials"], True),
        (["--allowed-origins", '["https://a.example"]'], False),
        (["--max-logprobs=5", '--allowed_origins=["https://a.example"]'], False),
        (["--allowed-o", "[]"], False),
        (["--allow-credentials"], False),
    ],
)
async def test_flags_about_the_origins_of_pages(arguments: list[str], any_origin: bool) -> None:
    world = World()
    spec = {"model": {"uri": "hf://a/b"}, "runtime": {"extraArgs": arguments}}
    async with world.running(at_zero(port=PORT, spec=spec)):
        assert world.told[CHAT].any_origin is any_origin


@pytest.mark.parametrize(
    ("arguments", "root_path"),
    [
        ([], ""),
        (["--root-path", "/llm"], "/llm"),
        (["--root_path=/llm", "--max-logprobs=5"], "/llm"),
        (["--root-p=/a", "--ro", "/llm"], "/llm"),
        (["--root-path"], ""),
        (["--r", "/x", "--root-paths=/x"], ""),
    ],
)
async def test_the_prefix_of_paths(arguments: list[str], root_path: str) -> None:
    world = World()
    spec = {"model": {"uri": "hf://a/b"}, "runtime": {"extraArgs": arguments}}
    async with world.running(at_zero(port=PORT, spec=spec)):
        assert world.told[CHAT].root_path == root_path


async def test_of_bytes_that_a_crd_of_before_took_an_activator_holds_what_it_can() -> None:
    world = World()
    async with world.running(at_zero(port=PORT, scaling={"holding": {"maxBytes": "1Ti"}})):
        assert world.told[CHAT].max_bytes == Limits().held_bytes // NAMESPACES == 64 * 2**20


@pytest.mark.parametrize(
    ("rollout", "names"),
    [({}, {"chat"}), ({"pinned": True}, {"chat", "old"}), ({"failedRevision": "b"}, {"chat", "old"})],
)
async def test_names_of_a_revision_that_is_not_the_specs(rollout: dict[str, Any], names: set[str]) -> None:
    status = {"rollout": rollout, "endpoint": {"modelNames": ["old"]}}
    world = World()
    async with world.running(at_zero(port=PORT, status=status)):
        assert world.told[CHAT].model_names == names


def held_in_rollouts(replicas: int = 1, **scaling: Any) -> dict[str, Any]:
    """Without autoscaling."""
    made = at_zero(port=PORT, replicas=replicas, scaling={"holding": {"rollouts": True}} | scaling)
    del made["spec"]["scaling"]["autoscaling"]
    return made


async def test_a_service_that_holds_in_rollouts_has_one_and_is_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.0)
    world = World()
    async with world.running(held_in_rollouts()):
        assert (world.told[CHAT].port, world.told[CHAT].refusal) == (PORT, None)
        with pytest.raises(Unknown, match=r"no spec\.scaling\.autoscaling"):
            world.services.get(CHAT)
        world.see(held_in_rollouts(0, holding={"rollouts": True, "maxRequests": 3}))
        await world.settled()
        refusal = world.told[CHAT].refusal
        assert refusal is not None
        assert (refusal.status, refusal.reason) == (503, "ScaledToZero")
        world.see(held_in_rollouts(holding={"rollouts": False}) | {"status": {}})
        await world.settled()
        assert CHAT not in world.told


async def test_what_is_known_of_a_service_that_is_not_scaled_any_more_is_forgotten() -> None:
    gone: list[Key] = []
    changes: list[int] = []
    services = Services(gone=gone.append, changed=lambda before, after: changes.append(after.replicas))
    services.updated(LLMSERVICE, at_zero(port=PORT, replicas=1))
    services.updated(LLMSERVICE, held_in_rollouts(2))
    services.updated(LLMSERVICE, held_in_rollouts(3))
    assert (gone, changes) == ([CHAT], []), "replicas that others set are no Events of the scaler"
    assert services.find(CHAT) is not None


async def test_only_services_that_may_be_at_zero_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "ENDING_SECONDS", 0.0)
    world = World()
    scheduled = {"maxReplicas": 4, "schedule": [{"start": "0 20 * * *", "end": "0 8 * * *", "minReplicas": 0}]}
    timed = at_zero("timed", port=PORT + 1, scaling={"autoscaling": scheduled})
    async with world.running(service(), timed, at_zero("new")):
        assert set(world.told) == {Key("ns", "timed")}
        assert world.problem(Key("ns", "new")).startswith("the operator has not allotted a port yet")
        assert world.problem() == ""
        # It becomes one, and is none any more.
        world.see(at_zero(port=PORT, version=11))
        await world.settled()
        assert CHAT in world.told
        world.see(service(version=12))
        await world.settled()
        assert CHAT not in world.told


@pytest.mark.parametrize("port", ["12000", 12000.0, True, 80, 32768, -1, None])
async def test_a_port_that_the_operator_does_not_allot_is_none(port: object) -> None:
    world = World()
    async with world.running(at_zero(status={"holding": {"port": port}})):
        assert world.told == {}


async def test_a_port_is_the_older_services() -> None:
    young = at_zero("young", port=PORT, creationTimestamp="2026-02-01T00:00:00Z")
    old = at_zero("old", port=PORT, creationTimestamp="2026-01-01T00:00:00Z")
    for order in ((young, old), (old, young)):
        world = World()
        async with world.running(*order):
            assert set(world.told) == {Key("ns", "old")}
            assert world.problem(Key("ns", "young")).startswith("its port 12000 is that of LLMService ns/old")
            world.services.deleted(LLMSERVICE, old)
            await world.settled()
            assert set(world.told) == {Key("ns", "young")}
            assert world.problem(Key("ns", "young")) == ""


async def test_a_port_moves_and_another_uid_begins_anew() -> None:
    world = World()
    async with world.running(at_zero(port=PORT)):
        world.see(at_zero(port=PORT + 1, version=11))
        await world.settled()
        assert world.told[CHAT].port == PORT + 1
        world.see(at_zero(port=PORT + 1, version=12, uid="second"))
        await world.settled()
        assert world.log == ["update chat", "update chat", "remove chat", "update chat"]


async def test_a_port_that_cannot_be_opened_is_said_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.01)
    world = World()
    world.taken.add(PORT)
    async with world.running(at_zero(port=PORT)):
        assert world.problem() == "port 12000 cannot be opened: address in use; free it in the activators' pods"
        world.taken.clear()
        await until(lambda: CHAT in world.told)
        assert world.problem() == ""


async def test_a_new_port_that_cannot_be_opened_ends_nothing_at_the_old_one() -> None:
    world = World()
    async with world.running(at_zero(port=PORT)):
        world.taken.add(PORT + 1)
        world.see(at_zero(port=PORT + 1))
        await world.settled()
        assert world.told[CHAT].port == PORT
        assert "cannot be opened" in world.problem()


async def test_what_cannot_be_told_of_one_service_is_told_of_the_next(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.01)
    world = World()
    update, fails = world.update, [True]

    async def broken(target: HoldingTarget) -> None:
        if target.key == CHAT and fails:
            raise ZeroDivisionError
        await update(target)

    world.update = broken  # type: ignore[method-assign]
    async with world.running(at_zero(port=PORT), at_zero("other", port=PORT + 1)):
        assert set(world.told) == {Key("ns", "other")}
        assert world.problem() == "internal error; see the activator's log"
        fails.clear()
        await until(lambda: not world.problem())
        assert CHAT in world.told


async def test_keys_are_looked_at_while_others_change_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.02)
    world = World(secret())
    async with world.running(at_zero(port=PORT, spec=KEY_REF)):
        world.api.put(secret(b"three"))
        world.time += 60
        async with asyncio.timeout(PATIENCE):
            while world.told[CHAT].keys != frozenset({"three"}):
                world.see(pod("a", ready=False))
                await asyncio.sleep(0.001)


async def test_a_service_that_is_held_and_not_scaled_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.001)
    world = World(secret())
    held = {"scaling": {"autoscaling": None, "holding": {"rollouts": True}}}
    async with world.running(at_zero(port=PORT, spec=held)):
        await asyncio.sleep(0.02)
        assert CHAT in world.told


async def test_keys_are_those_of_the_secret_and_without_them_no_client_is_admitted() -> None:
    world = World(secret(b" one \n\ntwo\n"))
    async with world.running(at_zero(port=PORT, spec=KEY_REF)):
        assert world.told[CHAT].keys == frozenset({"one", "two"})
        world.api.put(secret(b""))
        world.time += 60
        world.keys.request(CHAT)
        await world.settled()
        assert world.told[CHAT].keys == frozenset(), "what is held was sent with a key, and stays"
        assert world.problem() == "key api-key of Secret keys is of no use: it is empty; correct it"


async def test_while_no_replica_serves_keys_are_read_again_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CHECK_SECONDS", 0.001)
    world = World(secret())
    reads = world.api.calls.count
    async with world.running(at_zero(port=PORT, spec=KEY_REF)):
        await asyncio.sleep(0.02)
        assert reads("get Secret") == 1, "within the minute it is read once"
        world.api.put(secret(b"three"))
        world.time += 60
        await until(lambda: world.told[CHAT].keys == frozenset({"three"}))
        world.see(pod("a"))
        world.time += 600
        await asyncio.sleep(0.02)
        assert reads("get Secret") == 2, "with a pod that serves they are not needed"


UNREADABLE: list[tuple[str, dict[str, Any], dict[str, Any], str, bool]] = [
    ("a time zone", {"schedule": [NIGHT | {"timeZone": "Europe/Berln"}]}, {}, "'Europe/Berln'", False),
    ("no cron", {"schedule": [NIGHT | {"start": "0 8 * * 1-8"}]}, {}, "'0 8 * * 1-8'", False),
    ("never", {"schedule": [NIGHT | {"end": "0 0 */31 * 2#5"}]}, {}, "never comes", False),
    ("a bound", {"maxReplicas": 0}, {}, "spec.scaling.autoscaling.maxReplicas", False),
    ("a block", {}, {"holding": {"from": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}}, "holding.from[0]", True),
    ("no list", {}, {"holding": {"from": "all"}}, "spec.scaling.holding.from", True),
    ("seconds", {}, {"holding": {"timeoutSeconds": "x"}}, "spec.scaling.holding.timeoutSeconds", True),
]


@pytest.mark.parametrize("is_known", [True, False], ids=["it was read before", "the activator starts with it"])
@pytest.mark.parametrize(
    ("autoscaling", "scaling", "named", "is_shut"), [row[1:] for row in UNREADABLE], ids=[row[0] for row in UNREADABLE]
)
async def test_a_spec_that_cannot_be_read_is_refused_with_its_field(
    autoscaling: dict[str, Any], scaling: dict[str, Any], named: str, is_shut: bool, is_known: bool
) -> None:
    """Slices go on to lead here: a connection that is refused would say nothing."""
    world, valid, wrong = World(), at_zero(port=PORT), at_zero(port=PORT, version=11, scaling=scaling)
    wrong["spec"]["scaling"]["autoscaling"] |= autoscaling
    async with world.running(*([valid] if is_known else []), wrong):
        target = world.told[CHAT]
        assert (target.uid, target.port) == ("uid-chat", PORT)
        assert target.refusal is not None
        assert (target.refusal.status, target.refusal.reason) == (503, "InvalidSpec")
        assert named in target.refusal.message
        with pytest.raises(Unknown, match=re.escape(named)):
            world.services.get(CHAT)
        world.see(pod("a"))
        await world.settled()
        assert bool(world.told[CHAT].pods) == (is_known and not is_shut), "who may send requests is known"
        world.services.deleted(POD, pod("a"))
        world.see(at_zero(port=PORT, version=12))
        await world.settled()
        assert world.told[CHAT].refusal is None
        assert world.services.get(CHAT)
        world.see(wrong)
        world.see(at_zero(port=0, version=13) | {"spec": wrong["spec"]})
        await world.settled()
        assert CHAT not in world.told, "its requests do not come in here any more"
        world.see(wrong)
        world.services.deleted(LLMSERVICE, wrong)
        await world.settled()
        assert CHAT not in world.told
        assert len(world.services) == 0


async def test_another_service_of_the_name_has_nothing_of_the_one_before() -> None:
    world, wrong = World(), at_zero(port=PORT, version=11, uid="uid-other", scaling={"holding": {"from": "all"}})
    async with world.running(at_zero(port=PORT, spec=KEY_REF | {"model": {"servedModelNames": ["secret"]}})):
        world.see(wrong)
        await world.settled()
        assert world.told[CHAT].uid == "uid-other"
        assert world.told[CHAT].model_names == frozenset()


REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], str | None]] = [
    ("nothing", {}, {}, None),
    ("paused", {"paused": True}, {}, "Paused"),
    ("stalled", {}, {"type": "Stalled", "status": "True", "reason": "CrashLoop", "observedGeneration": 1}, "CrashLoop"),
    ("earlier", {}, {"type": "Stalled", "status": "True", "reason": "CrashLoop", "observedGeneration": 0}, None),
    ("not stalled", {}, {"type": "Stalled", "status": "False", "reason": "X", "observedGeneration": 1}, None),
    ("another one", {}, {"type": "Ready", "status": "False", "reason": "X", "observedGeneration": 1}, None),
]


@pytest.mark.parametrize(("name", "spec", "condition", "reason"), REFUSALS)
async def test_refusals(name: str, spec: dict[str, Any], condition: dict[str, Any], reason: str | None) -> None:
    world = World()
    obj = at_zero(port=PORT, spec=spec, status={"conditions": [condition]} if condition else {})
    async with world.running(obj):
        refusal = world.told[CHAT].refusal
        assert (refusal and refusal.reason) == reason
        world.see(pod("a"))
        await world.settled()
        assert world.told[CHAT].refusal is None, "a pod of the revision before serves"


def test_a_status_of_another_shape_is_no_status() -> None:
    obj = at_zero(status={"holding": [], "effective": 3, "rollout": "x", "endpoint": None})
    zero = service_of(obj, NOON).holding
    assert zero is not None
    assert (zero.port, zero.sequences) == (0, SEQUENCES)
