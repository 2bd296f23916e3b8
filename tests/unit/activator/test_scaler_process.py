"""The scaler as a process: its ports, how it stops, its options, and the page of its metrics."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
import pytest
from llmservice_activator import options
from llmservice_activator.metrics import Metrics
from llmservice_activator.options import Options

from tests.support.documents import DOCS
from tests.support.http_servers import cluster
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.unit.api_server import ApiServer
from tests.unit.scaler_world import Keda, certificates, request, service

__all__ = ["certificates"]


BRIEF = ("--internal-port", "0", "--grace", "0")


@asynccontextmanager
async def process(folder: Path, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m llmservice_activator` with these arguments; it is ended at the end."""
    command = (sys.executable, "-m", "llmservice_activator", "--tls", str(folder), *words)
    child = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def until_logged(child: asyncio.subprocess.Process, text: str) -> str:
    assert child.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while line := (await child.stderr.readline()).decode():
            if text in line:
                return line
    raise AssertionError(f"it ended without {text!r}")


async def test_it_serves_its_ports_and_ends_streams_and_itself_at_sigterm(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = ApiServer(service())
    api.token = "t0ken"
    port, health, metrics = free_port(), free_port(), free_port()
    ports = ("--port", str(port), "--health-port", str(health), "--metrics-port", str(metrics), *BRIEF)
    async with (
        cluster(api.answer, tmp_path, monkeypatch, shutdown_timeout=0.1),
        process(certificates / "server", *ports) as child,
        aiohttp.ClientSession() as http,
    ):
        await until_logged(child, "answering KEDA")

        async def answered(path: str, at: int = health) -> tuple[int, str]:
            async with http.get(f"http://127.0.0.1:{at}{path}") as response:
                return response.status, await response.text()

        assert (await answered("/healthz"))[0] == 200
        async with asyncio.timeout(PATIENCE):
            while (await answered("/readyz"))[0] != 200:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        folder = certificates / "keda"
        secrets = [(folder / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")]
        async with grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(*secrets)) as channel:
            keda = Keda(channel)
            stream = keda.stream()
            await stream.read()
            await keda.call("GetMetricSpec", request("GetMetricSpec"))
            assert "llmservice_scaler_services 1.0" in (await answered("/metrics", metrics))[1]
            child.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE):
                assert await stream.read() is grpc.aio.EOF
                assert await child.wait() == 0


async def test_it_opens_more_files_than_its_runtime_begins_with(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = ("--port", "0", "--health-port", "0", "--metrics-port", "0", *BRIEF)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with cluster(ApiServer(service()).answer, tmp_path, monkeypatch), AsyncExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] // 2, before[1]))
        try:
            child = await stack.enter_async_context(process(certificates / "server", *ports))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await until_logged(child, "answering KEDA")
        assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (before[1], before[1])


async def test_without_a_certificate_it_says_which_secret_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(ApiServer().answer, tmp_path, monkeypatch), process(tmp_path / "none") as child:
        line = await until_logged(child, "cannot read tls.crt")
        assert "autoscaling.tls.secretName" in line
        assert '"level": "error"' in line
        assert await child.wait() == 2


async def test_a_port_that_is_taken_is_named(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    port = other.getsockname()[1]
    ports = ("--port", str(port), "--health-port", "0", "--metrics-port", "0", *BRIEF)
    async with (
        await asyncio.start_server(lambda *_: None, sock=other),
        cluster(ApiServer().answer, tmp_path, monkeypatch),
        process(certificates / "server", *ports) as child,
    ):
        line = await until_logged(child, f"cannot listen on port {port}")
        assert "--port" in line
        assert await child.wait() == 2


def test_options_as_the_chart_gives_them() -> None:
    words = "--port 9443 --health-port 8080 --metrics-port 9090 --tls /etc/llmservice-activator-tls"
    words += " --namespaces a,b,a --log-format console --log-level debug"
    words += " --internal-port=9091 --service=llmservice-activator --grace=650"
    found = options.load(words.split(), {"POD_NAME": "pod-1", "POD_NAMESPACE": "system", "POD_IP": "10.0.0.9"})
    assert found == Options(
        namespaces=("a", "b"),
        log_format="console",
        log_level="debug",
        identity="pod-1",
        service="llmservice-activator",
        namespace="system",
        address="10.0.0.9",
        grace=650,
    )
    assert options.load([], {"POD_NAME": "p"}) == Options(identity="p")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--port 8080", "--port 8080 is a port of its own"),
        ("--port 70000", "invalid port value: '70000'"),
        ("--internal-port 9090", "--internal-port 9090 is a port of its own"),
        ("--service a", "$POD_NAMESPACE"),
        ("--grace -1", "invalid number of seconds value: '-1'"),
        ("--grace nan", "invalid number of seconds value: 'nan'"),
        ("--port x", "invalid port value: 'x'"),
        ("--log-level loud", "invalid choice: 'loud'"),
        ("--more", "unrecognized arguments: --more"),
    ],
)
def test_wrong_options_are_named(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options.load(words.split(), {})
    assert message in capsys.readouterr().err


def test_the_page_of_the_metrics_is_fresh() -> None:
    assert (DOCS / "reference" / "scaler-metrics.md").read_text() == Metrics().reference(), "run `make crds`"
