"""Chooses obstore's store and the credentials for a bucket of S3, Google Cloud Storage or Azure.

obstore finds credentials as the clouds' own programs do (keys, a web identity, a pod's role, the machine's role), but
fails without any. The identity is therefore chosen here, so that a public bucket needs no credentials.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl, quote

from obstore.store import AzureStore, GCSStore, S3Store

from llmservice_fetch import failed

Store = S3Store | GCSStore | AzureStore
SCHEMES = ("s3", "gs", "az")
_TIMEOUT_SECONDS = 30.0
# obstore's `timeout` covers a whole request with its body; stalls are detected by `read_timeout`.
_NEVER = timedelta(days=7)
# The caller retries: it logs retries and limits all of them together.
_RETRIES: dict[str, Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
_DEFAULT_REGION = "us-east-1"
_SAFE = "-_.~/"


class Identity(Enum):
    """The identity that requests are sent with."""

    GIVEN = "keys, a token or a role that the environment names"
    MACHINE = "the machine's role, where its metadata service has one"
    NOBODY = "an unsigned request"


@dataclass
class Access:
    """How to access a bucket. `region` and `identity` are corrected by the server's first responses."""

    scheme: str
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
    _store: tuple[object, Store] | None = field(default=None, repr=False)

    def store(self, timeout: float | None) -> Store:
        """The store of obstore, made once. Raises obstore's errors where the credentials are malformed."""
        key = (timeout, self.region, self.identity)
        if self._store is None or self._store[0] != key:
            self._store = (key, self._open(timeout))
        return self._store[1]

    def _open(self, timeout: float | None) -> Store:
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
        if self.scheme == "gs":
            # obstore also reads these variables itself, and refuses two of them.
            for name in _GOOGLE_FILES:
                if name.lower() not in config:
                    os.environ.pop(name, None)
            return GCSStore(self.bucket, config=config, **options)  # type: ignore[arg-type]
        if self.scheme == "az":
            return AzureStore(self.bucket, config=config, **options)  # type: ignore[arg-type]
        return S3Store(self.bucket, config=config | {"region": self.region}, **options)  # type: ignore[arg-type]

    def address(self, key: str = "") -> str:
        """The URL of an object without a signature, or of the bucket where there is no key."""
        path = quote(key, safe=_SAFE)
        if self.scheme == "gs":
            return f"{self.endpoint or 'https://storage.googleapis.com'}/{self.bucket}/{path}"
        if self.scheme == "az":
            return f"{self.endpoint or f'https://{self.account}.blob.core.windows.net'}/{self.bucket}/{path}"
        if self.endpoint:
            return f"{self.endpoint}/{self.bucket}/{path}"
        if "." in self.bucket:
            return f"https://s3.{self.region}.amazonaws.com/{self.bucket}/{path}"
        return f"https://{self.bucket}.s3.{self.region}.amazonaws.com/{path}"


def access_of(scheme: str, bucket: str, environment: Mapping[str, str], hide: Callable[[str], None]) -> Access:
    """Access to a bucket by the environment's settings. `hide` is called with each secret."""
    given = {name: value.strip() for name, value in environment.items() if value.strip()}
    access = {"s3": _s3, "gs": _gs, "az": _az}[scheme](bucket, given)
    for secret in _secrets(access.config):
        hide(secret)
    return access


def _s3(bucket: str, given: Mapping[str, str]) -> Access:
    endpoint = (given.get("AWS_ENDPOINT_URL_S3") or given.get("AWS_ENDPOINT_URL") or "").rstrip("/")
    config = {"virtual_hosted_style_request": "false" if endpoint or "." in bucket else "true"}
    if endpoint:
        config["aws_endpoint_url_s3"] = endpoint
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    role = ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_SESSION_NAME", "AWS_ENDPOINT_URL_STS")
    pod = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    task = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",)
    identity = Identity.GIVEN
    if all(name in given for name in keys[:2]):
        config |= _chosen(given, keys)
    elif all(name in given for name in role[:2]):
        config |= {"aws_role_session_name": "llmservice"} | _chosen(given, role)
    elif pod[0] in given or task[0] in given:
        if task[0] not in given and pod[1] not in given:
            # obstore would use the machine's role instead.
            raise failed.token_refused(f"{pod[0]} is used with {pod[1]} only, which is not set.", f"Set {pod[1]}.")
        config |= _chosen(given, (*pod, *task))
    elif endpoint or given.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        identity = Identity.NOBODY
    else:
        identity = Identity.MACHINE
    region = given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
    return Access("s3", bucket, endpoint, identity, config, region=region, signs=True)


_GOOGLE_FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")


def _gs(bucket: str, given: Mapping[str, str]) -> Access:
    endpoint = given.get("GOOGLE_BASE_URL", "").rstrip("/")
    names = ("GOOGLE_SERVICE_ACCOUNT_KEY", *_GOOGLE_FILES, "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_BEARER_TOKEN")
    # Only one, because obstore refuses two; the Secret of the spec comes first.
    chosen = next((_chosen(given, (name,)) for name in names if name in given), {})
    config = chosen | ({"google_base_url": endpoint} if endpoint else {})
    identity = Identity.GIVEN if chosen else Identity.NOBODY if endpoint else Identity.MACHINE
    return Access("gs", bucket, endpoint, identity, config, signs="google_service_account_key" in config)


def _az(bucket: str, given: Mapping[str, str]) -> Access:
    account = given.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    endpoint = (given.get("AZURE_STORAGE_ENDPOINT") or given.get("AZURE_ENDPOINT") or "").rstrip("/")
    key = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY")
    sas = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
    client = ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_AUTHORITY_HOST")
    proofs = ("AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE")
    identity, config = Identity.GIVEN, {"azure_storage_account_name": account}
    for names in (key[:1], key[1:], sas[:1], sas[1:]):
        if found := _chosen(given, names):
            config |= {name: value.lstrip("?") for name, value in found.items()}
            break
    else:
        config |= _chosen(given, client)
        proof = next((_chosen(given, (name,)) for name in proofs if name in given), {})
        config |= proof
        if not proof:
            identity = Identity.NOBODY if endpoint else Identity.MACHINE
    if endpoint:
        config["azure_storage_endpoint"] = endpoint
    signs = any(name.lower() in config for name in key)
    return Access("az", bucket, endpoint, identity, config, account=account, signs=signs)


def _chosen(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """obstore's keys are the variables' names."""
    return {name.lower(): given[name] for name in names if name in given}


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
