"""What the scaler's watches make of LLMServices and pods."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeloop.resources import POD, Key
from llmservice_activator.services import Pod, Service, Services, Unknown, pod_of, service_of
from llmservice_api.constants import API_SERVER_LABEL, GROUP_INDEX_LABEL, LLMSERVICE, RANK_LABEL

from tests.unit.activator.test_scaler_schedule import autoscaling
from tests.unit.api_server import GONE, ApiServer
from tests.unit.decide_world import of_another
from tests.unit.scaler_world import certificates, pod, running, service

__all__ = ["certificates"]

CHAT = Key("ns", "chat")
NOW = datetime(2026, 11, 23, tzinfo=UTC)


def waiting(reason: str, restarts: int = 0) -> dict[str, Any]:
    server = {"name": "server", "state": {"waiting": {"reason": reason}}, "started": False, "restartCount": restarts}
    return {"containerStatuses": [server]}


def started(restarts: int = 0, *, is_started: bool = False) -> dict[str, Any]:
    server = {"name": "server", "state": {"running": {}}, "started": is_started, "restartCount": restarts}
    return {"containerStatuses": [server]}


PENDING: dict[str, Any] = {"phase": "Pending"}
FETCHING = [{"name": "fetch", "state": {"running": {}}, "restartCount": 0}]
UNSCHEDULED = {**pod("a", ready=False, phase="Pending", containerStatuses=[]), "spec": {}}
DELETED = pod("a")
DELETED["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
STRANGE = pod("a")
STRANGE["metadata"]["labels"] = {}
COPY = pod("a")
del COPY["metadata"]["ownerReferences"]
OF_A_JOB = pod("a")
OF_A_JOB["metadata"]["ownerReferences"][0]["kind"] = "Job"
OF_ANOTHER = of_another(pod("a"))


def of_a_group(name: str, rank: int, address: str = "10.0.0.1", **labels: str) -> dict[str, Any]:
    found = pod(name, address=address)
    found["metadata"]["labels"] |= {GROUP_INDEX_LABEL: "0", RANK_LABEL: str(rank), **labels}
    owner = "chat-0" if rank else "chat"
    found["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": owner, "controller": True}]
    return found


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (pod("a"), ("10.0.0.1", True, False)),
        (pod("a", ready=False), ("10.0.0.1", False, True)),
        (pod("a", address="fd00::1"), ("fd00::1", True, False)),
        (pod("a", address="no address"), ("", True, False)),
        (pod("a", ready=False, **PENDING, **waiting("ContainerCreating")), ("", False, True)),
        (pod("a", ready=False, **PENDING, initContainerStatuses=FETCHING), ("", False, True)),
        (pod("a", ready=False, **started(2)), ("10.0.0.1", False, True)),
        # It was ready and is not any more.
        (pod("a", ready=False, **started(is_started=True)), ("10.0.0.1", False, False)),
        # It fails, and does not start.
        (pod("a", ready=False, **started(3)), ("10.0.0.1", False, False)),
        (pod("a", ready=False, **waiting("CrashLoopBackOff", 1)), ("", False, False)),
        (pod("a", ready=False, **PENDING, **waiting("ImagePullBackOff")), ("", False, False)),
        (UNSCHEDULED, ("", False, False)),
        # It will not serve any more, or is none of a service's.
        (pod("a", phase="Failed"), None),
        (pod("a", phase="Succeeded"), None),
        (DELETED, None),
        (STRANGE, None),
        (COPY, None),
        (OF_A_JOB, None),
        (OF_ANOTHER, None),
        # Of a replica over several nodes the leader answers requests.
        (of_a_group("a", 0), ("10.0.0.1", True, False)),
        (of_a_group("a", 1), None),
    ],
)
def test_pods(obj: dict[str, Any], expected: tuple[str, bool, bool] | None) -> None:
    assert pod_of(obj) == (None if expected is None else Pod(CHAT, "a", *expected))


def test_of_pods_that_all_answer_the_first_stands_for_the_replica() -> None:
    found = [pod_of(of_a_group("a", rank, **{API_SERVER_LABEL: "true"})) for rank in range(2)]
    assert [each and each.is_first for each in found] == [True, False]


@pytest.mark.parametrize(
    ("concurrency", "expected"),
    [(16, 16), (1, 1), (10_000, 10_000), *((value, None) for value in (0, 10_001, True, "16", 1.5, None))],
)
def test_the_concurrency_of_the_status(concurrency: Any, expected: int | None) -> None:
    assert service_of(service(concurrency=concurrency), NOW).concurrency == expected


@pytest.mark.parametrize("status", [None, {}, {"effective": None}, {"effective": []}, {"effective": {"scaling": 1}}])
def test_a_status_that_says_nothing(status: Any) -> None:
    found = service_of({**service(replicas=3), "status": status}, NOW)
    assert (found.replicas, found.existing, found.concurrency) == (3, 0, None)


def test_fields_of_the_spec() -> None:
    given_ = {"maxReplicas": 4, "minReplicas": 2}
    found = service_of(service(replicas=3, autoscaling=given_, generation=7), NOW)
    assert found == Service(CHAT, "uid-chat", 7, "10", 3, 3, 16, autoscaling(least=2, most=4))


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(json, json)
def test_any_scaling_and_any_concurrency_is_a_service_or_unknown(scaling: Any, concurrency: Any) -> None:
    obj = service(concurrency=concurrency)
    obj["spec"]["scaling"] = scaling
    kept = Services()
    kept.updated(LLMSERVICE, obj)
    try:
        found = kept.get(CHAT)
    except Unknown as error:
        text = str(error)
        assert "ns/chat" in text
        return
    assert found.concurrency is None or 1 <= found.concurrency <= 10_000


async def test_what_the_watches_bring_is_answered_from(certificates: Path) -> None:
    api = ApiServer(service(replicas=2), pod("a", address="10.0.0.1"))
    async with running(api, certificates) as world, world.keda() as keda:
        known = world.scaler.services
        world.in_flight |= {"10.0.0.1": 16, "10.0.0.2": 17}
        assert await keda.replicas() == 1
        # Another pod, and the same one while it is being deleted.
        await world.send("ADDED", pod("b", address="10.0.0.2", version=60))
        await world.until(lambda: len(known.pods(CHAT)) == 2)
        going = pod("b", address="10.0.0.2", version=61)
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        await world.send("MODIFIED", going)
        await world.until(lambda: len(known.pods(CHAT)) == 1)
        # Another spec is used at once, whatever was answered a moment ago.
        await world.send("MODIFIED", service(version=62, replicas=2, autoscaling={"minReplicas": 2, "maxReplicas": 4}))
        await world.until(lambda: known.get(CHAT).autoscaling.min_replicas == 2)
        assert await keda.replicas() == 2
        assert b'service="chat"' in world.page()
        await world.send("DELETED", service(version=63))
        await world.until(lambda: len(known) == 0)
        assert b'service="chat"' not in world.page()


async def test_a_lost_place_is_listed_again_and_what_is_gone_is_forgotten(certificates: Path) -> None:
    api = ApiServer(service(), service("other"), service("off"), pod("a"), pod("b"))
    async with running(api, certificates) as world:
        known = world.scaler.services
        await world.send("MODIFIED", service("off", version=60, autoscaling={"maxReplicas": 0}))
        await world.until(lambda: len(known) == 2)
        for kind, name in (("LLMService", "other"), ("LLMService", "off"), ("Pod", "b")):
            api.remove(kind, name)
        for resource in (LLMSERVICE, POD):
            api.bring("ERROR", GONE, resource)
        await world.until(lambda: len(known) == 1 and len(known.pods(CHAT)) == 1)
        for name in ("other", "off"):
            with pytest.raises(Unknown, match=f"there is no LLMService ns/{name}"):
                known.get(Key("ns", name))


async def test_an_object_that_cannot_be_read_ends_nothing(certificates: Path) -> None:
    api = ApiServer(service(), pod("a"))
    async with running(api, certificates) as world, world.keda() as keda:
        broken = pod("broken", version=60)
        broken["status"] = {"phase": "Running", "conditions": [7], "containerStatuses": "none"}
        await world.send("ADDED", broken)
        await world.send("ADDED", {**service("odd", version=60), "status": "none"})
        await world.send("ADDED", pod("b", address="10.0.0.2", version=61))
        await world.until(lambda: any(each.name == "b" for each in world.scaler.services.pods(CHAT)))
        world.in_flight |= {"10.0.0.1": 20, "10.0.0.2": 20}
        assert await keda.replicas() == 3
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await keda.replicas("odd")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        # The watch goes on: nothing was listed again.
        assert len([path for _, path, query, _ in api.requests if "watch" not in query and path.endswith("/pods")]) == 1


async def test_a_missing_right_in_one_namespace_hides_no_other(certificates: Path) -> None:
    api = ApiServer(service())
    api.refused["closed/pods"] = 403
    async with running(api, certificates, namespaces=("ns", "closed")) as world, world.keda() as keda:
        assert await keda.replicas() == 1
        problems = world.scaler.readiness().lines
        assert [line for line in problems if "namespace closed: pods" in line], problems


async def test_without_any_right_it_is_not_ready(certificates: Path) -> None:
    api = ApiServer(service())
    api.refused["pods"] = 403
    async with running(api, certificates, wait=False) as world:
        await world.until(lambda: any("cannot list" in line for line in world.scaler.readiness().lines))
        assert not world.scaler.is_ready()
