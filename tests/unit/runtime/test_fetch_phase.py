"""The supervisor while it fetches: /state and /metrics follow, a failure is reported, a SIGTERM ends it at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime.contract import Failure, FailureReason, Phase, TransferStep
from llmservice_runtime.fetch_protocol import Request, ended_line
from llmservice_runtime.supervisor.client import http_request
from llmservice_runtime.supervisor.fetch_phase import FetchContainer
from llmservice_runtime.supervisor.metrics import METRICS
from llmservice_runtime.supervisor.processes import Ended

from tests.support.fetching import TOKEN, Fetcher, model_files, partial_bytes
from tests.support.hub import Hub, Repo, serving
from tests.support.patience import PATIENCE, until
from tests.support.stand_in.behaviour import Behaviour
from tests.unit.runtime.runtime_harness import Server, supervised

MB = 1_000_000


@pytest.fixture
def hub() -> Iterator[Hub]:
    repos = {"org/tiny": Repo(model_files({"model.safetensors": 6 * MB})), "org/gated": Repo(model_files(), gated=True)}
    with serving(Hub(repos, {TOKEN: set()})) as running:
        yield running


@asynccontextmanager
async def fetching(hub: Hub, folder: Path, repo: str = "org/tiny", **changed: Any) -> AsyncIterator[Server]:
    fetcher = Fetcher(folder, {})
    async with supervised(
        folder,
        fetch=fetcher.command,
        flags=("--model", str(fetcher.links / "model")),
        variables={"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN},
        wanted=(f"model=hf://{repo}",),
        **changed,
    ) as server:
        yield server


async def figures(server: Server) -> dict[str, float]:
    """The samples of /metrics by name and labels."""
    body = (await http_request(server.options.state_port, "/metrics", timeout=PATIENCE)).body
    lines = (line for line in body.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_state_and_metrics_follow_the_fetch(hub: Hub, tmp_path: Path) -> None:
    hub.bytes_per_second = 3 * MB
    async with fetching(hub, tmp_path) as server:
        state = await server.until(lambda s: s.transfer is not None and s.transfer.bytes_per_second is not None)
        assert state.phase is Phase.FETCHING
        assert state.transfer is not None
        assert (state.transfer.artifact, state.transfer.step) == ("model", TransferStep.DOWNLOADING)
        assert 0 < state.transfer.bytes_done < 7 * MB
        assert state.transfer.eta_seconds is not None
        seen = await figures(server)
        assert seen['llmservice_server_phase{phase="Fetching"}'] == 1
        assert 0 < seen['llmservice_server_fetched_bytes{artifact="model"}'] < 7 * MB
        assert seen['llmservice_server_fetch_size_bytes{artifact="model"}'] > 6 * MB
        assert seen['llmservice_server_fetch_bytes_per_second{artifact="model"}'] > 0
        assert seen['llmservice_server_fetch_eta_seconds{artifact="model"}'] >= 0
        state = await server.ready()
        assert state.transfer is None
        seen = await figures(server)
        assert seen["llmservice_server_ready"] == 1
        assert seen["llmservice_server_start_seconds"] > 1
        assert TOKEN not in "".join(server.log)


async def test_a_sigterm_ends_the_fetch_and_keeps_what_came(hub: Hub, tmp_path: Path) -> None:
    hub.bytes_per_second = MB
    async with fetching(hub, tmp_path) as server:
        await server.until(lambda _: partial_bytes(tmp_path / "cache") > MB)
        server.signal()
        assert await server.ended() == 0
    assert partial_bytes(tmp_path / "cache") > MB


async def test_a_fetch_that_fails_is_the_servers_failure(hub: Hub, tmp_path: Path) -> None:
    async with fetching(hub, tmp_path, "org/gated") as server:
        failure = await server.failed()
        assert (failure.reason, failure.phase) == (FailureReason.MODEL_ACCESS_DENIED, Phase.FETCHING)
        assert TOKEN not in (tmp_path / "termination-log").read_text()


FETCHED = b'{"artifact":"model","path":"/links/model"}\n' + ended_line(Ended(0, None))
PARTS = [b'{"transfer":{"artifact":"model","step":"Downloading","bytesDone":%d}}\n' % n for n in range(1, 8)]
ANSWERS: dict[str, tuple[list[bytes], str]] = {
    "complete, after interruptions with progress": ([*PARTS, FETCHED], ""),
    "interrupted again and again": (PARTS[:1] * 7, "ended during a fetch, 6 times in a row without progress"),
    "killed again and again": ([ended_line(Ended(None, 9))] * 6, "ended with signal SIGKILL, 6 times in a row"),
    "no reason": ([ended_line(Ended(7, None))], "exit code 7 without a reason"),
    "no container": ([], "Container fetch did not listen"),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_interrupted_and_failed_fetches(tmp_path: Path, case: str) -> None:
    """Each connection gets the next answer; the container begins to listen only once it is waited for."""
    answers, message = ANSWERS[case]
    left, said = iter(answers), list[str]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(next(left))
        writer.close()

    container = FetchContainer(tmp_path / "socket", 20 if answers else 0.2, 0.001, 0.01, said.append)
    fetch = asyncio.ensure_future(container.get(Request(("model=hf://org/tiny",)), lambda _: None))
    await until(lambda: said == ["waiting for container fetch"])
    server = await asyncio.start_unix_server(answer, tmp_path / "socket") if answers else None
    found = await fetch
    if server is not None:
        server.close()
    if message:
        assert isinstance(found, Failure)
        assert found.reason is FailureReason.FETCH_CONTAINER_FAILED
        assert message in found.message
        assert "-c fetch" in found.remedy
    else:
        assert found == {"model": Path("/links/model")}


async def test_a_fetch_container_that_is_killed_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    """As the kubelet starts it again; nothing is fetched twice, and the server is not restarted."""
    hub.bytes_per_second = 2 * MB
    async with fetching(hub, tmp_path) as server:
        await server.until(lambda _: partial_bytes(tmp_path / "cache") > 2 * MB)
        await server.fetch_container.kill()
        state = await server.until(lambda s: "container fetch" in s.progress)
        assert state.phase is Phase.FETCHING
        assert state.transfer is not None
        hub.bytes_per_second = None
        server.fetch_container.start()
        await server.ready()
        starts = [asked.start for asked in hub.contents()]
        assert len(starts) == 2, "the weights are asked for once, and once more from where the kill left them"
        assert starts[0] == 0 < starts[1]
        assert "during a fetch; resuming" in "".join(server.log)


async def test_what_vllm_says_of_credentials_stays_here(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"ValueError: the header was Bearer {TOKEN}\n")
    async with supervised(tmp_path, Behaviour(log=str(log), exit_loading=1), variables={"HF_TOKEN": TOKEN}) as server:
        failure = await server.failed()
        assert failure.message == "the header was Bearer ***"
        assert TOKEN not in (tmp_path / "termination-log").read_text()


async def test_vllm_is_told_of_the_longer_context(hub: Hub, tmp_path: Path) -> None:
    async with fetching(hub, tmp_path, context_extension="yarn:4") as server:
        await server.ready()
    log = "".join(server.log)
    assert re.search(r"context extension: --hf-overrides .*\"factor\":4.0.* --max-model-len 4096", log)


def test_each_metric_has_its_words() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("llmservice_server_")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric.text.endswith(".")
