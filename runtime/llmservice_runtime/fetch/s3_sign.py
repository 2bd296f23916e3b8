"""AWS Signature Version 4 of a request without a body, as every S3 server checks it."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlsplit

_NOTHING = hashlib.sha256(b"").hexdigest()
_SAFE = "-_.~"


@dataclass(frozen=True, repr=False)
class Credentials:
    """An access key. `expires`: seconds since the epoch, of temporary ones."""

    access_key: str
    secret_key: str
    session_token: str = ""
    expires: float | None = None


def escape(text: str, safe: str = "") -> str:
    """Percent-encoding exactly as the signature has it."""
    return quote(text, safe=_SAFE + safe)


def signed(method: str, url: str, credentials: Credentials, region: str, now: dt.datetime) -> dict[str, str]:
    """The headers that make a request of these credentials; its URL must be escaped by `escape`."""
    parts = urlsplit(url)
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": parts.netloc, "x-amz-content-sha256": _NOTHING, "x-amz-date": stamp}
    if credentials.session_token:
        headers["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(headers))
    query = "&".join(f"{escape(k)}={escape(v)}" for k, v in sorted(parse_qsl(parts.query, keep_blank_values=True)))
    lines = [method, parts.path or "/", query, *(f"{name}:{headers[name]}" for name in sorted(headers)), "", names]
    request = hashlib.sha256("\n".join([*lines, _NOTHING]).encode()).hexdigest()
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{request}".encode(), "sha256").hex()
    del headers["host"]
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers
