"""Request bodies on their way to a pod."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

from llmservice_activator.holding.answer import Answered
from llmservice_activator.holding.ledger import Entry

REPLAY_BYTES = 64 << 10
"""Bytes: most prompts are smaller, and requests in all slots keep at most 32 MiB."""
Data = io.BytesIO | AsyncIterator[bytes]
"""Accepted by aiohttp's client."""


class BufferedBody:
    """A complete body, for any number of attempts until a pod has received it."""

    states_length = False
    """Whether to send the client's Content-Length; aiohttp states that of a complete body."""
    answered: Answered | None = None

    def __init__(self, body: bytes, entry: Entry) -> None:
        self._body, self.entry = body, entry

    may_repeat = True
    """Whether another pod can get the body."""

    def data(self) -> Data:
        return io.BytesIO(self._body)

    def sent(self) -> None:
        """A pod has received the body: release it."""
        self._body = b""
        self.entry.close()


class StreamedBody:
    """A body that is forwarded as it arrives. It is read once a pod is connected, so that a failed connect can be
    repeated; up to REPLAY_BYTES bytes are kept for another attempt."""

    states_length = True

    def __init__(self, body: AsyncIterator[bytes], *, is_empty: bool) -> None:
        self._body, self._is_whole = body, is_empty
        self._kept: list[bytes] | None = []
        self.answered: Answered | None = None
        """Why the body ended early."""

    def data(self) -> Data:
        """The body; raises Answered where it does not arrive."""
        return self._pieces()

    @property
    def may_repeat(self) -> bool:
        return self._is_whole and self._kept is not None

    def sent(self) -> None:
        """A pod has received the body: keep nothing."""
        self._kept = None

    async def whole(self) -> AsyncIterator[bytes]:
        """The bytes read so far and those to come, after failed attempts."""
        kept, self._kept = self._kept or [], None
        for piece in kept:
            yield piece
        async for piece in self._body:
            yield piece

    async def _pieces(self) -> AsyncIterator[bytes]:
        for piece in tuple(self._kept or ()):
            yield piece
        try:
            async for piece in self._body:
                if self._kept is not None:
                    self._kept.append(piece)
                    if sum(map(len, self._kept)) > REPLAY_BYTES:
                        self._kept = None
                yield piece
            self._is_whole = True
        except Answered as answered:
            self.answered = answered
            raise


Upload = BufferedBody | StreamedBody
