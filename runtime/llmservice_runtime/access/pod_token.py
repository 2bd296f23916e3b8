"""The pod token: a random secret in a file of the server container that authenticates requests from inside the pod.

The remote address cannot: a proxy in the pod has the same one, and not every proxy adds a header.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from llmservice_runtime.contract import POD_TOKEN_HEADER

_HEADER = POD_TOKEN_HEADER.lower().encode()


def file_of(counters_file: str) -> Path:
    """The token's file, in the folder of the shared counters: contract.POD_TOKEN_FILE in a pod."""
    return Path(counters_file).with_name("token")


def make(counters_file: str) -> str:
    """Write and return a new token; a restarted container does not reuse its predecessor's."""
    path, token = file_of(counters_file), secrets.token_urlsafe(32)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(token)
    return token


def read(counters_file: str) -> bytes | None:
    """The token's bytes; None where there is none, and then no request is accepted as the pod's."""
    try:
        return file_of(counters_file).read_bytes().strip() or None
    except OSError:
        return None


def shows(headers: list[tuple[bytes, bytes]], token: bytes | None) -> bool:
    """Whether a request's headers hold the token."""
    given = next((value for name, value in headers if name.lower() == _HEADER), None)
    return token is not None and given is not None and hmac.compare_digest(given, token)
