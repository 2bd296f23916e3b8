"""Reads response headers that obstore does not pass on: a bucket's region and an object's published hash."""

from __future__ import annotations

import base64
import binascii
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from typing import Any
from urllib.parse import urlsplit

from llmservice_fetch.files import Digest
from llmservice_fetch.proxies import proxy_of

_MD5 = re.compile(r"[0-9a-f]{32}")
_REGION = re.compile(r"[a-z0-9-]{1,63}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def head(url: str, timeout: float) -> tuple[int, Message]:
    """Status and headers of a HEAD request; redirects are not followed. OSError without a response."""
    scheme = urlsplit(url).scheme
    if scheme not in ("http", "https"):
        raise OSError("not an HTTP address")
    # The standard library reads no networks in NO_PROXY.
    proxy = proxy_of(url)
    proxies = urllib.request.ProxyHandler({scheme: proxy} if proxy else {})
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "llmservice"})
    try:
        with urllib.request.build_opener(_NoRedirects(), proxies).open(request, timeout=timeout) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.headers


def region_of(url: str, timeout: float) -> str:
    """The bucket's region as AWS reports it, also without credentials; empty where unknown."""
    try:
        _, headers = head(url, timeout)
    except (OSError, ValueError):
        return ""
    values = headers.get("x-amz-bucket-region") or ""
    return values if _REGION.fullmatch(values) else ""


def digest_of(scheme: str, headers: Mapping[str, str] | Message, tag: str) -> Digest | None:
    """The MD5 of the content as sent, where the server publishes it; None otherwise.

    S3's ETag is the MD5, except for multipart objects and those encrypted with other keys than S3's own.
    """
    if scheme == "s3":
        encrypted = headers.get("x-amz-server-side-encryption", "AES256") != "AES256"
        hidden = encrypted or "x-amz-server-side-encryption-customer-algorithm" in headers
        value = tag.strip('"')
        return Digest("md5", value) if _MD5.fullmatch(value) and not hidden else None
    if scheme == "gs":
        values = headers.get_all("x-goog-hash") if isinstance(headers, Message) else [headers.get("x-goog-hash", "")]
        parts = [part.strip() for text in values or () for part in text.split(",")]
        encoded = next((part[4:] for part in parts if part.startswith("md5=")), "")
    else:
        encoded = headers.get("Content-MD5") or ""
    try:
        value = base64.b64decode(encoded, validate=True).hex()
    except (binascii.Error, ValueError):
        return None
    return Digest("md5", value) if _MD5.fullmatch(value) else None
