"""`llmservice status --watch`: a line, a document or a screen whenever something changes, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from llmservice_cli.app import Parsed, start
from llmservice_cli.errors import ExitCode
from llmservice_cli.status import Options

from tests.support.http_servers import cluster
from tests.support.patience import PATIENCE
from tests.unit.api_server import ApiServer
from tests.unit.cli.test_status import condition, service
from tests.unit.cli_world import SERVICES, Command, Json

Script = Callable[[], Awaitable[None]]
Run = Callable[[Script, Options], Awaitable[None]]


def of(name: str, reason: str = "RolledOut", **status: Any) -> Json:
    found = service(name, conditions=[condition("Ready", "False", reason)], **status)
    found["metadata"]["uid"] = name
    return found


class Watch:
    """The command, running beside the API server."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.api, self.out, self._capsys = ApiServer(), "", capsys
        self.api.objects = {f"{SERVICES}/{name}": of(name) for name in ("chat", "other")}

    async def until(self, text: str, count: int = 1) -> None:
        while self.out.count(text) < count:
            await asyncio.sleep(0.01)
            self.out += self._capsys.readouterr().out


@pytest.fixture
def watch(capsys: pytest.CaptureFixture[str]) -> Watch:
    return Watch(capsys)


@pytest.fixture
def run(watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    async def running(script: Script, options: Options) -> None:
        async with asyncio.timeout(PATIENCE), cluster(watch.api.answer, tmp_path, monkeypatch, shutdown_timeout=0):
            task = asyncio.ensure_future(start(Parsed("status", options)))
            await script()
            task.cancel()
            assert await task == ExitCode.DONE

    return running


async def test_without_a_terminal_each_change_is_a_line(watch: Watch, run: Run) -> None:
    async def script() -> None:
        await watch.until("team/chat: RolledOut, 1/1 ready\n")
        loading = of("chat", "Starting", progress={"phase": "Loading", "percent": 40})
        watch.api.bring("MODIFIED", loading)
        await watch.until("team/chat: Starting, 1/1 ready, Loading, 40 %\n")
        watch.api.bring("MODIFIED", loading | {"unknown": "the same to a reader"})
        failure = {"message": "There is none.", "remedy": "Correct it.\x1b[2J"}
        watch.api.bring("MODIFIED", of("chat", "ModelNotFound", failure=failure))
        await watch.until("team/chat: ModelNotFound, 1/1 ready: There is none. What to do: Correct it. [2J\n")
        watch.api.bring("DELETED", of("chat"))
        await watch.until("team/chat: it is gone\n")

    await run(script, Options(names=["chat"], watch=True))
    assert len(watch.out.splitlines()) == 4
    assert "team/other" not in watch.out


async def test_all_services_are_watched_without_a_name(watch: Watch, run: Run) -> None:
    async def script() -> None:
        await watch.until("team/other: RolledOut")
        watch.api.bring("ADDED", of("third", "Starting"))
        await watch.until("team/third: Starting")

    await run(script, Options(watch=True))
    assert len(watch.out.splitlines()) == 3


async def test_documents_are_lines_of_json(watch: Watch, run: Run) -> None:
    async def script() -> None:
        await watch.until("\n")
        watch.api.objects[f"{SERVICES}/chat"] = of("chat", "Starting")
        watch.api.bring("MODIFIED", of("chat", "Starting"))
        await watch.until("\n", 2)

    await run(script, Options(names=["chat"], watch=True, output="json"))
    first, second = map(json.loads, watch.out.splitlines())
    assert (first["version"], second["version"]) == (1, 1)
    assert second["services"][0]["status"]["conditions"][0]["reason"] == "Starting"


async def test_on_a_terminal_the_screen_is_redrawn_and_the_last_one_stays(
    watch: Watch, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("llmservice_cli.status.command.PAUSE", 0.01)

    async def script() -> None:
        await watch.until("Ready is False: RolledOut")
        watch.api.objects[f"{SERVICES}/chat"] = of("chat", "Starting")
        watch.api.bring("MODIFIED", of("chat", "Starting"))
        await watch.until("Ready is False: Starting")

    await run(script, Options(names=["chat"], watch=True))
    await watch.until("replicas    1/1 ready", 3)
    assert "\x1b[?1049h" in watch.out, "the alternate screen"
    assert "\x1b[?1049l" in watch.out


async def test_a_service_that_does_not_exist_yet_is_awaited(watch: Watch, run: Run, llmservice: Command) -> None:
    async def script() -> None:
        await watch.until("team/late: there is none yet\n")
        watch.api.bring("ADDED", of("late", "Starting"))
        await watch.until("team/late: Starting")

    await run(script, Options(names=["late"], watch=True))
