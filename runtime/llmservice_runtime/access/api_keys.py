"""The keys that clients may show, in a file of a mounted Secret: several, one a line, read again when it changes.

The kubelet exchanges the file as a whole (a link to another folder). It is looked at when a request comes, once a
second at most. Where it holds no usable key nobody is let in.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass

LOOK_SECONDS = 1.0
FILE_LIMIT = 64 << 10
# Each request is compared with all of them.
KEYS_LIMIT = 256


@dataclass(frozen=True)
class Keys:
    """SHA-256 of each key; none where `problem` says why."""

    digests: tuple[bytes, ...]
    problem: str = ""

    def has(self, key: bytes) -> bool:
        """In a time that tells nothing of which key is nearly right, or how many there are before it."""
        digest, found = _digest(key), False
        for known in self.digests:
            found |= hmac.compare_digest(digest, known)
        return found


def parse(text: bytes) -> Keys:
    """One key a line; blank lines and blanks around a key count for nothing."""
    if len(text) > FILE_LIMIT:
        return Keys((), f"it has more than {FILE_LIMIT} bytes")
    found = dict.fromkeys(key for line in text.splitlines() if (key := line.strip()))
    if not found:
        return Keys((), "it is empty")
    if len(found) > KEYS_LIMIT:
        return Keys((), f"it has more than {KEYS_LIMIT} keys")
    return Keys(tuple(_digest(key) for key in found))


def bearer(authorization: bytes | None) -> bytes | None:
    """The key in the value of an Authorization header; None where it holds none."""
    scheme, _, key = (authorization or b"").partition(b" ")
    return key.strip() or None if scheme.lower() == b"bearer" else None


class KeyFile:
    """The keys that are in force now."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._look_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._keys = Keys((), "it was never read")

    def accepts(self, authorization: bytes | None) -> bool:
        """Whether the value of an Authorization header shows one of the keys."""
        key = bearer(authorization)
        return key is not None and self.current().has(key)

    def current(self) -> Keys:
        """As the file is, or was within the last second."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look()
        return self._keys

    def _look(self) -> None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - on the way of requests
            seen = (found.st_mtime_ns, found.st_ino, found.st_size)
            if seen != self._seen:
                self._keys = _read(self._path) if stat.S_ISREG(found.st_mode) else Keys((), "it is no file")
                self._seen = seen
        except OSError as error:
            self._keys, self._seen = Keys((), f"it cannot be read ({error.strerror})"), None


def _read(path: str) -> Keys:
    with open(path, "rb") as file:  # noqa: PTH123 - on the way of requests
        return parse(file.read(FILE_LIMIT + 1))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
