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
from kubeloop import informer, kopf_source
from kubeloop.credentials import Credentials, load
from kubeloop.errors import KubeError
from kubeloop.health import Stage
from kubeloop.resources import DEPLOYMENT, Resource
from llmservice_api.constants import BY_KIND
from llmservice_operator.service import watch

from tests.support.kubeconfig import kubeconfig
from tests.support.patience import PATIENCE
from tests.unit.api_server import ApiServer
from tests.unit.running_operator import refused_service, rival_lease, running

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")


def refusal(code: int) -> Exception:
    """As kopf raises it: only its status shows its kind."""
    error = Exception("no")
    error.status = code  # type: ignore[attr-defined]
    return error


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr(informer, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(informer, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(informer, "LONGEST_PAUSE_WITHOUT_RIGHT", 0.1)
    monkeypatch.setattr(kopf_source, "RETRY", 0.1)
    monkeypatch.setattr(kopf_source, "AFTER_RELIST", 0.1)
    monkeypatch.setattr(kopf_source, "FIRST_PAUSE", 0.05)
    yield ApiServer()
    gc.collect()  # a session that kopf left open would be another test's affair


async def test_one_that_acts_is_ready_and_says_at_which_stage_it_is(api: ApiServer) -> None:
    async with running(api) as operator:
        await operator.becomes_ready()
        await operator.shows("stage: acting")
        assert await operator.metric('llmservice_stage{stage="acting"} 1.0')
        assert await operator.metric('llmservice_watch_synced{namespace=""} 1.0')


async def test_a_follower_is_ready_when_it_is_warm(api: ApiServer) -> None:
    """Else the upgrade of a Deployment would wait for ever for the pod that the old one keeps from leading."""
    api.put(rival_lease())
    async with running(api) as operator:
        assert "stage: synced" in await operator.becomes_ready()


async def test_none_is_ready_before_its_caches_are_synced(api: ApiServer) -> None:
    released = api.hold(DEPLOYMENT.path(None))
    async with running(api) as operator:
        text = await operator.shows("not synced yet: deployments.apps")
        assert (await operator.readyz())[0] == 500, text
        assert await operator.metric('llmservice_stage{stage="started"} 1.0')
        released.set()
        await operator.becomes_ready()


async def test_none_is_ready_when_kopf_does_not_start(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ends() -> None:
        raise RuntimeError("no login")

    async def fails(**_: Any) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(ends())]

    with monkeypatch.context() as broken:
        broken.setattr(kopf, "spawn_tasks", fails)
        async with running(api) as operator:
            await operator.shows("RuntimeError: no login")
            assert (await operator.readyz())[0] == 500
            broken.undo()
            await operator.becomes_ready()


@pytest.mark.parametrize("plural", ["llmservices", "deployments", "persistentvolumeclaims", "leases"])
async def test_a_missing_right_is_named_and_readiness_comes_with_it(api: ApiServer, plural: str) -> None:
    api.refused[plural] = 403
    async with running(api) as operator:
        text = await operator.shows(f"missing right: {'get' if plural == 'leases' else 'list'} {plural}")
        assert (await operator.readyz())[0] == 500, text
        api.refused.clear()
        await operator.becomes_ready()


async def test_a_right_that_is_taken_later_ends_readiness_until_it_is_back(api: ApiServer) -> None:
    async with running(api) as operator:
        await operator.becomes_ready()
        api.refused["persistentvolumeclaims"] = 403
        api.end_watches()
        await operator.shows("missing right: watch persistentvolumeclaims")
        assert (await operator.readyz())[0] == 500
        api.refused.clear()
        await operator.becomes_ready()


@pytest.mark.parametrize(("plural", "kind"), [("jobs", "Job"), ("endpointslices", "EndpointSlice")])
async def test_rights_that_can_be_done_without_keep_none_from_being_ready(
    api: ApiServer, plural: str, kind: str
) -> None:
    api.refused[f"green/{plural}"] = 403
    async with running(api, "blue", "green") as operator:
        await operator.becomes_ready()
        await operator.hides("green", kind)
        await operator.hides("blue")
        api.refused.clear()
        await operator.hides("green")


async def test_an_optional_kind_without_its_crd_keeps_nobody_from_acting(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "OPTIONAL", (BY_KIND["PodDisruptionBudget"],))
    api.refused["poddisruptionbudgets"] = 404
    api.put(refused_service("any", "chat"))
    async with running(api) as operator:
        await operator.becomes_ready()
        await operator.hides("any", "PodDisruptionBudget")
        await operator.acts_on("any", "chat")
        api.refused.clear()
        await operator.hides("any")
    assert sum("going on without poddisruptionbudgets" in record.message for record in caplog.records) == 1


async def test_a_missing_crd_is_waited_for(api: ApiServer) -> None:
    api.refused["llmservices"] = 404
    async with running(api) as operator:
        await operator.shows("the CRD llmservices.llmservice.dev is not installed")
        assert (await operator.readyz())[0] == 500
        api.refused.clear()
        await operator.becomes_ready()


# Namespaces by themselves


@pytest.mark.parametrize("refused", ["llmservices", "pods"])
async def test_a_namespace_without_rights_holds_up_no_other(api: ApiServer, refused: str) -> None:
    for namespace in ("blue", "green"):
        api.put(refused_service(namespace, "chat"))
    api.refused[f"green/{refused}"] = 403
    async with running(api, "blue", "green") as operator:
        await operator.acts_on("blue", "chat")
        text = await operator.shows("stage: acting")
        assert (await operator.readyz())[0] == 200
        assert f"warning: namespace green: missing right: list {refused}" in text
        assert await operator.metric('llmservice_watch_forbidden{namespace="blue"} 0.0')
        assert not await operator.metric('llmservice_watch_forbidden{namespace="green"} 0.0')
        assert await operator.metric('llmservice_watch_synced{namespace="green"} 0.0')
        assert not [path for method, path, *_ in api.requests if method != "GET" and "/green/" in path]
        api.refused.clear()
        await operator.acts_on("green", "chat")
        await operator.until(lambda code, text: code == 200 and "warning" not in text)


async def test_with_rights_nowhere_it_is_not_ready_and_each_problem_is_logged_once(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    api.refused = {"blue/pods": 403, "green/pods": 403}
    async with running(api, "blue", "green") as operator:
        text = await operator.shows("namespace green: missing right: list pods")
        assert "namespace blue: missing right: list pods" in text
        assert (await operator.readyz())[0] == 500
        await operator.eventually(lambda: sum("/pods" in path for _, path, *_ in api.requests) > 8)
    logged = [record.message for record in caplog.records if "cannot watch" in record.message]
    assert len(logged) == len(set(logged)) == 2


# The watch of LLMServices


@pytest.mark.parametrize(("namespaces", "code"), [((), 410), (("blue", "green"), 422)], ids=["all", "two"])
async def test_a_watch_that_kopf_cannot_go_on_with_ends_nothing_else(
    api: ApiServer, namespaces: tuple[str, ...], code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """kopf cancelled the workers with its own tasks, and the process that led saw nothing any more."""
    api.put(refused_service("blue", "one"))
    async with running(api, *namespaces) as operator:
        await operator.becomes_ready()
        await operator.acts_on("blue", "one")
        api.refused["watch llmservices"] = code
        api.end_watches()
        await asyncio.sleep(0.2)
        api.put(refused_service("blue", "two"))
        await operator.acts_on("blue", "two")
        api.refused.clear()
        await operator.until(lambda code, text: code == 200 and "warning" not in text)
        assert await operator.metric('llmservice_stage{stage="acting"} 1.0')
    assert "workers ended" not in caplog.text


async def test_an_api_server_that_is_away_for_long_is_a_warning(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No replacement of the pod would help; errors of kopf once ended its readiness."""
    real = kopf_source.settings

    def impatient(resource: Resource) -> kopf.OperatorSettings:
        made = real(resource)
        made.networking.error_backoffs = (0.01, 0.01)
        return made

    monkeypatch.setattr(kopf_source, "settings", impatient)
    monkeypatch.setattr(kopf_source, "FIRST_PAUSE", 30.0)  # it stays ended during the test
    async with running(api) as operator:
        await operator.becomes_ready()
        api.refused["watch llmservices"] = 503
        api.end_watches()
        text = await operator.shows("APIServerError")
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
    assert isinstance(kopf_source._reason(error), KubeError) is passes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
async def test_a_signal_stops_the_process_though_kopf_takes_signals_for_itself(api: ApiServer, number: int) -> None:
    """kopf's own handler ends a task of kopf's, and its watch would only be started again."""
    async with running(api) as operator:
        await operator.becomes_ready()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(PATIENCE):
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


async def test_probes_are_answered_while_the_login_program_hangs(api: ApiServer, tmp_path: Path) -> None:
    program = {"command": sys.executable, "args": ["-c", HANGS_WHEN_RENEWED, str(tmp_path)]}

    async def login(url: str) -> Credentials:
        user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", **program}}
        return await load(kubeconfig=str(kubeconfig(tmp_path, user, server=url)))

    try:
        async with asyncio.timeout(PATIENCE), running(api, login=login) as operator:
            await operator.shows("stage: started")
            for _ in range(20):
                assert await operator.ask("/healthz") == (200, "ok\n")
            assert (await operator.readyz())[0] == 500
            (tmp_path / "goes-on").touch()
            await operator.becomes_ready()
    finally:
        (tmp_path / "goes-on").touch()
