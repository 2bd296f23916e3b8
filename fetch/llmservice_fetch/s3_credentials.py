"""Whose name an S3 request carries: keys, a web identity, a pod's or a machine's role, or nobody's."""

from __future__ import annotations

import datetime as dt
import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from llmservice_fetch import failed
from llmservice_fetch.http import Refused, Unreachable, ask
from llmservice_fetch.s3_sign import Credentials

# Temporary ones are replaced this long before they end.
_EARLY_SECONDS = 300
_LIMIT = 1 << 20
_MACHINE = "http://169.254.169.254/latest"
_CONTAINER = "http://169.254.170.2"
REMEDY = "Check the keys in the Secret that spec.model.s3.credentialsSecretRef names, or the service account's role."


class Chain:
    """Finds credentials as AWS' own programs do, in their order, and again when they end."""

    def __init__(self, environment: Mapping[str, str], region: str, hide: Callable[[str], None]) -> None:
        self._environment, self._region, self._hide = environment, region, hide
        self._held: Credentials | None = None
        self._looked = False

    def current(self) -> Credentials | None:
        """None: the request goes unsigned. Raises FetchFailed where a role is named and nobody gives its keys."""
        ends = self._held.expires if self._held else None
        if not self._looked or (ends is not None and ends - time.time() < _EARLY_SECONDS):
            self._held = self._find()
            self._looked = True
            if self._held:
                for secret in (self._held.access_key, self._held.secret_key, self._held.session_token):
                    self._hide(secret)
        return self._held

    def _find(self) -> Credentials | None:
        given = self._environment
        if given.get("AWS_ACCESS_KEY_ID") and given.get("AWS_SECRET_ACCESS_KEY"):
            return Credentials(
                given["AWS_ACCESS_KEY_ID"].strip(),
                given["AWS_SECRET_ACCESS_KEY"].strip(),
                given.get("AWS_SESSION_TOKEN", "").strip(),
            )
        try:
            if given.get("AWS_ROLE_ARN") and given.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
                return self._web_identity(given["AWS_ROLE_ARN"], Path(given["AWS_WEB_IDENTITY_TOKEN_FILE"]))
            if address := self._container_address():
                return self._container(address)
        except (Unreachable, Refused, OSError, ValueError, KeyError, ET.ParseError) as error:
            raise failed.token_refused(f"The role of this pod gives no credentials: {error}", REMEDY) from None
        return self._machine()

    def _web_identity(self, role: str, file: Path) -> Credentials:
        question = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": role,
            "RoleSessionName": self._environment.get("AWS_ROLE_SESSION_NAME") or "llmservice",
            "WebIdentityToken": file.read_text(encoding="utf-8").strip(),
        }
        address = self._environment.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{self._region}.amazonaws.com"
        found = {
            element.tag.rpartition("}")[2]: (element.text or "").strip()
            for element in ET.fromstring(_text(f"{address}/?{urlencode(question)}", {})).iter()
        }
        return _temporary(found, "SessionToken")

    def _container_address(self) -> str | None:
        full = self._environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        relative = self._environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        return full or (f"{_CONTAINER}{relative}" if relative else None)

    def _container(self, address: str) -> Credentials:
        token = self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        if file := self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            token = Path(file).read_text(encoding="utf-8").strip()
        return _temporary(json.loads(_text(address, {"Authorization": token} if token else {})), "Token")

    def _machine(self) -> Credentials | None:
        """The role of the EC2 instance; None where there is none, or where this is no such machine."""
        disabled = self._environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
        if disabled or endpoint_of(self._environment):
            return None
        try:
            seconds = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
            token = {"X-aws-ec2-metadata-token": _text(f"{_MACHINE}/api/token", seconds, method="PUT", timeout=1)}
            place = f"{_MACHINE}/meta-data/iam/security-credentials/"
            role = _text(place, token, timeout=1).split()[0]
            return _temporary(json.loads(_text(place + role, token, timeout=1)), "Token")
        except (Unreachable, Refused, ValueError, KeyError, IndexError):
            return None


def endpoint_of(environment: Mapping[str, str]) -> str:
    """The S3 server that the user names; empty for AWS' own."""
    return (environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or "").rstrip("/")


def _temporary(found: Mapping[str, Any], token: str) -> Credentials:
    ends = dt.datetime.fromisoformat(str(found["Expiration"]).replace("Z", "+00:00"))
    secret = found.get("SecretAccessKey") or found["SecretKey"]
    return Credentials(str(found["AccessKeyId"]), str(secret), str(found[token]), ends.timestamp())


def _text(url: str, headers: Mapping[str, str], *, method: str = "GET", timeout: float | None = None) -> str:
    with ask(url, headers, method=method, timeout=timeout) as answer:
        body = answer.read(_LIMIT).decode(errors="replace")
        if answer.status != 200:
            raise Refused(answer.status, url)
        return body
