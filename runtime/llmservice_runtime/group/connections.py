"""The leader's connections: which of them are of members, and no more of the others than it can bear.

Whoever reaches the port may connect. A connection is a stranger's until its first line proves that it knows the group's
token: strangers are bounded in number, bytes and time, and a further one takes the place of another from the address
that has the most, so that no address keeps the others out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable

from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.group.protocol import HELLO_BYTES, Channel, Hello
from llmservice_runtime.supervisor.tasks import cancel_and_wait

STRANGERS = 32
"""Connections that have not proved to be a member's."""
_SAYS_SECONDS = 60.0
"""Between two lines of the log about strangers."""
ENDS = (asyncio.TimeoutError, OSError, Refused)
"""How a connection ends; the first is another class than TimeoutError before Python 3.11."""

Serve = Callable[[Channel, Hello], Awaitable[None]]


class Connections:
    """`serve` is called for each connection that is a member's, and raises one of ENDS once it is over."""

    def __init__(
        self, token: str, serve: Serve, log: Callable[[str], None], clock: Callable[[], float], prove_seconds: float
    ) -> None:
        self._token, self._serve, self._log, self._clock, self._prove_seconds = token, serve, log, clock, prove_seconds
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._strangers: dict[asyncio.Task[None], str] = {}
        """The address of each, oldest first."""
        self._unsaid, self._says_from = 0, clock()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with what no connection may raise."""

    async def listening(self, port: int) -> asyncio.AbstractServer:
        """A server whose connections these are. OSError where the port is taken."""
        # A larger line is put together of pieces of this size, so that a stranger fills no larger buffer.
        return await asyncio.start_server(self._accept, None, port, limit=HELLO_BYTES)

    async def close(self) -> None:
        """End all connections; what was written to them is still sent."""
        self._strangers.clear()
        for writer in self._open.values():
            writer.close()
        await asyncio.gather(*map(cancel_and_wait, list(self._open)))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: several versions of asyncio log a traceback for a task of theirs that is cancelled."""
        task = asyncio.ensure_future(self._connection(reader, writer))
        self._open[task] = writer
        self._strangers[task] = (writer.get_extra_info("peername") or ("",))[0]
        task.add_done_callback(self._ended)
        if len(self._strangers) > STRANGERS:
            self._displace()

    def _displace(self) -> None:
        address, _ = Counter(self._strangers.values()).most_common(1)[0]
        oldest = next(task for task, theirs in self._strangers.items() if theirs == address)
        del self._strangers[oldest]
        self._open[oldest].transport.abort()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        self._open.pop(task).close()
        if not task.cancelled() and (error := task.exception()) is not None and not self.broken.done():
            self.broken.set_exception(error)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            channel, hello = await asyncio.wait_for(self._proved(reader, writer), self._prove_seconds)
        except ENDS as error:
            self._say(self._strangers.get(task), error)
            return
        self._strangers.pop(task, None)
        with contextlib.suppress(*ENDS):  # it connects again
            await self._serve(channel, hello)

    async def _proved(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Channel, Hello]:
        channel = await Channel.opened(reader, writer, self._token, is_leader=True)
        return channel, await channel.receive(Hello, HELLO_BYTES)

    def _say(self, address: str | None, error: Exception) -> None:
        """Log a connection that proved nothing: the first, and how many more there were once a minute is over."""
        if address is None:  # it had to make place
            return
        self._unsaid += 1
        if (now := self._clock()) < self._says_from:
            return
        why = str(error) or f"it said nothing within {self._prove_seconds:g} s"
        self._log(f"connections that are no member's: {self._unsaid}, the last from {address}: {why}")
        self._unsaid, self._says_from = 0, now + _SAYS_SECONDS
