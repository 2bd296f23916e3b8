"""The body of a request on its way to a pod."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

from llmservice_activator.holding.answer import Answered
from llmservice_activator.holding.ledger import Entry

KEPT = 64 << 10
"""Bytes: most prompts are smaller, and as many requests as there are slots keep no more than 32 MiB."""
Data = io.BytesIO | AsyncIterator[bytes]
"""As aiohttp's client takes it."""


class Spooled:
    """A whole body, for any number of attempts until a pod has it."""

    states_length = False
    """Whether the client's Content-Length is sent; aiohttp states that of a whole body."""
    answered: Answered | None = None

    def __init__(self, body: bytes, entry: Entry) -> None:
        self._body, self.entry = body, entry

    may_repeat = True
    """Whether another pod can have it."""

    def data(self) -> Data:
        """The body."""
        return io.BytesIO(self._body)

    def sent(self) -> None:
        """A pod has it: it is not kept any longer."""
        self._body = b""
        self.entry.close()


class Arriving:
    """A body that is sent on as it arrives. It is read after the connection to a pod stands, so that another attempt is
    possible where there was none; one of up to KEPT bytes is kept for another attempt until a pod takes it."""

    states_length = True

    def __init__(self, body: AsyncIterator[bytes], *, is_empty: bool) -> None:
        self._body, self._is_whole = body, is_empty
        self._kept: list[bytes] | None = []
        self.answered: Answered | None = None
        """Why no more of it came."""

    def data(self) -> Data:
        """The body; ends with Answered where it does not arrive."""
        return self._pieces()

    @property
    def may_repeat(self) -> bool:
        """As Spooled's."""
        return self._is_whole and self._kept is not None

    def sent(self) -> None:
        """Nothing is kept any longer."""
        self._kept = None

    async def whole(self) -> AsyncIterator[bytes]:
        """What was read and what is still to come, after attempts of which nothing came."""
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
                    if sum(map(len, self._kept)) > KEPT:
                        self._kept = None
                yield piece
            self._is_whole = True
        except Answered as answered:
            self.answered = answered
            raise


Upload = Spooled | Arriving
