"""AWS Signature Version 4, as every S3 server checks it."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlsplit

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


def signed(
    method: str,
    url: str,
    credentials: Credentials,
    region: str,
    now: dt.datetime,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> dict[str, str]:
    """The headers of a request with these credentials: those given, and those that prove who sends them.

    The URL must be escaped by `escape`.
    """
    parts, stamp, content = urlsplit(url), now.strftime("%Y%m%dT%H%M%SZ"), hashlib.sha256(body).hexdigest()
    given = {name.lower(): value.strip() for name, value in (headers or {}).items()}
    # Of its own headers S3 wants every one signed.
    proven = {name: value for name, value in given.items() if name.startswith("x-amz-")}
    proven |= {"host": parts.netloc, "x-amz-content-sha256": content, "x-amz-date": stamp}
    if credentials.session_token:
        proven["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(proven))
    query = "&".join(f"{escape(k)}={escape(v)}" for k, v in sorted(parse_qsl(parts.query, keep_blank_values=True)))
    lines = [method, parts.path or "/", query, *(f"{name}:{proven[name]}" for name in sorted(proven)), "", names]
    request = hashlib.sha256("\n".join([*lines, content]).encode()).hexdigest()
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{request}".encode(), "sha256").hex()
    del proven["host"]
    proof = f"Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**given, **proven, "authorization": f"AWS4-HMAC-SHA256 {proof}"}
