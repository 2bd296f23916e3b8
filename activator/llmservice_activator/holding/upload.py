"""The body of a request on its way to a pod."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

from llmservice_activator.holding.answer import Answered
from llmservice_activator.holding.ledger import Entry

Data = io.BytesIO | AsyncIterator[bytes]
"""As aiohttp's client takes it."""


class Spooled:
    """A whole body, for any number of attempts until a pod has it."""

    states_length = False
    """Whether the client's Content-Length is sent; aiohttp states that of a whole body."""
    answered: Answered | None = None

    def __init__(self, body: bytes, entry: Entry) -> None:
        self._body, self.entry = body, entry

    def data(self) -> Data:
        """The body."""
        return io.BytesIO(self._body)

    def sent(self) -> None:
        """A pod has it: it is not kept any longer."""
        self._body = b""
        self.entry.close()


class Arriving:
    """A body that is sent on as it arrives. It is read after the connection to a pod stands, so that another attempt is
    possible where there was none."""

    states_length = True

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self.answered: Answered | None = None
        """Why no more of it came."""

    def data(self) -> Data:
        """The body; ends with Answered where it does not arrive."""
        return self._pieces()

    def sent(self) -> None:
        """Nothing is kept."""

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._body:
                yield piece
        except Answered as answered:
            self.answered = answered
            raise


Upload = Spooled | Arriving
