"""`llmservice status` against a real HTTP server that plays the API server and its pod proxy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from llmservice_cli.app import make_parser
from llmservice_cli.errors import CliError, ExitCode

from tests.support.http_servers import cluster

METRICS = (Path(__file__).parent / "fixtures" / "vllm_metrics.txt").read_text()
SERVICES = "/apis/llmservice.dev/v1alpha1/namespaces/team/llmservices"
PODS = "/api/v1/namespaces/team/pods"
STAMP = "2026-01-01T00:00:00Z"


def condition(kind: str, status: str, reason: str, message: str = "as it is") -> dict[str, Any]:
    told = {"type": kind, "status": status, "reason": reason, "message": message}
    return {**told, "observedGeneration": 2, "lastTransitionTime": STAMP}


def service(name: str = "chat", *, generation: int = 2, **status: Any) -> dict[str, Any]:
    ready = {
        "observedGeneration": 2,
        "conditions": [condition("Accepted", "True", "Valid"), condition("Ready", "True", "RolledOut")],
        "ready": "1/1",
        "updatedReplicas": 1,
        "availableReplicas": 1,
        "gpus": 2,
        "endpoint": {"url": f"http://{name}.team.svc/v1", "modelNames": [name, "alias"]},
        "rollout": {"revision": "0123456789", "strategy": "Surge"},
        "measured": {"kvCacheTokens": 8192, "kvCacheMemoryGiB": 1.25, "startSeconds": 31.5},
    }
    return {
        "metadata": {"name": name, "namespace": "team", "generation": generation},
        "spec": {"model": {"uri": "hf://org/model"}},
        "status": {**ready, **status},
    }


def pod(name: str, *, ready: bool = True, waiting: str = "", restarts: int = 0) -> dict[str, Any]:
    state = {"waiting": {"reason": waiting, "message": "why"}} if waiting else {"running": {}}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": name,
            "labels": {"llmservice.dev/service": "chat", "llmservice.dev/revision": "0123456789"},
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"name": "server", "ready": ready, "state": state, "restartCount": restarts}],
        },
    }


@dataclass
class Api:
    """Answers by path; what is not there is 404, as an API server says it."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def has(self, *services: Mapping[str, Any], pods: Any = (), metrics: Mapping[str, Any] | None = None) -> None:
        self.answers[SERVICES] = {"items": list(services)}
        for each in services:
            self.answers[f"{SERVICES}/{each['metadata']['name']}"] = each
        self.answers[PODS] = pods if isinstance(pods, int) else {"items": list(pods)}
        for name, answer in (metrics or {}).items():
            self.answers[f"{PODS}/{name}:8000/proxy/metrics"] = answer

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        found = self.answers.get(request.path, 404)
        if isinstance(found, str):
            return web.Response(text=found, content_type="text/plain")
        if isinstance(found, int):
            message = f'User "me" cannot get resource "pods/proxy": {found}'
            return web.json_response({"kind": "Status", "code": found, "message": message}, status=found)
        return web.json_response(found)


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    fake = Api()
    async with cluster(fake.answer, tmp_path, monkeypatch):
        yield fake


async def status(*words: str) -> None:
    options = make_parser().parse_args(["status", *words])
    assert await options.run(options) == ExitCode.DONE


async def text_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    await status(*words)
    return capsys.readouterr().out


async def json_of(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(await text_of(capsys, *words, "-o", "json"))


async def test_a_serving_service_on_one_screen(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.has(service(), pods=[pod("chat-1")], metrics={"chat-1": METRICS})
    screen = await text_of(capsys, "chat")
    for line in (
        "chat in namespace team: Ready is True: RolledOut",
        "endpoint    http://chat.team.svc/v1 as chat, alias",
        "replicas    1/1 ready, 1 of this revision, 1 available; 2 GPUs in all",
        "revision    0123456789, strategy Surge",
        "kv cache tokens: 8192",
        "kv cache memory GiB: 1.25",
        "chat-1: requests refused by a queue limit: none",
    ):
        assert line in screen
    assert f"{PODS}?limit=500&labelSelector=llmservice.dev/service%3Dchat" in [
        path.replace("llmservice.dev%2Fservice", "llmservice.dev/service") for path in api.asked
    ]
    assert "what to do" not in screen
    (row,) = [line.split() for line in screen.splitlines() if line.strip().startswith("chat-1 ")]
    assert row == ["chat-1", "Running", "yes", "0", "0", "0", "0.0", "%", "0.0", "%", "0"]


async def test_the_same_as_json(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.has(service(), pods=[pod("chat-1", restarts=3)], metrics={"chat-1": METRICS})
    found = await json_of(capsys, "chat")
    (told,) = found["services"]
    assert (found["version"], told["name"], told["namespace"], told["statusIsOutdated"]) == (1, "chat", "team", False)
    assert told["status"]["ready"] == "1/1"
    assert told["remedies"] == {}
    (seen,) = told["pods"]
    assert (seen["name"], seen["ready"], seen["restarts"], seen["revision"]) == ("chat-1", True, 3, "0123456789")
    assert seen["live"]["requestsRunning"] == 0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(403, "cannot get resource", id="a right is missing"),
        pytest.param(503, "503", id="the pod does not answer"),
        pytest.param("<html>", "not understood", id="it answers something else"),
    ],
)
async def test_what_cannot_be_read_is_told_with_the_reason(
    api: Api, capsys: pytest.CaptureFixture[str], answer: Any, why: str
) -> None:
    api.has(
        service(),
        pods=[pod("chat-1"), pod("chat-2"), pod("chat-3", ready=False, waiting="CrashLoopBackOff")],
        metrics={"chat-1": METRICS, "chat-2": answer},
    )
    screen = await text_of(capsys, "chat")
    assert "chat-2: no live figures, not" in screen
    assert why in screen
    assert "chat-3: no live figures, the pod is not ready" in screen
    first, second, third = (await json_of(capsys, "chat"))["services"][0]["pods"]
    assert "live" in first
    assert why in second["liveUnread"]
    assert "live" not in second
    assert (third["state"], third["liveUnread"]) == ("CrashLoopBackOff", "the pod is not ready")


async def test_pods_that_may_not_be_listed(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.has(service(), pods=403)
    assert "not listed: User" in await text_of(capsys, "chat")
    assert "not listed" in (await json_of(capsys, "chat"))["services"][0]["podsUnread"]


async def test_a_failure_comes_with_its_remedy_and_evidence(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    failure = {
        "reason": "ModelNotFound",
        "message": "there is no org/model",
        "remedy": "correct spec.model.uri",
        "pod": "chat-1",
        "since": STAMP,
        "evidence": ["RepositoryNotFoundError: 404"],
    }
    conditions = [
        condition("Accepted", "True", "Valid"),
        condition("Ready", "False", "ModelNotFound"),
        condition("Stalled", "True", "ModelNotFound"),
        condition("Available", "False", "NoReplicaReady"),
    ]
    api.has(service(conditions=conditions, failure=failure))
    screen = await text_of(capsys, "chat")
    for words in (
        "chat in namespace team: Ready is False: ModelNotFound",
        "ModelNotFound in pod chat-1, first seen",
        "what to do: correct spec.model.uri",
        "| RepositoryNotFoundError: 404",
        "what to do about NoReplicaReady: ",
    ):
        assert words in screen
    assert "what to do about ModelNotFound" not in screen, "the failure's own remedy is the better one"
    assert set((await json_of(capsys, "chat"))["services"][0]["remedies"]) == {"ModelNotFound", "NoReplicaReady"}


async def test_a_start_and_adapters(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    progress = {"pod": "chat-1", "phase": "Fetching", "artifact": "model", "step": "Downloading", "percent": 43}
    api.has(
        service(
            progress={**progress, "bytesPerSecond": 212_000_000, "etaSeconds": 130, "message": "4.3 of 10 GiB"},
            adapters=[{"name": "law", "loaded": True}, {"name": "med", "loaded": False, "message": "no such path"}],
        )
    )
    screen = await text_of(capsys, "chat")
    assert "pod chat-1: Fetching model Downloading, 43 %, 212 MB/s, about 2m10s left" in screen
    assert "4.3 of 10 GiB" in screen
    rows = [line.split() for line in screen.splitlines() if line.strip().startswith(("law", "med"))]
    assert rows == [["law", "yes"], ["med", "no", "no", "such", "path"]]


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        pytest.param(service(generation=3), "has not reconciled the latest change", id="outdated"),
        pytest.param(service(measured=None), "nothing: the operator has not read it", id="nothing measured"),
        pytest.param(
            service(measured={"reason": "the pod did not answer"}),
            "what is missing: the pod did not answer",
            id="why it was not measured",
        ),
        pytest.param(
            service(conditions=[condition("Ready", "False", "NewWord")]), "does not know the reason", id="newer reason"
        ),
        pytest.param(service(conditions=[], observedGeneration=-1), "is the operator running", id="never seen"),
    ],
)
async def test_what_is_not_known_is_said(
    api: Api, capsys: pytest.CaptureFixture[str], seen: Mapping[str, Any], words: str
) -> None:
    api.has(seen)
    assert words in await text_of(capsys, "chat")


async def test_all_services_a_line_each(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    starting = service("other", conditions=[condition("Ready", "False", "Starting")], progress={"phase": "Loading"})
    api.has(service(), starting)
    header, first, second = (await text_of(capsys)).splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "PROGRESS", "MODEL", "URL"]
    assert first.split() == ["chat", "1/1", "RolledOut", "-", "hf://org/model", "http://chat.team.svc/v1"]
    assert second.split()[:4] == ["other", "1/1", "Starting", "Loading"]
    assert [each["name"] for each in (await json_of(capsys))["services"]] == ["chat", "other"]


async def test_a_name_that_is_not_there_names_those_that_are(api: Api) -> None:
    api.has(service("chat"), service("other"))
    with pytest.raises(CliError, match=r"(?s)no LLMService 'chatt'.*choose one of: chat, other"):
        await status("chatt")


async def test_without_the_crd_the_operator_is_to_be_installed(api: Api) -> None:
    with pytest.raises(CliError, match="install the operator"):
        await status()
