"""The supervisor's side of a fetch: it asks the fetch container of its pod, and asks again where an answer was cut.

The container has the credentials and the way to hubs and buckets; the supervisor has neither.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from llmservice_runtime.contract import FETCH_CONTAINER, CacheRoom, Failure, FailureReason, Phase, State, Transfer
from llmservice_runtime.fetching.fetch_protocol import MAX_ANSWER, read_ended
from llmservice_runtime.fetching.fetch_protocol import Fetched as Fetched
from llmservice_runtime.fetching.fetch_protocol import Request as Request
from llmservice_runtime.fetching.fetch_protocol import read_document as read_document
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.dependencies import Surroundings
from llmservice_runtime.supervisor.processes import Ended

MOST_CUTS = 5
"""In a row, without a byte more than before: then the fetch has failed."""
_LONGEST_PAUSE = 30.0
_LOG = f"`kubectl logs POD -c {FETCH_CONTAINER} --previous` and `kubectl describe pod POD` say more."
_MEMORY = (
    f"Where it was OOMKilled, raise its memory limit: services.fetchMemoryGib of the operator's chart. {_LOG} "
    "What was fetched is kept in spec.model.cache, and the next start goes on from there."
)

News = Transfer | CacheRoom | str
"""How far it is, how full the cache is, or in words why nothing moves."""
Artifacts = dict[str, Path]
"""Where each artifact lies."""


@dataclass
class _Answer:
    """What one connection gave."""

    artifacts: Artifacts = field(default_factory=dict)
    failure: Failure | None = None
    ended: Ended | None = None
    """None: the connection was cut."""
    bytes_done: int = 0


@dataclass(frozen=True)
class FetchContainer:
    """The container beside the server that fetches."""

    socket: Path
    wait_seconds: float
    retry_seconds: float
    poll_seconds: float
    say: Callable[[str], None]

    @classmethod
    def of(cls, options: ServeOptions, around: Surroundings, say: Callable[[str], None]) -> FetchContainer:
        """The one of this pod."""
        pace = around.pace
        return cls(
            Path(options.fetch_socket), pace.fetch_wait_seconds, pace.fetch_retry_seconds, pace.poll_seconds, say
        )

    async def get(self, request: Request, on_news: Callable[[News], None]) -> Artifacts | Failure:
        """Fetch from start to end. Cancelled, the connection closes, which ends the fetch in the container as well.

        `on_news` takes how far it is, and in words why nothing moves.
        """
        cuts = most_bytes = 0
        while True:
            answer = await self._ask(request, on_news)
            if isinstance(answer, Failure):
                return answer
            if answer.failure is not None:
                return answer.failure
            if answer.ended is not None and answer.ended.code is not None:
                return _result(answer, answer.ended.code)
            cuts = 1 if answer.bytes_done > most_bytes else cuts + 1
            most_bytes = max(most_bytes, answer.bytes_done)
            why = _why(answer.ended)
            if cuts > MOST_CUTS:
                return _failure(f"{why}, {cuts} times in a row without getting further.", _MEMORY)
            pause = min(_LONGEST_PAUSE, self.retry_seconds * 2.0 ** (cuts - 1))
            self._tell(f"{why}; going on where it stopped in {pause:g} s", on_news)
            await asyncio.sleep(pause)

    async def _ask(self, request: Request, on_news: Callable[[News], None]) -> _Answer | Failure:
        """One connection, from the request to its end."""
        connected = await self._connected(on_news)
        if connected is None:
            message = f"Container {FETCH_CONTAINER} did not listen on {self.socket} within {self.wait_seconds:g} s."
            return _failure(message, f"See why container {FETCH_CONTAINER} does not run. {_MEMORY}")
        reader, writer = connected
        answer = _Answer()
        try:
            # Reset connections and lines without an end are cut answers.
            with contextlib.suppress(OSError, ValueError):
                writer.write(request.to_json().encode() + b"\n")
                await writer.drain()
                while line := await reader.readline():
                    _note(answer, line.decode(errors="replace"), on_news)
        finally:
            writer.close()
        return answer

    async def _connected(
        self, on_news: Callable[[News], None]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """None where nobody listens for too long: a container that starts, or starts again, takes a while."""
        loop = asyncio.get_running_loop()
        deadline, is_told = loop.time() + self.wait_seconds, False
        while True:
            with contextlib.suppress(OSError):
                return await asyncio.open_unix_connection(self.socket, limit=MAX_ANSWER)
            if loop.time() >= deadline:
                return None
            if not is_told:
                self._tell(f"waiting for container {FETCH_CONTAINER}", on_news)
                is_told = True
            await asyncio.sleep(self.poll_seconds)

    def _tell(self, text: str, on_news: Callable[[News], None]) -> None:
        self.say(text)
        on_news(text)


def noted(state: State, news: News) -> State:
    """The state with what a fetch says of itself."""
    if isinstance(news, CacheRoom):
        return replace(state, cache=news)
    if isinstance(news, Transfer):
        return replace(state, progress=news.summary, transfer=news)
    return replace(state, progress=news)


def _note(answer: _Answer, line: str, on_news: Callable[[News], None]) -> None:
    said = read_document(line)
    if isinstance(said, Transfer):
        answer.bytes_done = max(answer.bytes_done, said.bytes_done)
        on_news(said)
    elif isinstance(said, CacheRoom):
        on_news(said)
    elif isinstance(said, Fetched):
        answer.artifacts[said.artifact] = said.path
    elif isinstance(said, Failure):
        answer.failure = said
    else:
        answer.ended = read_ended(line) or answer.ended


def _why(ended: Ended | None) -> str:
    if ended is None:
        return f"Container {FETCH_CONTAINER} ended in the middle of a fetch"
    return f"The process that fetches in container {FETCH_CONTAINER} ended with {ended}"


def _result(answer: _Answer, code: int) -> Artifacts | Failure:
    if code == 0:
        return answer.artifacts
    message = f"The process that fetches ended with exit code {code} and did not say why."
    return _failure(message, f"See the log of container {FETCH_CONTAINER}. {_MEMORY}")


def _failure(message: str, remedy: str) -> Failure:
    return Failure(FailureReason.FETCH_CONTAINER_FAILED, message, remedy, phase=Phase.FETCHING)
