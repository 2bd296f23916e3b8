"""`llmservice bench NAME`: through the API server's service proxy."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_cli.errors import CliError, ExitCode

from .cli_world import SERVICES, ApiServer, Command, Json
from .fake_vllm import FakeVllm

LOAD = ("--requests", "4", "--rate", "500", "--output-tokens", "2", "--discipline", "continuous", "-q")
PROXY = "/api/v1/namespaces/team/services/chat:8080/proxy"


def service(**endpoint: Any) -> Json:
    spec = {"model": {"uri": "hf://org/model"}, "endpoint": {"port": 8080, **endpoint}}
    return {"metadata": {"name": "chat", "namespace": "team"}, "spec": spec}


@pytest.fixture
def vllm(api_server: ApiServer) -> FakeVllm:
    fake = FakeVllm()
    api_server.objects[f"{SERVICES}/chat"] = service()
    handlers = {"/v1/models": fake.list_models, "/version": fake.version, "/v1/completions": fake.complete}
    api_server.answers = {f"{PROXY}{path}": handler for path, handler in handlers.items()}
    return fake


async def test_requests_pass_the_service_proxy_with_the_kubeconfigs_token(
    api_server: ApiServer, vllm: FakeVllm, llmservice: Command
) -> None:
    ran = await llmservice.within("bench", "chat", *LOAD)
    assert ran.code == ExitCode.DONE
    assert api_server.tokens == {"Bearer t0ken"}
    assert sorted(index for kind, index in vllm.log if kind == "end") == [0, 1, 2, 3]
    assert "team/chat through the API server, model chat, vLLM 0.32.0" in ran.out


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [({"apiKeySecretRef": {"name": "key", "key": "k"}}, ()), ({}, ("--api-key-env", "HOME"))],
    ids=["the service asks for a key", "the user gives one"],
)
async def test_an_api_key_cannot_pass_and_the_remedy_is_a_port_forward(
    api_server: ApiServer, vllm: FakeVllm, llmservice: Command, endpoint: Json, words: tuple[str, ...]
) -> None:
    api_server.objects[f"{SERVICES}/chat"] = service(**endpoint)
    with pytest.raises(CliError, match=r"kubectl port-forward -n team service/chat 8000:8080") as caught:
        await llmservice.within("bench", "chat", *LOAD, *words)
    assert "--url http://127.0.0.1:8000 --api-key-env" in caught.value.remedy
    assert vllm.bodies == []


@pytest.mark.parametrize(
    ("code", "remedy"), [(403, "get and create on services/proxy"), (503, "llmservice status chat -n team")]
)
async def test_what_the_api_server_refuses(
    api_server: ApiServer, vllm: FakeVllm, llmservice: Command, code: int, remedy: str
) -> None:
    api_server.answers[f"{PROXY}/v1/models"] = code, "the API server's reason"
    with pytest.raises(CliError, match="the API server's reason") as caught:
        await llmservice.within("bench", "chat", *LOAD)
    assert remedy in caught.value.remedy
