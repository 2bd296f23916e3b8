"""Bounds of requests' heads: of one, of a namespace, of the process. Pure.

HTTP's own limits are of lines: a head could have 64 of 8 KiB, times thousands of connections.
"""

from __future__ import annotations

from collections import Counter

from llmservice_activator.holding import answer
from llmservice_activator.holding.answer import Answer
from llmservice_activator.holding.limits import Limits

END = b"\r\n\r\n"
"""The parser accepts no other: a single CR or LF in a head is an error."""


class Heads:
    """Counts bytes of heads from their first one until the connection ends: a request in progress keeps its head."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._all = 0
        self._bytes: Counter[str] = Counter()
        """By namespace."""

    def add(self, namespace: str, size: int) -> Answer | None:
        """For a Head: `size` more bytes, until the connection ends; those that are refused (503) are not kept."""
        limits, of_namespace = self._limits, self._bytes[namespace] + size
        if self._all + size > limits.head_bytes or of_namespace > limits.head_bytes_of_one_namespace:
            return answer.TOO_MANY_CONNECTIONS
        self._all += size
        self._bytes[namespace] = of_namespace
        return None

    def free(self, namespace: str, size: int) -> None:
        """For a Head."""
        self._all -= size
        self._bytes[namespace] -= size
        if not self._bytes[namespace]:
            del self._bytes[namespace]


class Head:
    """What a connection has sent of the head of its one request."""

    def __init__(self, heads: Heads, namespace: str, most: int) -> None:
        self._heads, self._namespace, self._most = heads, namespace, most
        self._size, self._last, self._is_whole = 0, b"", False

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
        if self._size + size > self._most:
            return answer.head_too_large(self._most)
        refusal = self._heads.add(self._namespace, size)
        if refusal is None:
            self._size += size
        return refusal

    def close(self) -> None:
        """The connection ended."""
        self._heads.free(self._namespace, self._size)
        self._size = 0
