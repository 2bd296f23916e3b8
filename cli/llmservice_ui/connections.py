"""Connections of the page's server: one that stays without a request, or does not take its answer, is ended.

uvicorn ends connections only between two requests. Its limit_concurrency counts connections instead: a few hundred
silent ones would have the page refuse everybody, and the kubelet restart it.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_SECONDS = 10.0
"""In which a request's head has to be sent, and an answer be taken; twice as many at most."""


class Impatient(H11Protocol):
    """Looks at its connection every HEAD_SECONDS, and aborts one that was stuck at the same request the time before."""

    _stuck_at: tuple[RequestResponseCycle | None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._check)

    def _check(self) -> None:
        is_unread = self.transport.get_write_buffer_size() > 0
        if self.transport.is_closing() and not is_unread:
            return
        # uvicorn's annotation leaves out that there is none before the first request.
        cycle: RequestResponseCycle | None = self.cycle
        is_waiting = cycle is None or (cycle.response_complete and self.timeout_keep_alive_task is None)
        is_stuck = is_waiting or is_unread
        if is_stuck and self._stuck_at is not None and self._stuck_at[0] is cycle:
            self.transport.abort()
            return
        self._stuck_at = (cycle,) if is_stuck else None
        self.loop.call_later(HEAD_SECONDS, self._check)
