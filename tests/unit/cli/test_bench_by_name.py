"""`llmservice bench NAME`: through the API server's service proxy; with an API key through a port-forward."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.load import server

from tests.unit.api_server import ApiServer
from tests.unit.cli.chat_world import forwarding
from tests.unit.cli.fake_vllm import FakeVllm, hangs_up, refuses, serving
from tests.unit.cli.test_status import pod
from tests.unit.cli_world import PODS, SERVICES, Command, Json
from tests.unit.decide_world import of_another

LOAD = ("--requests", "4", "--rate", "500", "--output-tokens", "2", "--discipline", "continuous", "-q")
KEY = "sk-very-secret"
SECRET = "/api/v1/namespaces/team/secrets/keys"
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


@pytest.fixture
async def guarded(api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeVllm]:
    """A service with an API key, two ready pods beside another's, and a server behind the first one's port-forward."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with serving(FakeVllm(api_key=KEY)) as fake:
        api_server.objects = {
            f"{SERVICES}/chat": service(apiKeySecretRef={"name": "keys", "key": "api-key"}),
            f"{PODS}/chat-0": of_another(pod("chat-0")),
            f"{PODS}/chat-1": pod("chat-1"),
            f"{PODS}/chat-2": pod("chat-2"),
            SECRET: {"metadata": {"name": "keys"}, "data": {"api-key": base64.b64encode(KEY.encode()).decode()}},
        }
        api_server.answers = {f"{PODS}/chat-1/portforward": forwarding(fake.url)}
        yield fake


async def test_an_api_key_passes_a_port_forward_and_the_result_says_so(
    api_server: ApiServer, guarded: FakeVllm, llmservice: Command
) -> None:
    loud = [word for word in LOAD if word != "-q"]
    ran = await llmservice.within("bench", "chat", *loud, "--out", str(llmservice.folder / "out.json"))
    assert ran.code == ExitCode.DONE
    assert sorted(index for kind, index in guarded.log if kind == "end") == [0, 1, 2, 3]
    assert "team/chat through a port-forward, model chat, vLLM 0.32.0" in ran.out
    assert "pod chat-1, of 2 ready replicas this one alone" in ran.out.splitlines()
    assert "the API key is from the key 'api-key' of the Secret 'keys' in namespace team" in ran.err
    written = (llmservice.folder / "out.json").read_text()
    target = json.loads(written)["target"]
    assert target["way"] == "through a port-forward"
    assert [words for words in target["notes"] if "slower than the network" in words]
    assert KEY not in ran.out + ran.err + written


async def test_a_key_of_the_environment_needs_no_secret(
    api_server: ApiServer, guarded: FakeVllm, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", KEY)
    del api_server.objects[SECRET]
    assert (await llmservice.within("bench", "chat", *LOAD, "--api-key-env", "MINE")).code == ExitCode.DONE


async def test_in_a_pod_of_the_cluster_requests_go_to_the_service(
    guarded: FakeVllm, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def inside(*_: object) -> str:
        return guarded.url

    monkeypatch.setattr(server, "url_inside", inside)
    ran = await llmservice.within("bench", "chat", *LOAD, "-o", "json")
    assert ran.code == ExitCode.DONE
    assert (ran.json["target"]["way"], ran.json["target"]["notes"]) == ("in the cluster", [])
    assert len(guarded.bodies) == 8, "four, and those of the warm-up"


async def test_a_server_that_says_the_key_again(
    guarded: FakeVllm, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded.misbehaves = {2: refuses(500, f"{KEY} is what you sent"), 3: hangs_up}
    ran = await llmservice.within("bench", "chat", *LOAD, "-o", "json")
    assert ran.code == ExitCode.REQUESTS_FAILED
    errors = [row.get("error") for row in ran.json["disciplines"][0]["requests"]]
    assert errors[2] == "*** is what you sent"
    assert KEY not in ran.out


async def test_no_ready_pod_and_no_right_to_forward(
    api_server: ApiServer, guarded: FakeVllm, llmservice: Command
) -> None:
    api_server.answers[f"{PODS}/chat-1/portforward"] = 403
    with pytest.raises(CliError, match="a port-forward to pod chat-1 in namespace team needs get and create on"):
        await llmservice.within("bench", "chat", *LOAD)
    del api_server.objects[f"{PODS}/chat-1"], api_server.objects[f"{PODS}/chat-2"]
    with pytest.raises(CliError, match="chat has no ready replica to forward a port to") as refused:
        await llmservice.within("bench", "chat", *LOAD)
    assert "llmservice status chat -n team" in refused.value.remedy
    assert guarded.bodies == []


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
