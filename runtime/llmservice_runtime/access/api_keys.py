"""API keys of clients, from a file of a mounted Secret: one per line, reread when the file changes.

The kubelet replaces the file atomically. It is checked on requests, at most once per second. Without a valid key all
requests are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass

REFRESH_SECONDS = 1.0
FILE_LIMIT = 64 << 10
# Each request is compared with all of them.
KEYS_LIMIT = 256


@dataclass(frozen=True)
class Keys:
    """SHA-256 of each key; none where `problem` says why."""

    digests: tuple[bytes, ...]
    problem: str = ""

    def has(self, key: bytes) -> bool:
        """Whether the key is valid, in constant time."""
        digest, found = _digest(key), False
        for known in self.digests:
            found |= hmac.compare_digest(digest, known)
        return found


def split(text: bytes) -> tuple[tuple[bytes, ...], str]:
    """One key per line, without blank lines and surrounding whitespace; none where the second item says why."""
    if len(text) > FILE_LIMIT:
        return (), f"it has more than {FILE_LIMIT} bytes"
    found = tuple(dict.fromkeys(key for line in text.splitlines() if (key := line.strip())))
    if not found:
        return (), "it is empty"
    if len(found) > KEYS_LIMIT:
        return (), f"it has more than {KEYS_LIMIT} keys"
    return found, ""


def parse(text: bytes) -> Keys:
    """The keys of a file."""
    found, problem = split(text)
    return Keys(tuple(_digest(key) for key in found), problem)


def bearer(authorization: bytes | None) -> bytes | None:
    """The key in the value of an Authorization header; None where it holds none."""
    scheme, _, key = (authorization or b"").partition(b" ")
    return key.strip() or None if scheme.lower() == b"bearer" else None


class KeyFile:
    """The currently valid keys of a file."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._refresh_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._keys = Keys((), "it was never read")

    def accepts(self, authorization: bytes | None) -> bool:
        """Whether the value of an Authorization header holds a valid key."""
        key = bearer(authorization)
        return key is not None and self.current().has(key)

    def current(self) -> Keys:
        """The keys of the file, at most REFRESH_SECONDS old."""
        now = self._clock()
        if now >= self._refresh_at:
            self._refresh_at = now + REFRESH_SECONDS
            self._refresh()
        return self._keys

    def _refresh(self) -> None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - request path, faster than Path
            seen = (found.st_mtime_ns, found.st_ino, found.st_size)
            if seen != self._seen:
                self._keys = _read(self._path) if stat.S_ISREG(found.st_mode) else Keys((), "it is not a file")
                self._seen = seen
        except OSError as error:
            self._keys, self._seen = Keys((), f"it cannot be read ({error.strerror})"), None


def _read(path: str) -> Keys:
    with open(path, "rb") as file:  # noqa: PTH123 - request path, faster than Path
        return parse(file.read(FILE_LIMIT + 1))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
