"""Logins by a program that the kubeconfig names: real programs, of a line each."""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_operator.kube import exec_login, single_flight
from llmservice_operator.kube.credentials import load
from llmservice_operator.kube.errors import ConfigError
from llmservice_operator.kube.exec_login import ExecToken, Login, Program

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def plugin(script: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": ["-c", script], **more}


def log_in(user: dict[str, Any], kubeconfig: Path) -> Login:
    return Program(user, kubeconfig).run()


def answers(**status: str) -> str:
    return f"print({json.dumps({'status': status})!r})"


def test_a_token_and_when_it_ends(tmp_path: Path) -> None:
    login = log_in(plugin(answers(token="t", expirationTimestamp="2026-01-01T00:10:00Z")), tmp_path / "config")
    assert login == Login("t", expires=NOW + datetime.timedelta(minutes=10))


def test_a_client_certificate(tmp_path: Path) -> None:
    login = log_in(plugin(answers(clientCertificateData="C", clientKeyData="K")), tmp_path / "config")
    assert (login.token, login.certificate, login.key) == (None, b"C", b"K")


def test_the_program_gets_its_variables_and_is_told_what_to_speak(tmp_path: Path) -> None:
    script = (
        "import json, os\n"
        "spoken = json.loads(os.environ['KUBERNETES_EXEC_INFO'])['apiVersion']\n"
        "print(json.dumps({'status': {'token': os.environ['PROFILE'] + ' ' + spoken}}))"
    )
    login = log_in(plugin(script, env=[{"name": "PROFILE", "value": "prod"}]), tmp_path / "config")
    assert login.token == "prod client.authentication.k8s.io/v1"


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        pytest.param(
            {"command": "no-such-login", "installHint": "install the cloud's tools"},
            ["no-such-login", "install the cloud's tools"],
            id="not installed",
        ),
        pytest.param(plugin("import sys; sys.exit('please log in')"), ["please log in", "log in with it"], id="fails"),
        pytest.param(plugin("print('secret')"), ["no ExecCredential"], id="prints something else"),
        pytest.param(plugin(answers()), ["neither a token nor"], id="gives nothing"),
    ],
)
def test_what_goes_wrong_is_said_with_what_helps(broken: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        log_in(broken, tmp_path / "config")
    for word in words:
        assert word in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("passed", "forgotten", "sent", "runs"),
    [
        pytest.param(0, False, "old", 0, id="still good"),
        pytest.param(575, False, "old", 1, id="about to end, and still sent"),
        pytest.param(596, False, "new", 1, id="too near its end"),
        pytest.param(0, True, "new", 1, id="not accepted"),
    ],
)
async def test_the_program_is_asked_again_when_it_must(passed: int, forgotten: bool, sent: str, runs: int) -> None:
    asked: list[Login] = []

    async def run() -> Login:
        asked.append(Login("new"))
        return asked[-1]

    first = Login("old", expires=NOW + datetime.timedelta(minutes=10))
    token = ExecToken(run, lambda: NOW + datetime.timedelta(seconds=passed), first)
    if forgotten:
        token.forget()
    assert await token() == sent
    await asyncio.sleep(0)
    assert len(asked) == runs
    assert await token() == ("new" if runs else "old")


async def test_it_runs_once_for_all_who_wait_and_nothing_else_waits() -> None:
    runs, release = 0, asyncio.Event()

    async def run() -> Login:
        nonlocal runs
        runs += 1
        await release.wait()
        return Login("new")

    token = ExecToken(run, lambda: NOW, Login("old", expires=NOW))
    waiting = [asyncio.create_task(token()) for _ in range(50)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    release.set()
    assert await asyncio.gather(*waiting) == ["new"] * 50
    assert runs == 1


async def test_one_that_fails_is_not_run_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 0

    async def run() -> Login:
        nonlocal runs
        runs += 1
        raise ConfigError("please log in")

    token = ExecToken(run, lambda: NOW, Login("old", expires=NOW))
    for _ in range(10):
        with pytest.raises(ConfigError, match="please log in"):
            await token()
    assert runs == 1
    monkeypatch.setattr(single_flight, "AFTER_FAILURE", 0.0)
    with pytest.raises(ConfigError):
        await token()
    assert runs == 2


async def test_one_that_hangs_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_login, "PLUGIN_SECONDS", 2.0)
    pids = tmp_path / "pids"
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)"
    )
    with pytest.raises(ConfigError, match="no answer within 2 s"):
        await Program(plugin(script), tmp_path / "config").run_beside()
    for pid in map(int, pids.read_text().split()):
        await asyncio.wait_for(has_ended(pid), 10)


async def has_ended(pid: int) -> None:
    while True:
        if not is_running(pid):
            return
        await asyncio.sleep(0.02)


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_a_kubeconfig_with_a_program(tmp_path: Path) -> None:
    config = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443"}}],
        "users": [{"name": "u", "user": {"exec": plugin(answers(token="from the program"))}}],
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    credentials = load(clock=lambda: 0.0, kubeconfig=str(path), environ={}, service_account=Path("/nowhere"))
    assert await credentials.token() == "from the program"
