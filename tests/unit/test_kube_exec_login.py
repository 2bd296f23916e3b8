"""Logins by a program that the kubeconfig names: real programs, of a line each."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_operator.kube.credentials import load
from llmservice_operator.kube.errors import ConfigError
from llmservice_operator.kube.exec_login import ExecToken, Login, log_in

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def plugin(script: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": ["-c", script], **more}


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
    ("passed", "forgotten", "runs"),
    [
        pytest.param(0, False, 0, id="still good"),
        pytest.param(575, False, 1, id="about to end"),
        pytest.param(0, True, 1, id="not accepted"),
    ],
)
def test_the_program_is_asked_again_when_it_must(passed: int, forgotten: bool, runs: int) -> None:
    asked: list[Login] = []

    def run() -> Login:
        asked.append(Login("new"))
        return asked[-1]

    first = Login("old", expires=NOW + datetime.timedelta(minutes=10))
    token = ExecToken(run, lambda: NOW + datetime.timedelta(seconds=passed), first)
    if forgotten:
        token.forget()
    assert token() == ("new" if runs else "old")
    assert len(asked) == runs


def test_a_kubeconfig_with_a_program(tmp_path: Path) -> None:
    config = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443"}}],
        "users": [{"name": "u", "user": {"exec": plugin(answers(token="from the program"))}}],
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    credentials = load(clock=lambda: 0.0, kubeconfig=str(path), environ={}, service_account=Path("/nowhere"))
    assert credentials.token() == "from the program"
