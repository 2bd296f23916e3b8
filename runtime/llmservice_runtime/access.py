"""Authenticates requests: by a client's API key, or by the pod token for requests from inside the pod.

API keys are in a file of a mounted Secret, one per line. The kubelet replaces the file atomically; it is checked on
requests, at most once per second. Without a valid key all requests are refused.

The pod token is a random secret in a file of the server container. The remote address cannot replace it: a proxy in the
pod has the same one, and not every proxy adds a header.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmservice_runtime.contract import POD_TOKEN_HEADER

REFRESH_SECONDS = 1.0
FILE_LIMIT = 64 << 10
# Each request is compared with all keys.
KEYS_LIMIT = 256


@dataclass(frozen=True)
class Keys:
    """SHA-256 of each key; empty with the cause in `problem`."""

    digests: tuple[bytes, ...]
    problem: str = ""

    def has(self, key: bytes) -> bool:
        """Whether the key is valid, in constant time."""
        digest, found = _digest(key), False
        for known in self.digests:
            found |= hmac.compare_digest(digest, known)
        return found


def split_keys(text: bytes) -> tuple[tuple[bytes, ...], str]:
    """One key per line, without blank lines and surrounding whitespace; empty with the cause as second item."""
    if len(text) > FILE_LIMIT:
        return (), f"it has more than {FILE_LIMIT} bytes"
    found = tuple(dict.fromkeys(key for line in text.splitlines() if (key := line.strip())))
    if not found:
        return (), "it is empty"
    if len(found) > KEYS_LIMIT:
        return (), f"it has more than {KEYS_LIMIT} keys"
    return found, ""


def parse_keys(text: bytes) -> Keys:
    found, problem = split_keys(text)
    return Keys(tuple(_digest(key) for key in found), problem)


def bearer(authorization: bytes | None) -> bytes | None:
    """The key in an Authorization header, or None."""
    scheme, _, key = (authorization or b"").partition(b" ")
    return key.strip() or None if scheme.lower() == b"bearer" else None


class KeyFile:
    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._refresh_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._keys = Keys((), "it was never read")

    def accepts(self, authorization: bytes | None) -> bool:
        """Whether an Authorization header contains a valid key."""
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
        return parse_keys(file.read(FILE_LIMIT + 1))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


_TOKEN_HEADER = POD_TOKEN_HEADER.lower().encode()


def pod_token_file(counters_file: str) -> Path:
    """The token's file, in the folder of the shared counters: contract.POD_TOKEN_FILE in a pod."""
    return Path(counters_file).with_name("token")


def make_pod_token(counters_file: str) -> str:
    """Write and return a new token; a restarted container does not reuse its predecessor's."""
    path, token = pod_token_file(counters_file), secrets.token_urlsafe(32)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(token)
    return token


def read_pod_token(counters_file: str) -> bytes | None:
    """The token's bytes; None if there is none, so that no request counts as the pod's."""
    try:
        return pod_token_file(counters_file).read_bytes().strip() or None
    except OSError:
        return None


def shows_pod_token(headers: list[tuple[bytes, bytes]], token: bytes | None) -> bool:
    """Whether a request's headers contain the token."""
    given = next((value for name, value in headers if name.lower() == _TOKEN_HEADER), None)
    return token is not None and given is not None and hmac.compare_digest(given, token)
