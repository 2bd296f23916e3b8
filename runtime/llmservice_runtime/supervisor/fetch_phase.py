"""The supervisor's side of a fetch: requests it from the pod's fetch container and retries interrupted requests.

Only that container has credentials for hubs and buckets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from llmservice_runtime.contract import FETCH_CONTAINER, CacheRoom, Failure, FailureReason, Phase, State, Transfer
from llmservice_runtime.fetch_protocol import MAX_ANSWER, read_ended
from llmservice_runtime.fetch_protocol import Fetched as Fetched
from llmservice_runtime.fetch_protocol import Request as Request
from llmservice_runtime.fetch_protocol import read_document as read_document
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.dependencies import Dependencies
from llmservice_runtime.supervisor.processes import Ended

MOST_CUTS = 5
"""Consecutive interruptions without further bytes before the fetch fails."""
_LONGEST_PAUSE = 30.0
_LOG = f"See `kubectl logs POD -c {FETCH_CONTAINER} --previous` and `kubectl describe pod POD`."
_MEMORY = (
    f"If it was OOMKilled, raise its memory limit: services.fetchMemoryGib of the operator's chart. {_LOG} "
    "With spec.model.cache the next start resumes the fetch."
)

Progress = Transfer | CacheRoom | str
"""Progress of the transfer, usage of the cache, or text: why the fetch waits."""
Artifacts = dict[str, Path]
"""Artifact name -> path."""


@dataclass
class _Answer:
    """Result of one connection; `ended` is None where it was interrupted."""

    artifacts: Artifacts = field(default_factory=dict)
    failure: Failure | None = None
    ended: Ended | None = None
    bytes_done: int = 0


@dataclass(frozen=True)
class FetchContainer:
    """Client of the pod's fetch container."""

    socket: Path
    wait_seconds: float
    retry_seconds: float
    poll_seconds: float
    log: Callable[[str], None]

    @classmethod
    def of(cls, options: ServeOptions, dependencies: Dependencies, log: Callable[[str], None]) -> FetchContainer:
        timing = dependencies.timing
        return cls(
            Path(options.fetch_socket), timing.fetch_wait_seconds, timing.fetch_retry_seconds, timing.poll_seconds, log
        )

    async def get(self, request: Request, on_progress: Callable[[Progress], None]) -> Artifacts | Failure:
        """Fetch from start to end. Cancelled, the connection closes, which ends the fetch in the container as well."""
        cuts = most_bytes = 0
        while True:
            answer = await self._request(request, on_progress)
            if isinstance(answer, Failure):
                return answer
            if answer.failure is not None:
                return answer.failure
            if answer.ended is not None and answer.ended.code is not None:
                return _result(answer, answer.ended.code)
            cuts = 1 if answer.bytes_done > most_bytes else cuts + 1
            most_bytes = max(most_bytes, answer.bytes_done)
            why = _cut_reason(answer.ended)
            if cuts > MOST_CUTS:
                return _failure(f"{why}, {cuts} times in a row without progress.", _MEMORY)
            pause = min(_LONGEST_PAUSE, self.retry_seconds * 2.0 ** (cuts - 1))
            self._report(f"{why}; resuming in {pause:g} s", on_progress)
            await asyncio.sleep(pause)

    async def _request(self, request: Request, on_progress: Callable[[Progress], None]) -> _Answer | Failure:
        """Send the request on one connection and read all documents of the response."""
        connected = await self._connected(on_progress)
        if connected is None:
            message = f"Container {FETCH_CONTAINER} did not listen on {self.socket} within {self.wait_seconds:g} s."
            return _failure(message, f"See why container {FETCH_CONTAINER} does not run. {_MEMORY}")
        reader, writer = connected
        answer = _Answer()
        try:
            # Reset connections and unterminated lines are interruptions.
            with contextlib.suppress(OSError, ValueError):
                writer.write(request.to_json().encode() + b"\n")
                await writer.drain()
                while line := await reader.readline():
                    _note(answer, line.decode(errors="replace"), on_progress)
        finally:
            writer.close()
        return answer

    async def _connected(
        self, on_progress: Callable[[Progress], None]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect, waiting for a container that starts or restarts; None after `wait_seconds`."""
        loop = asyncio.get_running_loop()
        deadline, is_reported = loop.time() + self.wait_seconds, False
        while True:
            with contextlib.suppress(OSError):
                return await asyncio.open_unix_connection(self.socket, limit=MAX_ANSWER)
            if loop.time() >= deadline:
                return None
            if not is_reported:
                self._report(f"waiting for container {FETCH_CONTAINER}", on_progress)
                is_reported = True
            await asyncio.sleep(self.poll_seconds)

    def _report(self, text: str, on_progress: Callable[[Progress], None]) -> None:
        self.log(text)
        on_progress(text)


def with_progress(state: State, progress: Progress) -> State:
    if isinstance(progress, CacheRoom):
        return replace(state, cache=progress)
    if isinstance(progress, Transfer):
        return replace(state, progress=progress.summary, transfer=progress)
    return replace(state, progress=progress)


def _note(answer: _Answer, line: str, on_progress: Callable[[Progress], None]) -> None:
    document = read_document(line)
    if isinstance(document, Transfer):
        answer.bytes_done = max(answer.bytes_done, document.bytes_done)
        on_progress(document)
    elif isinstance(document, CacheRoom):
        on_progress(document)
    elif isinstance(document, Fetched):
        answer.artifacts[document.artifact] = document.path
    elif isinstance(document, Failure):
        answer.failure = document
    else:
        answer.ended = read_ended(line) or answer.ended


def _cut_reason(ended: Ended | None) -> str:
    if ended is None:
        return f"Container {FETCH_CONTAINER} ended during a fetch"
    return f"The fetch process in container {FETCH_CONTAINER} ended with {ended}"


def _result(answer: _Answer, code: int) -> Artifacts | Failure:
    if code == 0:
        return answer.artifacts
    message = f"The fetch process ended with exit code {code} without a reason."
    return _failure(message, f"See the log of container {FETCH_CONTAINER}. {_MEMORY}")


def _failure(message: str, remedy: str) -> Failure:
    return Failure(FailureReason.FETCH_CONTAINER_FAILED, message, remedy, phase=Phase.FETCHING)
