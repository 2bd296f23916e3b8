"""Probes, metrics and log lines, as the kubelet, Prometheus and people see them."""

import asyncio
import io
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from kubeloop.health import HealthServer, PortTaken, Readiness
from kubeloop.log import ConsoleFormatter, JsonFormatter, object_logger
from kubeloop.resources import Key
from llmservice_operator.service.metrics import Metrics

from tests.support.kubeconfig import kubeconfig
from tests.support.patience import PATIENCE
from tests.support.ports import free_port


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize("shared", [True, False], ids=["one port", "two ports"])
async def test_probes_and_metrics(client: aiohttp.ClientSession, shared: bool) -> None:
    wrong: dict[str, str | None] = {"alive": None}
    readiness = Readiness(False, ("stage: started", "missing right: list pods"))
    metrics = Metrics()
    health_port = free_port()
    metrics_port = health_port if shared else free_port()
    server = HealthServer(
        alive=lambda: wrong["alive"],
        ready=lambda: readiness,
        metrics=metrics.exposition,
        health_port=health_port,
        metrics_port=metrics_port,
    )
    await server.start("127.0.0.1")
    try:

        async def ask(port: int, path: str) -> tuple[int, str]:
            async with client.get(f"http://127.0.0.1:{port}{path}") as response:
                return response.status, await response.text()

        assert await ask(health_port, "/healthz") == (200, "ok\n")
        assert await ask(health_port, "/readyz") == (500, "not ready\nstage: started\nmissing right: list pods\n")
        wrong["alive"] = "a key has waited 90 s for a worker"
        readiness = Readiness(True, ("stage: acting",))
        assert await ask(health_port, "/healthz") == (503, "a key has waited 90 s for a worker\n")
        assert await ask(health_port, "/readyz") == (200, "ok\nstage: acting\n")
        metrics.status_writes.inc()
        status, text = await ask(metrics_port, "/metrics")
        assert status == 200
        assert "llmservice_status_writes_total 1.0" in text
        if not shared:
            assert (await ask(health_port, "/metrics"))[0] == 404
    finally:
        await server.stop()


async def test_metrics_are_brought_up_to_date_on_the_loop_and_rendered_beside_it(client: aiohttp.ClientSession) -> None:
    threads: list[threading.Thread] = []
    rendering, may_end = threading.Event(), threading.Event()

    def render() -> bytes:
        threads.append(threading.current_thread())
        rendering.set()
        may_end.wait(30)
        return b"rendered"

    port = free_port()
    server = HealthServer(
        alive=lambda: None,
        ready=lambda: Readiness(True),
        metrics=render,
        refresh=lambda: threads.append(threading.current_thread()),
        health_port=port,
        metrics_port=port,
    )
    await server.start("127.0.0.1")
    try:
        page = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/metrics"))
        await asyncio.to_thread(rendering.wait, 30)
        async with client.get(f"http://127.0.0.1:{port}/healthz") as response:
            assert response.status == 200, "the loop goes on"
        another = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/metrics"))
        for _ in range(5):
            await (await client.get(f"http://127.0.0.1:{port}/healthz")).read()
        assert len(threads) == 2, "what is rendered is not refreshed meanwhile"
        may_end.set()
        assert [await (await each).read() for each in (page, another)] == [b"rendered"] * 2
    finally:
        may_end.set()
        await server.stop()
    assert [thread is threading.main_thread() for thread in threads] == [True, False] * 2


@pytest.mark.parametrize("taken", ["health", "metrics"])
async def test_a_port_that_is_taken_is_named_with_the_option_that_changes_it(taken: str) -> None:
    port, other = free_port(), free_port()
    server = HealthServer(
        alive=lambda: None,
        ready=lambda: Readiness(True, ()),
        metrics=Metrics().exposition,
        health_port=port if taken == "health" else other,
        metrics_port=port if taken == "metrics" else other,
    )
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(PortTaken) as refused:
            await server.start("127.0.0.1")
        assert str(port) in str(refused.value)
        assert f"--{taken}-port" in str(refused.value)
    with socket.create_server(("127.0.0.1", other)):
        """What was opened before is closed again."""


def test_the_process_says_so_in_one_line_and_ends_with_2(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path, {"token": "t"}, server="http://127.0.0.1:9")
    with socket.create_server(("", port := free_port(""))):
        ports = (f"--health-port={port}", f"--metrics-port={port}")
        done = subprocess.run(
            [sys.executable, "-m", "llmservice_operator", f"--kubeconfig={config}", "--log-format=console", *ports],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert f"port {port}" in done.stderr
    assert "Traceback" not in done.stderr


def services(metrics: Metrics) -> dict[str, float]:
    found = {}
    for line in metrics.exposition().decode().splitlines():
        if line.startswith("llmservice_services{"):
            name, value = line.rsplit(" ", 1)
            found[name.split('"')[1]] = float(value)
    return found


def test_services_are_counted_by_the_reason_of_their_ready_condition() -> None:
    metrics = Metrics()

    for name, reason in (("a", "Starting"), ("b", "Starting"), ("b", "RolledOut"), ("b", "RolledOut")):
        metrics.set_status(Key("ns", name), {"conditions": [{"type": "Ready", "reason": reason}]})
    assert services(metrics) == {"Starting": 1, "RolledOut": 1}
    metrics.forget(Key("ns", "a"))
    metrics.forget(Key("ns", "never-seen"))
    assert services(metrics) == {"Starting": 0, "RolledOut": 1}


def test_the_reference_page_is_what_the_code_says() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
    assert page.read_text() == Metrics().reference(), "run python -m llmservice_operator.service.metrics"


def logged(formatter: logging.Formatter, log: Callable[[logging.Logger], None]) -> str:
    """The lines that a logger with this format writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("test", logging.DEBUG)
    logger.addHandler(handler)
    log(logger)
    return stream.getvalue()


def fails(logger: logging.Logger) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        logger.exception("failed")


@pytest.mark.parametrize(
    ("log", "fields"),
    [
        (
            lambda logger: object_logger(logger, Key("ns", "chat")).info("applied %s", "Service"),
            {"namespace": "ns", "name": "chat", "message": "applied Service", "level": "info"},
        ),
        (lambda logger: logger.info("x", extra={"k8s_ref": {"namespace": "ns", "name": "chat"}}), {"name": "chat"}),
        (fails, {"message": "failed", "level": "error"}),
    ],
    ids=["of an object", "of kopf", "with a traceback"],
)
def test_a_json_line(log: Callable[[logging.Logger], None], fields: dict[str, str]) -> None:
    (line,) = logged(JsonFormatter(), log).splitlines()
    found = json.loads(line)
    assert fields.items() <= found.items()
    assert ("ZeroDivisionError" in found.get("exception", "")) is (log is fails)


def test_a_console_line_names_its_object() -> None:
    assert logged(ConsoleFormatter(), lambda logger: object_logger(logger, Key("ns", "chat")).warning("x")).endswith(
        "WARNING [ns/chat] x\n"
    )
    assert logged(ConsoleFormatter(), lambda logger: logger.info("y")).endswith("INFO    y\n")
