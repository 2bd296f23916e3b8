"""`llmservice bench NAME`: through the service proxy of an API server, played by a real HTTP server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from llmservice_cli.app import make_parser
from llmservice_cli.errors import CliError, ExitCode

from tests.support.http_servers import cluster
from tests.unit.fake_vllm import FakeVllm

LOAD = ("--requests", "4", "--rate", "500", "--output-tokens", "2", "--discipline", "continuous", "-q")
MODELS = "/v1/models"


@dataclass
class World:
    """The API server's answers by path, and the vLLM behind its proxy on port 8080 of the Service."""

    vllm: FakeVllm = field(default_factory=FakeVllm)
    service: dict[str, Any] = field(default_factory=dict)
    refuses: int = 0
    tokens: set[str] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.tokens.add(request.headers.get("Authorization", ""))
        if request.path == "/apis/llmservice.dev/v1alpha1/namespaces/team/llmservices/chat":
            return web.json_response(self.service)
        before, _, path = request.path.partition("/proxy")
        assert before == "/api/v1/namespaces/team/services/chat:8080"
        if self.refuses:
            status = {"kind": "Status", "code": self.refuses, "message": "the API server says why"}
            return web.json_response(status, status=self.refuses)
        handlers = {MODELS: self.vllm.list_models, "/version": self.vllm.version, "/v1/completions": self.vllm.complete}
        return await handlers[path](request)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(service=service())
    async with cluster(made.answer, tmp_path, monkeypatch):
        yield made


def service(**endpoint: Any) -> dict[str, Any]:
    spec = {"model": {"uri": "hf://org/model"}, "endpoint": {"port": 8080, **endpoint}}
    return {"metadata": {"name": "chat", "namespace": "team"}, "spec": spec}


async def bench(*words: str) -> ExitCode:
    options = make_parser().parse_args(["bench", "chat", *LOAD, *words])
    code: ExitCode = await options.run(options)
    return code


async def test_requests_pass_the_service_proxy_with_the_kubeconfigs_token(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await bench() == ExitCode.DONE
    assert world.tokens == {"Bearer t0ken"}
    assert sorted(index for kind, index in world.vllm.log if kind == "end") == [0, 1, 2, 3]
    assert "team/chat through the API server, model chat, vLLM 0.32.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param(service(apiKeySecretRef={"name": "key", "key": "k"}), (), id="the service asks for a key"),
        pytest.param(service(), ("--api-key-env", "HOME"), id="the user gives one"),
    ],
)
async def test_an_api_key_cannot_pass_and_the_way_round_is_told(
    world: World, spec: dict[str, Any], words: tuple[str, ...]
) -> None:
    world.service = spec
    with pytest.raises(CliError, match=r"kubectl port-forward -n team service/chat 8000:8080") as caught:
        await bench(*words)
    assert "--url http://127.0.0.1:8000 --api-key-env" in caught.value.remedy
    assert world.vllm.bodies == []


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        pytest.param(403, "get and create on services/proxy", id="a right is missing"),
        pytest.param(503, "llmservice status chat -n team", id="no endpoint"),
    ],
)
async def test_what_the_api_server_refuses(world: World, code: int, remedy: str) -> None:
    world.refuses = code
    with pytest.raises(CliError, match="the API server says why") as caught:
        await bench()
    assert remedy in caught.value.remedy
