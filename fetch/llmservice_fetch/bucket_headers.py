"""Reads response headers that obstore does not pass on: a bucket's region and an object's published hash."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

from urllib3.exceptions import HTTPError

from llmservice_fetch.errors import HTTPStatusError
from llmservice_fetch.files import Digest
from llmservice_fetch.http import once

_MD5 = re.compile(r"[0-9a-f]{32}")
_REGION = re.compile(r"[a-z0-9-]{1,63}")


def head(url: str, timeout: float) -> tuple[int, Mapping[str, str]]:
    """Status and headers of a HEAD request; redirects are not followed. OSError without a response."""
    try:
        response = once(url, {"User-Agent": "llmservice"}, "HEAD", timeout)
    except (HTTPError, HTTPStatusError) as error:
        raise OSError(type(error).__name__) from None
    response.close()
    return response.status, response.headers


def region_of(url: str, timeout: float) -> str:
    """The bucket's region as AWS reports it, also without credentials; empty where unknown."""
    try:
        _, headers = head(url, timeout)
    except (OSError, ValueError):
        return ""
    values = headers.get("x-amz-bucket-region") or ""
    return values if _REGION.fullmatch(values) else ""


def digest_of(scheme: str, headers: Mapping[str, str], tag: str) -> Digest | None:
    """The MD5 of the content as sent, where the server publishes it; None otherwise.

    S3's ETag is the MD5, except for multipart objects and those encrypted with other keys than S3's own.
    """
    if scheme == "s3":
        encrypted = headers.get("x-amz-server-side-encryption", "AES256") != "AES256"
        hidden = encrypted or "x-amz-server-side-encryption-customer-algorithm" in headers
        value = tag.strip('"')
        return Digest("md5", value) if _MD5.fullmatch(value) and not hidden else None
    if scheme == "gs":
        parts = [part.strip() for part in headers.get("x-goog-hash", "").split(",")]
        encoded = next((part[4:] for part in parts if part.startswith("md5=")), "")
    else:
        encoded = headers.get("Content-MD5") or ""
    try:
        value = base64.b64decode(encoded, validate=True).hex()
    except (binascii.Error, ValueError):
        return None
    return Digest("md5", value) if _MD5.fullmatch(value) else None
