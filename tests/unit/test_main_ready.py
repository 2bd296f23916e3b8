"""When a process calls itself ready: its rights are there, its caches are synced, and it acts or would on its Lease.

Each test runs a whole operator and asks what the kubelet asks.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import pytest
from llmservice_operator import handlers
from llmservice_operator.control.life import Stage
from llmservice_operator.control.watch import children
from llmservice_operator.kube import informer
from llmservice_operator.kube.credentials import Credentials, load
from llmservice_operator.kube.errors import KubeError
from llmservice_operator.kube.resources import BY_KIND

from tests.support.kubeconfig import kubeconfig
from tests.unit.ready_world import World, rival_lease, running

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")


def refusal(code: int) -> Exception:
    """As kopf raises it: all that can be told of its kind is the status."""
    error = Exception("no")
    error.status = code  # type: ignore[attr-defined]
    return error


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(informer, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(informer, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(informer, "LONGEST_PAUSE_WITHOUT_RIGHT", 0.1, raising=False)
    monkeypatch.setattr("llmservice_operator.control.watch.resync.RETRY", 0.1)
    monkeypatch.setattr("llmservice_operator.__main__.CRD_RETRY", 0.1, raising=False)
    yield World()
    gc.collect()  # a session that kopf left open would be another test's affair


async def test_one_that_acts_is_ready_and_says_at_which_stage_it_is(world: World) -> None:
    async with running(world) as operator:
        assert await operator.becomes_ready()
        assert "stage: acting" in await operator.says("stage: acting")
        assert await operator.metric('llmservice_stage{stage="acting"} 1.0')
        assert await operator.metric('llmservice_watch_synced{namespace=""} 1.0')


async def test_a_follower_is_ready_when_it_is_warm(world: World) -> None:
    """Else the upgrade of a Deployment would wait for ever for the pod that the old one keeps from leading."""
    world.leases["llmservice-operator"] = rival_lease()
    async with running(world) as operator:
        assert "stage: synced" in await operator.becomes_ready()


async def test_none_is_ready_before_its_caches_are_synced(world: World) -> None:
    world.slow.add("deployments")
    world.held.clear()
    async with running(world) as operator:
        text = await operator.says("not synced yet: deployments.apps")
        assert (await operator.readyz())[0] == 503, text
        assert await operator.metric('llmservice_stage{stage="started"} 1.0')
        world.held.set()
        await operator.becomes_ready()


async def test_none_is_ready_when_kopf_does_not_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ends() -> None:
        raise RuntimeError("no login")

    async def fails(**_: Any) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(ends())]

    monkeypatch.setattr(handlers, "FIRST_PAUSE", 0.05)
    with monkeypatch.context() as broken:
        broken.setattr(kopf, "spawn_tasks", fails)
        async with running(world) as operator:
            await operator.says("RuntimeError: no login")
            assert (await operator.readyz())[0] == 503
            broken.undo()
            await operator.becomes_ready()


@pytest.mark.parametrize(
    "plural",
    ["llmservices", "deployments", "controllerrevisions", "services", "pods", "persistentvolumeclaims", "leases"],
)
async def test_a_missing_right_is_named_and_readiness_comes_with_it(world: World, plural: str) -> None:
    world.forbidden.add((plural, None))
    async with running(world) as operator:
        text = await operator.says(f"missing right: {'get' if plural == 'leases' else 'list'} {plural}")
        assert (await operator.readyz())[0] == 503, text
        world.forbidden.clear()
        await operator.becomes_ready()


async def test_a_right_that_is_taken_later_ends_readiness_until_it_is_back(world: World) -> None:
    async with running(world) as operator:
        await operator.becomes_ready()
        world.forbidden.add(("persistentvolumeclaims", None))
        world.end_watches()
        await operator.says("missing right: watch persistentvolumeclaims")
        assert (await operator.readyz())[0] == 503
        world.forbidden.clear()
        await operator.becomes_ready()


@pytest.mark.parametrize("plural", ["jobs", "endpointslices"])
async def test_rights_that_can_be_done_without_keep_none_from_being_ready(world: World, plural: str) -> None:
    world.forbidden.add((plural, None))
    async with running(world) as operator:
        await operator.becomes_ready()
        await operator.hides("any", {"jobs": "Job", "endpointslices": "EndpointSlice"}[plural])
        world.forbidden.clear()
        await operator.hides("any")


async def test_an_optional_kind_without_its_crd_keeps_nobody_from_acting(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(children, "OPTIONAL", (BY_KIND["PodDisruptionBudget"],))
    world.absent.add("poddisruptionbudgets")
    world.service("any", "chat")
    async with running(world) as operator:
        await operator.becomes_ready()
        await operator.hides("any", "PodDisruptionBudget")
        await operator.acts_on("any", "chat")
        world.absent.clear()
        await operator.hides("any")
    assert sum("going on without poddisruptionbudgets" in record.message for record in caplog.records) == 1


async def test_a_missing_crd_is_waited_for(world: World) -> None:
    world.absent.add("llmservices")
    async with running(world) as operator:
        await operator.says("the CRD llmservices.llmservice.dev is not installed")
        assert (await operator.readyz())[0] == 503
        world.absent.clear()
        await operator.becomes_ready()


# Namespaces by themselves


@pytest.mark.parametrize("refused", ["llmservices", "deployments", "pods"])
async def test_a_namespace_without_rights_holds_up_no_other(world: World, refused: str) -> None:
    for namespace in ("blue", "green"):
        world.service(namespace, "chat")
    world.forbidden.add((refused, "green"))
    async with running(world, "blue", "green") as operator:
        await operator.acts_on("blue", "chat")
        text = await operator.says("stage: acting")
        assert (await operator.readyz())[0] == 200
        assert f"warning: namespace green: missing right: list {refused}" in text
        assert await operator.metric('llmservice_watch_forbidden{namespace="blue"} 0.0')
        assert not await operator.metric('llmservice_watch_forbidden{namespace="green"} 0.0')
        assert await operator.metric('llmservice_watch_synced{namespace="green"} 0.0')
        assert not [path for path in world.applied if "/green/" in path]
        world.forbidden.clear()
        await operator.acts_on("green", "chat")
        await operator.until(lambda code, text: code == 200 and "warning" not in text)


async def test_with_rights_nowhere_it_is_not_ready(world: World) -> None:
    world.forbidden |= {("pods", "blue"), ("pods", "green")}
    async with running(world, "blue", "green") as operator:
        text = await operator.says("namespace green: missing right: list pods")
        assert "namespace blue: missing right: list pods" in text
        assert (await operator.readyz())[0] == 503


async def test_what_is_refused_again_and_again_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.forbidden |= {("llmservices", "green"), ("pods", "green")}
    async with running(world, "blue", "green") as operator:
        await operator.becomes_ready()
        await asyncio.sleep(1)  # several tries
    said = [record.message for record in caplog.records if "namespace green: cannot watch" in record.message]
    assert sorted(part.split("cannot watch ")[1].split(":")[0] for part in said) == [
        "llmservices.llmservice.dev",
        "pods",
    ]


async def test_kinds_that_are_not_seen_in_one_namespace_are_seen_in_the_others(world: World) -> None:
    world.forbidden |= {("jobs", "green")}
    async with running(world, "blue", "green") as operator:
        await operator.becomes_ready()
        await operator.hides("green", "Job")
        await operator.hides("blue")


# The watch of LLMServices


@pytest.mark.parametrize("namespaces", [(), ("blue", "green")], ids=["all namespaces", "two namespaces"])
@pytest.mark.parametrize(("code", "reason"), [(410, "Expired"), (422, "Invalid")])
async def test_a_watch_that_kopf_cannot_go_on_with_ends_nothing_else(
    world: World, namespaces: tuple[str, ...], code: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """kopf cancelled the workers with its own tasks, and the process that led saw nothing any more."""
    world.service("blue", "one")
    async with running(world, *namespaces) as operator:
        await operator.becomes_ready()
        await operator.acts_on("blue", "one")
        world.refused_watches["llmservices"] = (code, reason)
        world.end_watches()
        await asyncio.sleep(0.2)
        world.service("blue", "two")
        await operator.acts_on("blue", "two")
        world.refused_watches.clear()
        await operator.until(lambda code, text: code == 200 and "warning" not in text)
        assert await operator.metric('llmservice_stage{stage="acting"} 1.0')
    assert "workers ended" not in caplog.text


async def test_an_api_server_that_is_away_for_long_is_a_warning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No replacement of the pod would help; what its watch is told by kopf ended its readiness."""
    real = handlers.settings

    def impatient() -> kopf.OperatorSettings:
        made = real()
        made.networking.error_backoffs = (0.01, 0.01)
        return made

    monkeypatch.setattr(handlers, "settings", impatient)
    monkeypatch.setattr(handlers, "FIRST_PAUSE", 30.0)  # it stays ended while it is looked at
    async with running(world) as operator:
        await operator.becomes_ready()
        world.refused_watches["llmservices"] = (503, "ServiceUnavailable")
        world.end_watches()
        text = await operator.says("APIServerError")
        assert (await operator.readyz())[0] == 200, text
        assert "warning: " in text


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.ClientOSError(111, "refused"), True),
        (TimeoutError(), True),
        (refusal(429), True),
        (refusal(500), True),
        (refusal(403), False),
        (refusal(410), False),
        (RuntimeError("a defect"), False),
    ],
    ids=repr,
)
def test_which_ends_of_kopfs_watch_pass_by_themselves(error: Exception, passes: bool) -> None:
    assert isinstance(handlers._reason(error), KubeError) is passes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
async def test_a_signal_stops_the_process_though_kopf_takes_signals_for_itself(world: World, number: int) -> None:
    """kopf's own handler ends a task of kopf's, and its watch would only be started again."""
    async with running(world) as operator:
        await operator.becomes_ready()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(5):
            await operator.operator._stop.wait()
        await operator.eventually(lambda: operator.operator._life.stage is Stage.STOPPING)


# While credentials are fetched

HANGS_WHEN_RENEWED = """\
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
first = not (folder / "ran").exists()
(folder / "ran").touch()
while not first and not (folder / "goes-on").exists():
    time.sleep(0.02)
expires = "2020-01-01T00:00:00Z" if first else None
print(json.dumps({"status": {"token": "t", "expirationTimestamp": expires}}))
"""


async def test_probes_are_answered_while_the_login_program_hangs(world: World, tmp_path: Path) -> None:
    program = {"command": sys.executable, "args": ["-c", HANGS_WHEN_RENEWED, str(tmp_path)]}

    async def login(url: str) -> Credentials:
        user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", **program}}
        return await load(kubeconfig=str(kubeconfig(tmp_path, user, server=url)))

    try:
        async with asyncio.timeout(30), running(world, login=login) as operator:
            await operator.says("stage: started")
            for _ in range(20):
                assert await operator.ask("/healthz") == (200, "ok\n")
            assert (await operator.readyz())[0] == 503
            (tmp_path / "goes-on").touch()
            await operator.becomes_ready()
    finally:
        (tmp_path / "goes-on").touch()
