"""A supervisor with clients' keys: it needs none itself, says what became of them, and lets vLLM see no credentials."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from llmservice_runtime.contract import POD_TOKEN_HEADER, FailureReason
from llmservice_runtime.credentials import is_credential
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.client import http_request
from llmservice_runtime.supervisor.vllm_process import Flags, environment, read_flags

from tests.support.patience import PATIENCE, until
from tests.unit.runtime.runtime_harness import Server, children, supervised


async def status(server: Server, *, key: str = "", token: str = "", path: str = "/v1/completions") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= {POD_TOKEN_HEADER: token} if token else {}
    body = json.dumps({"model": "m", "prompt": "a", "max_tokens": 1})
    return (await http_request(server.port, path, method="POST", body=body, headers=headers, timeout=PATIENCE)).status


async def said(server: Server, words: str) -> None:
    """Wait for a line of the log."""
    await until(lambda: any(words in line for line in server.log))


async def until_answered(server: Server, key: str, wanted: int) -> None:
    """The middleware reads a changed file at most once per second."""
    async with asyncio.timeout(PATIENCE):
        while await status(server, key=key) != wanted:  # noqa: ASYNC110 - another process, without events
            await asyncio.sleep(0.05)


def variables_of(pid: int) -> dict[str, str]:
    """What a process was started with."""
    text = Path(f"/proc/{pid}/environ").read_text()
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


async def test_keys_are_exchanged_under_a_running_server(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    async with supervised(tmp_path, api_keys_file=str(keys)) as server:
        await server.ready()
        await said(server, "valid API keys: 2")
        assert [await status(server, key=key) for key in ("", "wrong", "first", "second")] == [401, 401, 200, 200]
        keys.write_text("third\n")
        await said(server, "valid API keys: 1")
        await until_answered(server, "third", 200)
        assert await status(server, key="first") == 401
        keys.write_text("")
        await said(server, "all clients refused")
        await until_answered(server, "third", 401)
        metrics = (await http_request(server.options.state_port, "/metrics", timeout=PATIENCE)).body
        assert "llmservice_server_api_keys 0\n" in metrics
        assert await server.probe("/readyz") == 200, "it is no reason to restart a model"
        assert server.process.returncode is None


async def test_a_secret_without_a_key_lets_nobody_in_and_says_so(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch()
    async with supervised(tmp_path, api_keys_file=str(keys)) as server:
        failure = await server.failed()
    assert failure.reason is FailureReason.API_KEY_UNUSABLE
    assert "it is empty" in failure.message
    assert "spec.endpoint.apiKeySecretRef" in failure.remedy


async def test_a_server_that_asks_for_no_key_though_it_should_is_given_up(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("key")
    async with supervised(tmp_path, api_keys_file=str(keys), middleware=False) as server:
        failure = await server.failed()
    assert failure.reason is FailureReason.API_KEY_UNUSABLE
    assert "answered GET /v1/models without a key, with 200" in failure.message


async def test_the_pods_own_token_opens_what_is_closed(tmp_path: Path) -> None:
    """What `kubectl exec ... cat` shows, and a port-forward's client sends."""
    async with supervised(tmp_path) as server:
        await server.ready()
        token = (tmp_path / "token").read_text()
        assert await status(server, path="/v1/load_lora_adapter") == 403, "from loopback, without a header of a proxy"
        assert await status(server, path="/v1/load_lora_adapter", token="x" + token) == 403
        assert await status(server, path="/v1/load_lora_adapter", token=token) != 403


CREDENTIALS = {
    "HF_TOKEN": "hf_secret",
    "HUGGING_FACE_HUB_TOKEN": "hf_secret",
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "key",
    "AWS_SESSION_TOKEN": "session",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/token",
    "AWS_ROLE_ARN": "arn",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials",
    "AZURE_FEDERATED_TOKEN_FILE": "/var/run/secrets/token",
    "GOOGLE_APPLICATION_CREDENTIALS": "/var/key.json",
}


async def test_vllm_sees_no_credentials(tmp_path: Path) -> None:
    variables = {**CREDENTIALS, "HF_HOME": "/cache", "LEVEL": "1"}
    async with supervised(tmp_path, variables=variables, keep_variable=("AWS_ROLE_ARN",)) as server:
        await server.ready()
        for pid in (server.engine(), *children(server.engine())):
            seen = variables_of(pid)
            assert {name for name in seen if name in CREDENTIALS} == {"AWS_ROLE_ARN"}
            assert (seen["HF_HOME"], seen["LEVEL"]) == ("/cache", "1")
        assert not any("HF_TOKEN is passed to vLLM" in line for line in server.log)
        dropped = [line for line in server.log if "credentials not passed to vLLM" in line]
        assert len(dropped) == 1, server.log
        names = dropped[0].rpartition(": ")[2].strip().split(", ")
        assert set(names) >= CREDENTIALS.keys() - {"AWS_ROLE_ARN"}
        assert not {"AWS_ROLE_ARN", "HF_HOME", "LEVEL"} & set(names)
        assert not any(value in dropped[0] for value in ("hf_secret", "session,", "/var/", "http"))


@pytest.mark.parametrize(
    ("flags", "offline", "kept"),
    [
        pytest.param((), "0", False, id="no code"),
        pytest.param(("--trust-remote-code",), "0", True, id="code of a hub"),
        pytest.param(("--trust-remote-code",), "1", False, id="code of a claim"),
        pytest.param(("--trust-remote-code",), None, False, id="code of a bucket: what is fetched is there"),
    ],
)
def test_who_needs_the_hub(flags: tuple[str, ...], offline: str | None, kept: bool) -> None:
    options = ServeOptions(fetch=("model=hf://a/b",))
    inherited = {**CREDENTIALS, **({} if offline is None else {"HF_HUB_OFFLINE": offline})}
    seen = environment(options, read_flags(("--model", "m", *flags)), inherited, print)
    assert ("HF_TOKEN" in seen) is kept
    assert not [name for name in seen if name.startswith(("AWS_", "AZURE_"))]
    assert "hf_secret" not in environment(ServeOptions(), Flags(), CREDENTIALS, print).values()


@pytest.mark.parametrize("name", ["HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HTTPS_PROXY", "PATH", "VLLM_API_KEY"])
def test_what_is_no_credential_of_a_fetch(name: str) -> None:
    assert not is_credential(name)
