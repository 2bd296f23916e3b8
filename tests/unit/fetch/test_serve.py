"""The fetch container does what the server of its pod may ask for, and nothing else, whatever it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from llmservice_fetch import serve
from llmservice_fetch.serve import MOST_CONNECTIONS, Allowed, FetchServer
from llmservice_runtime import adapter_list
from llmservice_runtime.adapter_list import Adapter
from llmservice_runtime.contract import Failure, FailureReason
from llmservice_runtime.fetch_protocol import MAX_REQUEST, Request, read_document, read_ended
from llmservice_runtime.supervisor.processes import Ended, Reaper

from tests.support.patience import PATIENCE, until

MODEL = "model=hf://org/tiny"
TALKS = ("sh", "-c", 'printf "%s\\n" "$@"; echo more >&2; exit 3', "fetch")
SLEEPS = ("sh", "-c", 'echo $$ > "$0"; sleep 1000 & wait')


@asynccontextmanager
async def container(
    folder: Path, command: tuple[str, ...] = TALKS, adapters: Path | None = None, cgroup: Path = Path("/no/such")
) -> AsyncIterator[Path]:
    """A socket that is answered."""
    reaper = Reaper(asyncio.get_running_loop())
    answering = FetchServer(Allowed((MODEL,), adapters), command, dict(os.environ), reaper, cgroup)
    server = await asyncio.start_unix_server(answering.answer, folder / "socket", limit=MAX_REQUEST)
    try:
        yield folder / "socket"
    finally:
        server.close()
        await answering.close()
        reaper.close()


async def said(socket: Path, request: bytes) -> list[str]:
    """The lines of an answer."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(request)
        await writer.drain()
        lines = []
        # One that is refused unread is reset behind the answer.
        with contextlib.suppress(ConnectionResetError):
            while answer := await asyncio.wait_for(reader.readline(), PATIENCE):
                lines.append(answer.decode().rstrip("\n"))
        return lines
    finally:
        writer.close()


def line(*fetch: str, **more: object) -> bytes:
    return json.dumps({"fetch": list(fetch), **more}).encode() + b"\n"


async def test_a_request_is_a_process_of_its_own(tmp_path: Path) -> None:
    request = Request((MODEL,), "fp8", "yarn:4", ("--model", "m", "--hf-overrides", '{"a": 1}'))
    async with container(tmp_path) as socket:
        lines = await said(socket, request.to_json().encode() + b"\n")
    assert lines[:-2] == [
        f"--fetch={MODEL}", "--weights=fp8", "--context-extension=yarn:4", "--", "--model", "m", "--hf-overrides",
        '{"a": 1}',
    ]  # fmt: skip
    assert read_ended(lines[-1]) == Ended(3, None)


REFUSED = [
    pytest.param(line("model=hf://org/other"), "not started to fetch", id="another model"),
    pytest.param(line(MODEL, "x=s3://all/of/it"), "not started to fetch", id="one of two"),
    pytest.param(line("other=hf://org/tiny"), "not started to fetch", id="another name"),
    pytest.param(line(), "cannot be read", id="nothing"),
    pytest.param(b"{}\n", "cannot be read", id="an empty object"),
    pytest.param(b"\xff\xfe\n", "cannot be read", id="no text"),
    pytest.param(b"[" * 100_000 + b"\n", "cannot be read", id="deep"),
    pytest.param(line(MODEL, args=["x"] * 3000), "cannot be read", id="many arguments"),
    pytest.param(line(MODEL, args=[{"a": 1}]), "cannot be read", id="an argument that is none"),
    pytest.param(line(MODEL, weights=5), "cannot be read", id="a word that is none"),
    pytest.param(b"x" * (MAX_REQUEST + 10) + b"\n", "cannot be read", id="long"),
    pytest.param(b"\n", "cannot be read", id="an empty line"),
]


@pytest.mark.parametrize(("request_", "words"), REFUSED)
async def test_what_it_was_not_started_for_is_refused(tmp_path: Path, request_: bytes, words: str) -> None:
    async with container(tmp_path) as socket:
        (answer,) = await said(socket, request_)
        failure = read_document(answer)
        assert isinstance(failure, Failure)
        assert failure.reason is FailureReason.FETCH_CONTAINER_FAILED
        assert words in failure.message
        assert read_ended((await said(socket, line(MODEL)))[-1]) is not None, "the next request is answered"


async def test_adapters_are_those_of_the_list_as_it_is_now(tmp_path: Path) -> None:
    listed = tmp_path / "adapters.json"
    uri = "s3://bucket/adapter"
    wanted = f"{adapter_list.artifact(uri)}={uri}"
    refused = [line(wanted), line(f"model={uri}"), line(f"../x={uri}")]
    async with container(tmp_path, adapters=listed) as socket:
        for content in (None, "[", "[" * 10_000, adapter_list.to_json([Adapter("a", uri, "/mounted")])):
            if content is not None:
                listed.write_text(content)
            for request in refused:
                (answer,) = await said(socket, request)
                assert isinstance(read_document(answer), Failure)
        listed.write_text(adapter_list.to_json([Adapter("a", uri)]))
        assert f"--fetch={wanted}" in await said(socket, line(wanted))
        for request in refused[1:]:
            (answer,) = await said(socket, request)
            assert isinstance(read_document(answer), Failure), "under no other name than its own"


@pytest.mark.parametrize("end", ["close", "more"])
async def test_a_connection_that_closes_ends_the_process_and_what_it_started(tmp_path: Path, end: str) -> None:
    mark = tmp_path / "pid"
    async with container(tmp_path, (*SLEEPS, str(mark))) as socket:
        _, writer = await asyncio.open_unix_connection(socket)
        writer.write(line(MODEL))
        await until(lambda: mark.exists() and bool(mark.read_text()))
        group = int(mark.read_text())
        if end == "close":
            writer.close()
        else:
            writer.write(b"more")
        await until(lambda: not members(group))
        writer.close()


async def test_it_has_no_more_connections_than_it_can_hold(tmp_path: Path) -> None:
    async with container(tmp_path) as socket:
        held = [await asyncio.open_unix_connection(socket) for _ in range(MOST_CONNECTIONS)]
        (answer,) = await said(socket, line(MODEL))
        failure = read_document(answer)
        assert isinstance(failure, Failure)
        assert "connections" in failure.message
        for reader, writer in held:
            writer.write_eof()
            await reader.read()
            writer.close()
        assert read_ended((await said(socket, line(MODEL)))[-1]) is not None


async def test_who_asks_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "REQUEST_SECONDS", 0.1)
    async with container(tmp_path) as socket:
        (answer,) = await said(socket, b'{"fetch":')
        assert isinstance(read_document(answer), Failure)


@pytest.mark.parametrize(
    ("limit", "taken", "ended"),
    [
        pytest.param("1000", 950, Ended(None, 9), id="about to be killed"),
        pytest.param("1000", 100, Ended(3, None), id="enough left"),
        pytest.param("max", 950, Ended(3, None), id="no limit"),
        pytest.param("0", 950, Ended(3, None), id="a limit that is none"),
    ],
)
async def test_a_fetch_that_fills_the_memory_ends_and_the_container_does_not(
    tmp_path: Path, limit: str, taken: int, ended: Ended
) -> None:
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.stat").write_text(f"anon {taken - 10}\nfile 5000\nshmem 10\n")
    async with container(tmp_path, ("sh", "-c", "sleep 0.5; exit 3"), cgroup=tmp_path) as socket:
        for _ in range(2):
            assert read_ended((await said(socket, line(MODEL)))[-1]) == ended


def test_a_sigterm_ends_all_of_it_at_once(tmp_path: Path) -> None:
    """The real process, whose environment nobody else of the same user can read."""
    socket = tmp_path / "socket"
    socket.write_text("of a container that was restarted")
    command = (sys.executable, "-m", "llmservice_fetch", "serve", f"--fetch={MODEL}", f"--socket={socket}")
    process = subprocess.Popen(command, env={**os.environ, "HF_TOKEN": "hf_secret"}, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "fetching on request: model=hf://org/tiny" in process.stderr.readline()
        assert socket.is_socket()
        assert Path(f"/proc/{process.pid}/environ").stat().st_uid == 0, "the kernel gives it to root alone"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


def members(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(folder.name))
    return found
