"""What the benchmark of autoscaling counts: writes, listeners, KEDA's calls, and the goals that a run has."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from kubeloop.resources import Key
from llmservice_api.lifecycle import Autoscaling

from benchmarks.autoscaling import page
from benchmarks.autoscaling.figures import Figures, goals, rest
from benchmarks.autoscaling.keda import connected
from benchmarks.autoscaling.run import listened, written
from benchmarks.autoscaling.services import autoscaled, is_at_zero
from benchmarks.scale.audit import Request
from benchmarks.scale.figures import judged
from tests.unit.api_server import ApiServer
from tests.unit.scaler_world import certificates, running, service

__all__ = ["certificates"]

__all__ = ["certificates"]


def asked(verb: str, resource: str, name: str) -> Request:
    return Request(verb, resource, 200, name)


@pytest.mark.parametrize(
    ("request_", "counts"),
    [
        pytest.param(asked("update", "leases", "llmservice-operator"), {}, id="the leader's renewal"),
        pytest.param(asked("create", "leases", ""), {"create leases": 1}, id="a new lease"),
        pytest.param(asked("update", "leases", "llmservice-port-10240"), {"update leases": 1}, id="a port taken over"),
        pytest.param(asked("patch", "llmservices/scale", "s"), {"patch llmservices/scale": 1}, id="a wake"),
        pytest.param(asked("create", "events", "e"), {"create events": 1}, id="an Event"),
        pytest.param(asked("get", "llmservices/scale", "s"), {}, id="a read"),
        pytest.param(asked("watch", "pods", ""), {}, id="a watch"),
    ],
)
def test_what_is_a_write(request_: Request, counts: dict[str, int]) -> None:
    assert written([request_]) == counts


def test_listeners_are_told_from_connections(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st\n"
    ipv4, ipv6 = tmp_path / "tcp", tmp_path / "tcp6"
    ipv4.write_text(head + "   0: 0100007F:1F90 00000000:0000 0A\n   1: 0100007F:2800 0100007F:1F90 01\n")
    ipv6.write_text(head + f"   0: {'0' * 32}:2801 {'0' * 32}:0000 0A\n")
    assert listened((ipv4, ipv6)) == {0x1F90, 0x2801}


MET: dict[str, Any] = {"services": 1000, "at_zero": 900, "idle_seconds": 60.0}


@pytest.mark.parametrize(
    ("said", "missed"),
    [
        pytest.param({}, "", id="nothing went wrong"),
        pytest.param(
            {"idle_writes": {"create events": 1}}, "writes of the activator", id="an Event in the idle minute"
        ),
        pytest.param(
            {"operator_idle_writes": {"patch services": 2}}, "writes of the operator", id="the operator wrote"
        ),
        pytest.param({"calls_failed": 1}, "calls of KEDA that failed", id="a call failed"),
        pytest.param({"calls_wrong": 1}, "wrong answers", id="a service at zero was said to be in use"),
        pytest.param({"unwoken": 1}, "services that were not woken", id="one slept on"),
        pytest.param({"unanswered": 1}, "requests without an answer", id="one got no answer"),
        pytest.param({"idle_cpu_seconds": 6.1}, "activator CPU", id="CPU"),
        pytest.param({"services": 2000, "idle_cpu_seconds": 11.9}, "", id="CPU of twice as many"),
        pytest.param({"services": 100, "idle_cpu_seconds": 5.9}, "", id="CPU of a tenth"),
        pytest.param({"idle_seconds": 600.0, "idle_cpu_seconds": 59.0}, "", id="CPU of ten minutes"),
        pytest.param({"wake_seconds": {"p50": 0.1, "max": 3.1}}, "request at zero to scale 1", id="a slow wake"),
    ],
)
def test_goals(said: dict[str, Any], missed: str) -> None:
    found = [goal.what for goal in goals(Figures(**{**MET, **said})) if not goal.is_met]
    assert [what[: len(missed)] for what in found] == ([missed] if missed else [])


def test_the_table_has_a_line_for_each_goal_and_figure() -> None:
    found = Figures(**{**MET, "idle_writes": {"create events": 3}, "open_files": 1234})
    lines = judged(goals(found)).splitlines()
    assert sum("MISSED" in line for line in lines) == 1
    assert next(line for line in lines if "MISSED" in line).split()[-2:] == ["3", "MISSED"]
    assert ("activator open files", "1,234") in rest(found)


def test_nine_of_ten_services_are_at_zero_and_all_may_be() -> None:
    made = [autoscaled(number)["spec"]["scaling"] for number in range(100)]
    assert [scaling["replicas"] == 0 for scaling in made] == [is_at_zero(number) for number in range(100)]
    assert sum(scaling["replicas"] for scaling in made) == 10
    assert all(Autoscaling.model_validate(scaling["autoscaling"]).may_be_at_zero for scaling in made)


CHAT = Key("ns", "chat")


@pytest.mark.parametrize(
    ("key", "should_be_in_use", "counts"),
    [
        pytest.param(CHAT, False, (3, 0, 0), id="at zero, as it should be"),
        pytest.param(CHAT, True, (3, 0, 1), id="at zero, and should be in use"),
        pytest.param(Key("ns", "nobody"), False, (2, 1, 0), id="a service that is not there"),
    ],
)
async def test_calls_of_keda_are_counted(
    key: Key, should_be_in_use: bool, counts: tuple[int, int, int], certificates: Path
) -> None:
    """GetMetricSpec is answered for any service, GetMetrics is not."""
    at_zero = service(replicas=0, autoscaling={"minReplicas": 0, "maxReplicas": 2})
    async with (
        running(ApiServer(at_zero), certificates) as world,
        connected(world.scaler.port, certificates / "keda", lambda _: should_be_in_use) as keda,
    ):
        await keda.observe(key)
        assert (keda.calls, keda.failed, keda.wrong) == counts


async def test_streams_say_what_comes_into_use_and_that_they_ended(certificates: Path) -> None:
    at_zero = service(replicas=0, autoscaling={"minReplicas": 0, "maxReplicas": 2})
    async with (
        running(ApiServer(at_zero), certificates) as world,
        connected(world.scaler.port, certificates / "keda", lambda _: False) as keda,
    ):
        keda.open_streams([CHAT, Key("ns", "nobody")])
        await world.until(lambda: keda.ended_streams() == 1)
        assert keda.pushed == {}
        await keda.observe(CHAT)
        world.scaler._external.activated(CHAT)
        await world.until(lambda: CHAT in keda.pushed)


async def test_each_service_is_asked_as_often_as_keda_does(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.autoscaling.keda.INTERVAL", 0.25)
    at_zero = service(replicas=0, autoscaling={"minReplicas": 0, "maxReplicas": 2})
    async with (
        running(ApiServer(at_zero), certificates) as world,
        connected(world.scaler.port, certificates / "keda", lambda _: False) as keda,
    ):
        began = time.monotonic()
        await keda.observe_all([CHAT, Key("ns", "nobody")], 1.0)
        assert time.monotonic() - began >= 1.0
        assert (keda.calls, keda.failed, len(keda.metric_seconds)) == (4 * 3 + 4 * 2, 4, 4)


def test_the_page_has_a_column_for_each_kept_run(tmp_path: Path) -> None:
    assert list(page.section(page.read(tmp_path))) == []
    folder = tmp_path / page.FOLDER
    folder.mkdir(parents=True)
    for services, writes in ((1000, {}), (100, {"create events": 2})):
        found = Figures(services, services * 9 // 10, idle_seconds=60.0, idle_writes=writes, machine="2 cores, 24 GiB")
        (folder / f"{services}.json").write_text(json.dumps(found.to_json()))
    lines = list(page.section(page.read(tmp_path)))
    assert "| figure | goal | 100 | 1,000 |" in lines
    assert "| writes of the activator in an idle minute | ≤ 0 | **2** missed | 0 |" in lines
    assert "| machine |  | 2 cores, 24 GiB | 2 cores, 24 GiB |" in lines
