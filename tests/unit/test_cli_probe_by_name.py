"""`llmservice probe NAME`: the pod that it makes, its log across an interruption, and that it always goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from llmservice_cli.app import make_parser
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.load.answer import Loss
from llmservice_cli.probe.row import Mode, Row

from tests.support.http_servers import cluster

PODS = "/api/v1/namespaces/team/pods"
RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
QUICK = ("--duration", "1", "--json", "-q")


def service(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "chat", "namespace": "team", "uid": "u-1"}, "spec": spec, "status": {}}


def deployment(image: str = "registry.test/operator:1") -> dict[str, Any]:
    containers = [{"name": "mine", "image": "other"}, {"name": "runtime", "image": image}]
    template = {"initContainers": containers, "imagePullSecrets": [{"name": "pull"}]}
    return {"spec": {"template": {"spec": template}}}


def line(index: int, loss: str | None = None) -> str:
    return Row(index, Mode.WHOLE_FRESH, 1000.0 + index, 1000.5 + index, loss).to_line()


BEGIN, END = json.dumps({"begin": 1000.0}), json.dumps({"end": 4})


@dataclass
class Api:
    """One namespace of an API server. `logs` are what each follow gets before its connection ends."""

    service: dict[str, Any] = field(default_factory=service)
    deployment: dict[str, Any] | None = field(default_factory=deployment)
    logs: list[list[str]] = field(default_factory=lambda: [[BEGIN, *map(line, range(4)), END]])
    status: dict[str, Any] = field(default_factory=lambda: dict(RUNNING))
    refuses: str = ""
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    graces: list[int] = field(default_factory=list)
    since: list[str | None] = field(default_factory=list)
    has_made: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event | None = None
    """What the answer to a created pod waits for."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, name = request.path, request.path.removeprefix(f"{PODS}/").removesuffix("/log")
        if path == "/apis/llmservice.dev/v1alpha1/namespaces/team/llmservices/chat":
            return web.json_response(self.service)
        if path == "/apis/apps/v1/namespaces/team/deployments/chat" and self.deployment:
            return web.json_response(self.deployment)
        if path == PODS and request.method == "POST":
            response = self._create(await request.json())
            if self.answers is not None:
                await self.answers.wait()
            return response
        if name not in self.pods:
            return web.json_response({"kind": "Status", "code": 404, "message": f"no {path}"}, status=404)
        if request.method == "DELETE":
            self.graces.append((await request.json())["gracePeriodSeconds"])
            return web.json_response(self.pods.pop(name))
        return await self._log(request) if path.endswith("/log") else web.json_response(self.pods[name])

    def _create(self, pod: dict[str, Any]) -> web.Response:
        if self.refuses:
            return web.json_response({"kind": "Status", "code": 403, "message": self.refuses}, status=403)
        self.made.append(pod)
        self.has_made.set()
        pod = {**pod, "metadata": {**pod["metadata"], "uid": "u-2"}, "status": self.status}
        self.pods[pod["metadata"]["name"]] = pod
        return web.json_response(pod)

    async def _log(self, request: web.Request) -> web.StreamResponse:
        self.since.append(request.query.get("sinceTime"))
        response = web.StreamResponse()
        await response.prepare(request)
        for text in self.logs.pop(0) if self.logs else ():
            await response.write(f"{text}\n".encode())
        if self.logs:  # the API server restarts
            assert request.transport is not None
            request.transport.abort()
        return response


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    made = Api()
    async with cluster(made.answer, tmp_path, monkeypatch):
        yield made


async def probe(*words: str) -> ExitCode:
    options = make_parser(["probe"]).parse_args(["probe", "chat", *QUICK, *words])
    code: ExitCode = await options.run(options)
    return code


async def test_the_pod_runs_the_same_load_from_the_operators_image(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await probe("--rate", "7", "--mode", "whole-fresh", "--prompt", "-x y") == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    assert told["target"] == {"name": "http://chat.team.svc", "way": "from inside the cluster", "model": "chat"}
    assert told["summary"]["sent"] == 4
    (pod,) = api.made
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    spec = pod["spec"]
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("Never", False)
    assert spec["activeDeadlineSeconds"] > 1
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    (container,) = spec["containers"]
    assert container["image"] == "registry.test/operator:1"
    inside = make_parser(["probe"]).parse_args(container["command"][3:])
    assert (inside.url, inside.model, inside.rate, inside.mode) == (
        "http://chat.team.svc",
        "chat",
        7.0,
        ["whole-fresh"],
    )
    assert (inside.prompt, inside.rows, inside.duration) == ("-x y", True, 1.0)


async def test_the_service_never_sends_its_clients_to_the_probe(api: Api) -> None:
    await probe()
    assert "llmservice.dev/service" not in api.made[0]["metadata"]["labels"]


async def test_the_key_comes_from_the_secret_and_is_seen_by_nobody_else(api: Api) -> None:
    reference = {"name": "keys", "key": "api-key"}
    api.service = service(endpoint={"port": 8080, "apiKeySecretRef": reference})
    await probe()
    (container,) = api.made[0]["spec"]["containers"]
    (variable,) = [each for each in container["env"] if each["name"] == "LLMSERVICE_API_KEY"]
    assert variable["valueFrom"] == {"secretKeyRef": reference}
    inside = make_parser(["probe"]).parse_args(container["command"][3:])
    assert (inside.api_key_env, inside.url) == ("LLMSERVICE_API_KEY", "http://chat.team.svc:8080")


async def test_an_api_server_that_restarts_costs_no_row(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.logs = [[BEGIN, line(0), line(2)], [line(2), line(1, Loss.CUT)], [line(3), END]]
    assert await probe() == ExitCode.REQUESTS_FAILED
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert (summary["sent"], summary["lost"]) == (4, 1)
    # From a little before the last row that was heard of.
    assert api.since == [None, "1970-01-01T00:16:37.500Z", "1970-01-01T00:16:37.500Z"]


async def test_the_pod_is_gone_afterwards(api: Api) -> None:
    await probe()
    assert (api.pods, api.graces) == ({}, [0])


async def test_the_pod_is_gone_though_nobody_waited_for_it_to_be_made(api: Api) -> None:
    """^C while the API server has made it and not said so yet."""
    api.answers = asyncio.Event()
    probing = asyncio.ensure_future(probe())
    await asyncio.wait_for(api.has_made.wait(), 10)
    probing.cancel()
    await asyncio.sleep(0)
    api.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(probing, 10)
    assert len(api.made) == 1
    assert not api.pods


async def test_a_probe_that_breaks_is_told_in_its_own_words_and_is_gone_too(api: Api) -> None:
    api.logs = [["python: No module named llmservice_cli"]]
    api.status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}
    with pytest.raises(CliError, match=r"No module named llmservice_cli"):
        await probe()
    assert api.pods == {}


async def test_what_was_gathered_is_told_though_the_pod_broke(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.logs = [[BEGIN, line(0)]]
    api.status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]}
    assert await probe() == ExitCode.INTERRUPTED
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert (told["partial"], told["summary"]["sent"]) == (True, 1)
    assert "ended before the probe did" in printed.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"deployment": None}, "--image", id="not accepted yet"),
        pytest.param({"refuses": "exceeded quota: team"}, "exceeded quota: team", id="quota"),
        pytest.param(
            {"status": {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "gone"}}}]}},
            "ErrImagePull: gone", id="no image",
        ),
        pytest.param(
            {"status": {"containerStatuses": [{"state": {"waiting": {"reason": "CreateContainerConfigError"}}}]}},
            "CreateContainerConfigError", id="no such secret",
        ),
    ],
)  # fmt: skip
async def test_why_it_does_not_start(api: Api, change: dict[str, Any], message: str) -> None:
    for name, value in change.items():
        setattr(api, name, value)
    with pytest.raises(CliError) as caught:
        await probe()
    assert message in str(caught.value)
    assert api.pods == {}
