"""The process of an inspection, as the Job runs it: its result, its end, and no word of a credential."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.inspection.inspected import Inspection
from llmservice_runtime.redact import MASK

from tests.support.fetching import TOKEN
from tests.support.http_servers import threaded
from tests.support.hub import Hub, Repo, serving
from tests.support.patience import PATIENCE
from tests.unit.runtime.inspected_files import WHOLE, files


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub({"org/gated": Repo(files(), gated=True)}, {TOKEN: {"org/gated"}})) as running:
        yield running


def run(model: str, log: Path, environment: Mapping[str, str], seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmservice_fetch", "inspect", f"--model={model}", f"--termination-log={log}"],
        env={**{name: os.environ[name] for name in os.environ if not name.startswith(("HF_", "AWS_"))}, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def test_the_process_leaves_its_result(hub: Hub, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ended = run("hf://org/gated", log, {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == log.read_text() + "\n"
    found = Inspection.from_json(log.read_text())
    assert found is not None
    assert found.tensors == WHOLE
    assert TOKEN not in ended.stdout + ended.stderr


class Echo(BaseHTTPRequestHandler):
    """A server that says what it was sent."""

    def do_GET(self) -> None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.send_response(403)
        self.send_header("X-Error-Message", f"the token {token} may not")
        self.send_header("Content-Length", "0")
        self.end_headers()


class Trickle(BaseHTTPRequestHandler):
    """A server that is never done, and never silent."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b" ")
                time.sleep(0.05)
        except OSError:
            return


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[str]:
    with threaded(request.param) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("served", [Echo], indirect=True)
def test_a_token_that_comes_back_is_not_said(served: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ended = run("hf://org/x", log, {"HF_ENDPOINT": served, "HF_TOKEN": TOKEN})
    assert ended.returncode == 0
    assert TOKEN not in log.read_text() + ended.stdout + ended.stderr
    assert MASK in log.read_text()


class TrickledHeader(Trickle):
    """A hub whose weights never come; they are asked for by threads, which an interpreter waits for at its end."""

    def do_GET(self) -> None:
        if self.path.startswith("/api/"):
            large = {"sha256": "0" * 64, "size": 1 << 30, "pointerSize": 134}
            names = [{"rfilename": "config.json", "size": 2, "blobId": "0" * 40}]
            shards = [{"rfilename": f"model-{n}.safetensors", "lfs": large} for n in range(3)]
            self._send(json.dumps({"id": "org/x", "sha": "0" * 40, "siblings": names + shards}).encode())
        elif self.path.endswith("config.json"):
            self._send(b"{}")
        elif self.headers["Range"] == "bytes=0-7":
            self._send((1 << 20).to_bytes(8, "little"))
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("ETag", f'"{"0" * 64}"')
        self.send_header("Content-Length", str(1 << 30))
        self.end_headers()

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def run_main(setup: str, log: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The process, with something in it that is otherwise."""
    code = (
        f"import sys; from pathlib import Path; from llmservice_fetch import inspection\n{setup}\n"
        "sys.exit(inspection.main('hf://org/x', Path(sys.argv[1])))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(log)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("served", [Trickle, TrickledHeader], indirect=True)
def test_a_server_that_trickles_does_not_keep_it(served: str, tmp_path: Path) -> None:
    """The Job's own deadline would leave no message."""
    log = tmp_path / "log"
    ended = run_main("inspection.DEADLINE_SECONDS = 1.0", log, HF_ENDPOINT=served)
    assert ended.returncode == 0, ended.stderr
    found = Inspection.from_json(log.read_text())
    assert found is not None
    assert found.failure is not None
    assert found.failure.reason is R.MODEL_DOWNLOAD_FAILED
    assert "were not read within 1 s" in found.failure.message


def test_a_bug_is_no_conclusion(tmp_path: Path) -> None:
    """Kubernetes takes the log's tail where there is no message."""
    log = tmp_path / "log"
    ended = run_main("inspection.inspect = lambda *_, **__: 1 / 0", log)
    assert ended.returncode == 1
    assert not log.exists()
    assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")
