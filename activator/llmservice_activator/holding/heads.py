"""The bound of a request's head, and its bytes in the Shares of all. Pure.

The limits of the HTTP parser are of lines and their number: of a head, and of all, there is none.
"""

from __future__ import annotations

from llmservice_activator.holding import answer
from llmservice_activator.holding.answer import Answer
from llmservice_activator.holding.shares import Shares

END = b"\r\n\r\n"
"""The parser accepts no other: a single CR or LF in a head is an error."""
MOST_FIELDS = 128
"""Each takes some hundred bytes of memory beside its own."""


class Head:
    """What a connection has sent of the head of its one request; counted from its first byte until the connection
    ends: a request in progress keeps its head."""

    def __init__(self, heads: Shares, namespace: str, address: str, most: int) -> None:
        """`heads`: bytes of those of all connections."""
        self._heads, self._namespace, self._address, self._most = heads, namespace, address, most
        self._size, self._last, self._is_whole, self._lines = 0, b"", False, 0

    def add(self, data: bytes) -> Answer | None:
        """Count what of this belongs to the head. The answer (431, 503) where it is too much."""
        if self._is_whole:
            return None
        if not self._size:
            data = data.lstrip(b"\r\n")  # the parser skips empty lines before a request
        end = (self._last + data).find(END)
        self._is_whole = end >= 0
        size = end + len(END) - len(self._last) if self._is_whole else len(data)
        self._last = b"" if self._is_whole else (self._last + data)[1 - len(END) :]
        self._lines += data.count(b"\n", 0, size)
        if self._size + size > self._most or self._lines > MOST_FIELDS + 2:  # the first line and the empty one
            return answer.head_too_large(self._most, MOST_FIELDS)
        if not self._heads.take(self._namespace, self._address, size):
            return answer.TOO_MANY_CONNECTIONS
        self._size += size
        return None

    def close(self) -> None:
        """The connection ended."""
        self._heads.give_back(self._namespace, self._address, self._size)
        self._size = 0
