"""`llmservice probe NAME`: the pod that it makes, its log across an interruption, and that it is always deleted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from llmservice_cli.app import options_of
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.load.answer import Loss
from llmservice_cli.probe import Mode
from llmservice_cli.probe.report import ProbedRequest

from tests.support.patience import PATIENCE
from tests.unit.api_server import ApiServer
from tests.unit.cli_world import PODS, SERVICES, Command, Json, Ran

DEPLOYMENT = "/apis/apps/v1/namespaces/team/deployments/chat"
INIT_CONTAINERS = [{"name": "mine", "image": "other"}, {"name": "runtime", "image": "registry.test/operator:1"}]
TEMPLATE = {"initContainers": INIT_CONTAINERS, "imagePullSecrets": [{"name": "pull"}]}


def line(index: int, loss: str | None = None) -> str:
    return ProbedRequest(index, Mode.WHOLE_FRESH, 1000.0 + index, 1000.5 + index, loss).to_line()


BEGIN, END = json.dumps({"begin": 1000.0}), json.dumps({"end": 4})


@dataclass
class Probe:
    """The command, and an API server that runs its pod. `logs` are what each follow gets before its connection ends."""

    api: ApiServer
    llmservice: Command
    logs: list[list[str]] = field(default_factory=lambda: [[BEGIN, *map(line, range(4)), END]])
    status: Json = field(
        default_factory=lambda: {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
    )
    created: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event | None = None
    """What the answer to a created pod waits for."""

    async def __call__(self, *words: str) -> Ran:
        return await self.llmservice.within("probe", "chat", "--duration", "1", "-o", "json", "-q", *words)

    @property
    def pod(self) -> Json:
        """As it was created."""
        ((_, body),) = self.api.sent("POST")
        created: Json = body
        return created

    @property
    def container(self) -> Json:
        (only,) = self.pod["spec"]["containers"]
        found: Json = only
        return found

    @property
    def is_gone(self) -> bool:
        return not any(path.startswith(PODS) for path in self.api.objects)

    async def create(self, request: web.Request) -> web.Response:
        body = await request.json()
        path = f"{PODS}/{body['metadata']['name']}"
        pod = {**body, "metadata": {**body["metadata"], "uid": "u-2"}, "status": self.status}
        self.api.objects[path] = pod
        self.api.answers[f"{path}/log"] = self.log
        self.created.set()
        if self.may_answer is not None:
            await self.may_answer.wait()
        return web.json_response(pod)

    async def log(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for text in self.logs.pop(0) if self.logs else ():
            await response.write(f"{text}\n".encode())
        if self.logs:  # the API server restarts
            assert request.transport is not None
            request.transport.abort()
        return response


@pytest.fixture
def probe(api_server: ApiServer, llmservice: Command) -> Probe:
    metadata = {"name": "chat", "namespace": "team", "uid": "u-1"}
    api_server.objects = {
        f"{SERVICES}/chat": {"metadata": metadata, "spec": {}, "status": {}},
        DEPLOYMENT: {"spec": {"template": {"spec": TEMPLATE}}},
    }
    made = Probe(api_server, llmservice)
    api_server.answers[f"POST {PODS}"] = made.create
    return made


async def test_the_pod_runs_the_same_load_from_the_operators_image(probe: Probe) -> None:
    ran = await probe("--rate", "7", "--mode", "whole-fresh", "--prompt", "-x y")
    assert (ran.code, ran.json["summary"]["sent"]) == (ExitCode.DONE, 4)
    assert ran.json["target"] == {"name": "http://chat.team.svc", "way": "from inside the cluster", "model": "chat"}
    metadata, spec = probe.pod["metadata"], probe.pod["spec"]
    assert metadata["ownerReferences"][0]["uid"] == "u-1"
    assert "llmservice.dev/service" not in metadata["labels"], "the Service would send its clients to the pod"
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("Never", False)
    assert spec["activeDeadlineSeconds"] > 1
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert probe.container["image"] == "registry.test/operator:1"
    inside = options_of(probe.container["command"][3:])
    assert (inside.url, inside.model, inside.rate) == ("http://chat.team.svc", "chat", 7.0)
    assert (inside.mode, inside.prompt, inside.rows, inside.duration) == (["whole-fresh"], "-x y", True, 1.0)
    assert (probe.is_gone, probe.api.sent("DELETE")[0][1]["gracePeriodSeconds"]) == (True, 0)


@pytest.mark.parametrize(
    ("nodes", "has_set", "has_deployment", "expected"),
    [(2, True, True, 2), (2, False, True, 1), (1, True, False, 2), (1, True, True, 1)],
    ids=["moved", "not yet", "not back yet", "back"],
)
async def test_of_replicas_over_several_nodes_the_image_is_that_of_what_runs_them(
    probe: Probe, nodes: int, has_set: bool, has_deployment: bool, expected: int
) -> None:
    probe.api.objects[f"{SERVICES}/chat"]["spec"] = {"parallelism": {"nodes": nodes}}
    if not has_deployment:
        del probe.api.objects[DEPLOYMENT]
    if has_set:
        template = {**TEMPLATE, "initContainers": [{"name": "runtime", "image": "registry.test/operator:2"}]}
        body = {"spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": template}}}}
        probe.api.objects["/apis/leaderworkerset.x-k8s.io/v1/namespaces/team/leaderworkersets/chat"] = body
    assert (await probe()).code == ExitCode.DONE
    assert probe.container["image"] == f"registry.test/operator:{expected}"


async def test_the_key_comes_from_the_secret_and_is_seen_by_nobody_else(probe: Probe) -> None:
    reference = {"name": "keys", "key": "api-key"}
    probe.api.objects[f"{SERVICES}/chat"]["spec"] = {"endpoint": {"port": 8080, "apiKeySecretRef": reference}}
    await probe()
    (variable,) = [each for each in probe.container["env"] if each["name"] == "LLMSERVICE_API_KEY"]
    assert variable["valueFrom"] == {"secretKeyRef": reference}
    inside = options_of(probe.container["command"][3:])
    assert (inside.api_key_env, inside.url) == ("LLMSERVICE_API_KEY", "http://chat.team.svc:8080")


async def test_an_api_server_that_restarts_costs_no_row(probe: Probe) -> None:
    probe.logs = [[BEGIN, line(0), line(2)], [line(2), line(1, Loss.CUT)], [line(3), END]]
    ran = await probe()
    assert ran.code == ExitCode.REQUESTS_FAILED
    assert (ran.json["summary"]["sent"], ran.json["summary"]["lost"]) == (4, 1)
    since = [query.get("sinceTime") for _, path, query, _ in probe.api.requests if path.endswith("/log")]
    # From a little before the last row that was heard of.
    assert since == [None, "1970-01-01T00:16:37.500Z", "1970-01-01T00:16:37.500Z"]


async def test_an_interrupt_while_the_pod_is_created_deletes_it(probe: Probe) -> None:
    probe.may_answer = asyncio.Event()
    probing = asyncio.ensure_future(probe())
    await asyncio.wait_for(probe.created.wait(), PATIENCE)
    probing.cancel()
    await asyncio.sleep(0)
    probe.may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(probing, PATIENCE)
    assert len(probe.api.sent("POST")) == 1
    assert probe.is_gone


async def test_a_pod_that_breaks_is_reported_with_its_output_and_what_was_measured(probe: Probe) -> None:
    probe.status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}
    probe.logs = [["python: No module named llmservice_cli"]]
    with pytest.raises(CliError, match=r"No module named llmservice_cli"):
        await probe()
    assert probe.is_gone
    probe.logs = [[BEGIN, line(0)]]
    ran = await probe()
    assert ran.code == ExitCode.INTERRUPTED
    assert (ran.json["partial"], ran.json["summary"]["sent"]) == (True, 1)
    assert "ended before the probe did" in ran.err


def waiting(**state: str) -> Json:
    return {"containerStatuses": [{"state": {"waiting": state}}]}


WHY: dict[str, tuple[Json, Any, str]] = {
    "quota": ({}, (403, "exceeded quota: team"), "exceeded quota: team"),
    "no image": (waiting(reason="ErrImagePull", message="gone"), None, "ErrImagePull: gone"),
    "no such Secret": (waiting(reason="CreateContainerConfigError"), None, "CreateContainerConfigError"),
}


@pytest.mark.parametrize(("status", "answer", "message"), WHY.values(), ids=WHY)
async def test_why_the_pod_does_not_start(probe: Probe, status: Json, answer: Any, message: str) -> None:
    probe.status = status
    probe.api.answers[f"POST {PODS}"] = answer or probe.create
    with pytest.raises(CliError) as caught:
        await probe()
    assert message in str(caught.value)
    assert probe.is_gone


async def test_a_service_that_was_not_accepted_yet_has_no_image(probe: Probe) -> None:
    del probe.api.objects[DEPLOYMENT]
    with pytest.raises(CliError, match="--image"):
        await probe()
