"""Logins by real programs, of a line each, that a kubeconfig names."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from kubeloop.credentials import load
from kubeloop.errors import ConfigError
from kubeloop.kubeconfig import Login, Program

from tests.support.kubeconfig import kubeconfig
from tests.support.patience import PATIENCE

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def plugin(script: str, **more: Any) -> dict[str, Any]:
    """Without site packages: it starts in a third of the time."""
    run = {"command": sys.executable, "args": ["-IS", "-c", script]}
    return {"apiVersion": "client.authentication.k8s.io/v1", **run, **more}


async def log_in(program: dict[str, Any], kubeconfig: Path, hint: str = "") -> Login:
    return await Program({**program, "installHint": hint}, kubeconfig.parent, {}, str(kubeconfig)).run()


def answers(**status: str) -> str:
    return f"print({json.dumps({'status': status})!r})"


async def test_a_token_with_its_end_or_a_client_certificate(tmp_path: Path) -> None:
    login = await log_in(plugin(answers(token="t", expirationTimestamp="2026-01-01T00:10:00Z")), tmp_path / "config")
    assert login == Login("t", expires=NOW + datetime.timedelta(minutes=10))
    login = await log_in(plugin(answers(clientCertificateData="C", clientKeyData="K")), tmp_path / "config")
    assert (login.token, login.certificate, login.key) == (None, b"C", b"K")


MISSING = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-login"}
FAILURES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "not installed": (MISSING, ["no-such-login", "install the cloud's tools"]),
    "fails": (plugin("import sys; sys.exit('please log in')"), ["please log in", "log in with it"]),
    "prints something else": (plugin("print('secret')"), ["no ExecCredential"]),
    "gives nothing": (plugin(answers()), ["neither a token nor"]),
    "prints too much": (plugin("print('secret' * 10**6)"), ["more than 1048576 bytes"]),
    "complains at length": (plugin("import sys; sys.exit('x' * 10**7 + 'why')"), ["ended with 1"]),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_failures_have_their_remedy_and_no_secret(case: str, tmp_path: Path) -> None:
    program, texts = FAILURES[case]
    with pytest.raises(ConfigError) as caught:
        await log_in(program, tmp_path / "config", hint="install the cloud's tools")
    assert [text for text in texts if text not in str(caught.value)] == []
    assert "secret" not in str(caught.value)


async def test_one_that_hangs_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeloop.kubeconfig.PLUGIN_SECONDS", 5.0)
    pids = tmp_path / "pids"
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)"
    )
    with pytest.raises(ConfigError, match="no answer within 5 s"):
        await log_in(plugin(script), tmp_path / "config")
    async with asyncio.timeout(PATIENCE):
        while any(map(is_running, pids.read_text().split())):  # noqa: ASYNC110 - processes of others
            await asyncio.sleep(0.02)


def test_nothing_is_left_of_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is waited for: else what stands for it in the event loop outlives the loop."""
    monkeypatch.setattr("kubeloop.kubeconfig.PLUGIN_SECONDS", 0.3)
    left: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: left.append(str(found.exc_value)))

    with contextlib.suppress(ConfigError):
        asyncio.run(log_in(plugin("import time; time.sleep(600)"), tmp_path / "config"))
    gc.collect()
    assert left == []


def is_running(pid: str) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def config_of(folder: Path, program: dict[str, Any], **cluster: Any) -> str:
    return str(kubeconfig(folder, {"exec": program}, server="https://api:6443", **cluster))


async def test_the_program_is_run_again_before_its_token_ends(tmp_path: Path) -> None:
    counted = (
        "import json, pathlib\n"
        f"runs = pathlib.Path({str(tmp_path / 'runs')!r})\n"
        "n = len(runs.read_text()) if runs.exists() else 0\n"
        "runs.write_text('x' * (n + 1))\n"
        "print(json.dumps({'status': {'token': f't{n}', 'expirationTimestamp': '2026-01-01T00:10:00Z'}}))"
    )
    now = [NOW.timestamp()]
    credentials = await load(clock=lambda: now[0], kubeconfig=config_of(tmp_path, plugin(counted)))
    assert [await credentials.token() for _ in range(3)] == ["t0"] * 3
    now[0] += 596
    assert await credentials.token() == "t1"


async def test_a_client_certificate_of_the_program_is_used(tmp_path: Path) -> None:
    answer = answers(clientCertificateData="C", clientKeyData="K")
    credentials = await load(kubeconfig=config_of(tmp_path, plugin(answer)))
    assert (credentials.client_certificate, credentials.client_key) == (b"C", b"K")


async def test_a_failing_program_ends_the_start(tmp_path: Path) -> None:
    program = plugin("import sys; sys.exit('please log in')", installHint="see the cloud's page")
    for broken, text in ((program, "please log in"), ({**program, "command": "no-such-login"}, "see the cloud's page")):
        with pytest.raises(ConfigError, match=text):
            await load(kubeconfig=config_of(tmp_path, broken))


async def test_the_program_gets_its_variables_and_on_request_the_cluster(tmp_path: Path) -> None:
    script = (
        "import json, os\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "token = [os.environ['PROFILE'], info['apiVersion'], info['spec'].get('cluster')]\n"
        "print(json.dumps({'status': {'token': json.dumps(token)}}))"
    )
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    received = []
    for is_provided in (True, False):
        program = plugin(script, env=[{"name": "PROFILE", "value": "prod"}], provideClusterInfo=is_provided)
        credentials = await load(kubeconfig=config_of(tmp_path, program, extensions=[extension]))
        received.append(json.loads(await credentials.token() or ""))
    (profile, version, cluster), (*_, none) = received
    assert (profile, version, none) == ("prod", "client.authentication.k8s.io/v1", None)
    assert (cluster["server"], cluster["config"]) == ("https://api:6443", {"audience": "a"})


async def test_a_program_beside_the_kubeconfig(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "login"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n" + answers(token="beside"))
    program.chmod(0o700)
    credentials = await load(kubeconfig=config_of(tmp_path, {**plugin(""), "command": "./bin/login", "args": []}))
    assert await credentials.token() == "beside"
