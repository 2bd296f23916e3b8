"""The secret by which requests from inside the pod are known: a random word in a file that only the server may read.

An address proves nothing: a proxy in the pod has the same one, and not every proxy says that it forwards.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from llmservice_runtime.contract import POD_TOKEN_HEADER

_HEADER = POD_TOKEN_HEADER.lower().encode()


def file_of(board: str) -> Path:
    """Beside a board: contract.POD_TOKEN_FILE in a pod."""
    return Path(board).with_name("token")


def make(board: str) -> str:
    """A fresh one, so that a restarted container never takes its predecessor's."""
    path, token = file_of(board), secrets.token_urlsafe(32)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(token)
    return token


def read(board: str) -> bytes | None:
    """The token's bytes; None where there is none, and then no request comes from the pod."""
    try:
        return file_of(board).read_bytes().strip() or None
    except OSError:
        return None


def shows(headers: list[tuple[bytes, bytes]], token: bytes | None) -> bool:
    """Whether a request's headers hold the token."""
    given = next((value for name, value in headers if name.lower() == _HEADER), None)
    return token is not None and given is not None and hmac.compare_digest(given, token)
