"""Access to a bucket with obstore: identity, store and addresses. The clouds are in clouds.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from email.message import Message
from enum import Enum
from typing import Any, Literal
from urllib.parse import parse_qsl, quote

from obstore.store import ObjectStore

from llmservice_fetch.bucket_errors import Wording
from llmservice_fetch.files import Digest

Headers = Mapping[str, str] | Message
_TIMEOUT_SECONDS = 30.0
# obstore's `timeout` covers a whole request with its body; stalls are detected by `read_timeout`.
_NEVER = timedelta(days=7)
# The caller retries: it logs retries and limits all of them together.
_RETRIES: dict[str, Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
_SAFE = "-_.~/"


class Identity(Enum):
    """The identity that requests are sent with."""

    GIVEN = "keys, a token or a role that the environment names"
    MACHINE = "the machine's role, where its metadata service has one"
    NOBODY = "an unsigned request"


@dataclass
class Access:
    """How to access a bucket. `region` and `identity` are corrected by the server's first responses."""

    cloud: Cloud
    bucket: str
    endpoint: str
    """A server other than the cloud's own; empty for that."""
    identity: Identity
    config: Mapping[str, str]
    """obstore's configuration, credentials included."""
    account: str = ""
    region: str = ""
    answered: bool = False
    """Whether the server has accepted a request."""
    moved: bool = False
    """Whether the region has been corrected."""
    signs: bool = False
    """Whether a URL can be signed locally."""
    _store: tuple[object, ObjectStore] | None = field(default=None, repr=False)

    def store(self, timeout: float | None) -> ObjectStore:
        """The store of obstore, made once. Raises obstore's errors where the credentials are malformed."""
        key = (timeout, self.region, self.identity)
        if self._store is None or self._store[0] != key:
            self._store = (key, self._open(timeout))
        return self._store[1]

    def _open(self, timeout: float | None) -> ObjectStore:
        wait = timedelta(seconds=timeout or _TIMEOUT_SECONDS)
        config: dict[str, Any] = dict(self.config)
        if self.identity is Identity.NOBODY:
            config["skip_signature"] = True
        options: dict[str, Any] = {
            "client_options": {
                "allow_http": self.endpoint.startswith("http://"),
                "connect_timeout": wait,
                "read_timeout": wait,
                "timeout": _NEVER,
                "user_agent": "llmservice",
            },
            "retry_config": _RETRIES,
        }
        return self.cloud.open(self, config, options)

    def address(self, key: str = "") -> str:
        """The URL of an object without a signature, or of the bucket where there is no key."""
        return self.cloud.address(self, quote(key, safe=_SAFE))


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """How buckets of a URI scheme are read."""

    scheme: str
    wording: Wording
    access: Callable[[Cloud, str, Mapping[str, str]], Access]
    """For the URI's part before the prefix and the variables that are not empty. FetchFailed."""
    open: Callable[[Access, dict[str, Any], dict[str, Any]], ObjectStore]
    """With obstore's configuration and options."""
    address: Callable[[Access, str], str]
    """The URL without a signature of a key, which is quoted, or of the bucket."""
    digest: Callable[[Headers, str], Digest | None]
    """The MD5 of the content as sent, for the headers of a HEAD response and the ETag; None where it is not
    published."""
    signed_method: Literal["GET", "HEAD"] = "HEAD"
    """The method that the URL of a HEAD request is signed for."""
    has_regions: bool = False
    """Whether the server may report that the bucket is in another region."""
    hides_urls: bool = False
    """Whether obstore's errors may hide the URL of a request to the bucket."""
    depth: int = 1
    """Number of the URI's parts before the prefix."""
    no_account: tuple[str, str] | None = None
    """Problem, after the URI, and remedy where the account is not known; None where none can be missing."""


def access_of(cloud: Cloud, place: str, environment: Mapping[str, str], hide: Callable[[str], None]) -> Access:
    """Access to the bucket of a URI, whose part before the prefix is `place`. `hide` is called with each secret."""
    given = {name: value.strip() for name, value in environment.items() if value.strip()}
    access = cloud.access(cloud, place, given)
    for secret in _secrets(access.config):
        hide(secret)
    return access


def _secrets(config: Mapping[str, str]) -> Iterator[str]:
    for name, value in config.items():
        if name.endswith(("_key", "_key_id", "_token", "_secret")):
            yield value
        if "_sas_" in name:
            yield from (part.partition("=")[2] for part in value.split("&") if part.startswith("sig="))
            yield from (text for part, text in parse_qsl(value) if part == "sig")
        if name == "google_service_account_key":
            yield from _private(value)


def _private(document: str) -> Iterator[str]:
    """The private key of a service account's document, as a whole and by line."""
    try:
        key = json.loads(document)["private_key"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if isinstance(key, str):
        yield key
        yield from (line for line in key.splitlines() if "-----" not in line)
