"""`python -m llmservice_fetch serve`: the fetch container, which fetches on request of its pod's supervisor.

Listens on a unix socket; the protocol is in `llmservice_runtime.fetch_protocol`. Each request starts a child,
`python -m llmservice_fetch fetch`, whose standard output is the response. Only artifacts of `--fetch` and adapters of
the mounted list are fetched, because the server container may run a model's own code. Closing the connection ends the
child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from llmservice_runtime import adapter_list
from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.contract import FETCH_CONTAINER, Failure, FailureReason, Phase
from llmservice_runtime.fetch_protocol import MAX_REQUEST, Request, ended_line, failure_line
from llmservice_runtime.redact import log
from llmservice_runtime.supervisor.processes import Child, Ended, Reaper
from llmservice_runtime.supervisor.tasks import cancel_and_wait, first_done, in_thread

from llmservice_fetch.uses import RENEW_SECONDS

MOST_CONNECTIONS = 8
"""Concurrent connections; the supervisor needs one."""
REQUEST_SECONDS = 10.0
"""Limit for receiving the request."""
CLOSE_SECONDS = 2.0
MEMORY_SECONDS = 0.2
MEMORY_SHARE = 0.9
"""Share of the container's limit, without the reclaimable page cache."""
_CHUNK = 64 << 10


@dataclass(frozen=True)
class Allowed:
    """The artifacts that may be fetched."""

    fetch: tuple[str, ...]
    """NAME=URI"""
    adapters_file: Path | None = None

    def missing(self, wanted: Sequence[str]) -> str | None:
        """The first artifact that may not be fetched; None where all may."""
        found = {*self.fetch, *self._adapters()}
        return next((text for text in wanted if text not in found), None)

    def _adapters(self) -> list[str]:
        """Adapters of the current list; the kubelet replaces the file while the pod runs."""
        if self.adapters_file is None:
            return []
        try:
            listed = adapter_list.from_json(self.adapters_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        return [f"{adapter_list.artifact(one.uri)}={one.uri}" for one in listed if one.path is None]


def serve(
    path: Path, allowed: Allowed, command: Sequence[str], environment: Mapping[str, str], renew: Callable[[], None]
) -> int:
    """Serve requests until SIGTERM; the exit code. `command` is the fetch command without the request's arguments.

    `renew` is called every RENEW_SECONDS to renew this pod's uses of the cache.
    """
    return asyncio.run(_serve(listening(path), allowed, command, environment, renew))


def listening(path: Path) -> socket.socket:
    """A bound socket at this path; replaces one of a previous container."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(path))
    # The server's image may run as another user; only containers that mount the folder reach the socket.
    path.chmod(0o666)
    return found


async def _serve(
    bound: socket.socket,
    allowed: Allowed,
    command: Sequence[str],
    environment: Mapping[str, str],
    renew: Callable[[], None],
) -> int:
    loop, terminated = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, terminated.set)
    reaper = Reaper(loop)
    answering = FetchServer(allowed, command, environment, reaper)
    server = await asyncio.start_unix_server(answering.answer, sock=bound, limit=MAX_REQUEST)
    log(f"fetching on request: {', '.join(allowed.fetch) or 'adapters of the list'}")
    renewing = asyncio.ensure_future(_renewing(renew))
    try:
        await terminated.wait()
    finally:
        renewing.cancel()
        server.close()
        await answering.close()
        reaper.close()
    return 0


async def _renewing(renew: Callable[[], None]) -> None:
    """Call `renew` periodically in a thread, because the volume may hang."""
    while True:
        with contextlib.suppress(OSError):
            await in_thread(renew)
        await asyncio.sleep(RENEW_SECONDS)


class FetchServer:
    """Handles the connections of this process."""

    def __init__(
        self,
        allowed: Allowed,
        command: Sequence[str],
        environment: Mapping[str, str],
        reaper: Reaper,
        cgroup: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._cgroup = cgroup
        self._allowed, self._command, self._environment = allowed, tuple(command), environment
        self._reaper = reaper
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def close(self) -> None:
        for writer in self._open.values():
            writer.transport.abort()
        if self._open:
            await asyncio.wait(self._open, timeout=CLOSE_SECONDS)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._open[task] = writer
        try:
            with contextlib.suppress(OSError):  # the client disconnected
                if len(self._open) > MOST_CONNECTIONS:
                    writer.write(failure_line(refusal(f"it has {MOST_CONNECTIONS} connections already")))
                else:
                    await self._answer(reader, writer)
                await writer.drain()
        finally:
            del self._open[task]
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = read_request(await asyncio.wait_for(read_line(reader), REQUEST_SECONDS))
        except (Refused, TimeoutError) as why:
            writer.write(failure_line(refusal(f"the request cannot be read: {str(why) or 'it did not come in time'}")))
            return
        if (other := self._allowed.missing(request.fetch)) is not None:
            log(f"refused to fetch {other!r}, which is not of this pod")
            writer.write(failure_line(refusal(f"it was not started to fetch {other[:200]!r}")))
            return
        child = self._reaper.start(self._process(request), self._environment, merge_stderr=False)
        guard = asyncio.ensure_future(guard_memory(child, self._cgroup))
        try:
            # Data after the request, or a closed connection, ends the fetch.
            relayed = await first_done(relay(child, writer), reader.read(1))
            if relayed.done() and not relayed.cancelled():
                writer.write(ended_line(relayed.result()))
        finally:
            child.kill_group()
            await cancel_and_wait(guard)

    def _process(self, request: Request) -> tuple[str, ...]:
        extension = () if request.context_extension is None else (f"--context-extension={request.context_extension}",)
        wanted = (f"--fetch={text}" for text in request.fetch)
        return (*self._command, *wanted, f"--weights={request.weights}", *extension, "--", *request.args)


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """Read the first line of a connection. Refused where it is too long."""
    try:
        return await reader.readline()
    except ValueError:
        raise Refused(f"it is longer than {MAX_REQUEST} bytes") from None


def read_request(line: bytes) -> Request:
    """Parse a request. Refused where it is invalid."""
    try:
        return Request.from_json(line.decode())
    except UnicodeDecodeError:
        raise Refused("it is not UTF-8") from None


async def relay(child: Child, writer: asyncio.StreamWriter) -> Ended:
    """Copy a child's output to the connection until it ends. A slow reader slows the child down."""
    output = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), os.fdopen(child.output, "rb")
    )
    try:
        while chunk := await output.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    finally:
        transport.close()
    return await child.ended


async def guard_memory(child: Child, cgroup: Path) -> None:
    """End a fetch that is about to exceed the container's memory; the supervisor then resumes it.

    Otherwise the kernel ends the container, and the pod is not ready until it has restarted. No effect without a
    limit, and with cgroup v1.
    """
    while (used := memory_share(cgroup)) is not None:
        if used > MEMORY_SHARE:
            log(f"fetch ended: it uses {used:.0%} of the container's memory limit")
            child.kill_group()
            return
        await asyncio.sleep(MEMORY_SECONDS)


def memory_share(cgroup: Path) -> float | None:
    """Share of a cgroup's limit used by memory that cannot be reclaimed; None without a limit."""
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        rows = (line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        return sum(int(value) for name, value in rows if name in ("anon", "shmem")) / limit
    except (OSError, ValueError, ZeroDivisionError):
        return None


def refusal(why: str) -> Failure:
    return Failure(
        FailureReason.FETCH_CONTAINER_FAILED,
        f"Container {FETCH_CONTAINER} refused a request: {why}.",
        "It only fetches artifacts of the LLMService. The supervisor retries its own requests.",
        phase=Phase.FETCHING,
    )
