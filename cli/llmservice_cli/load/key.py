"""The API key of requests: from the environment, or from the Secret of a service's spec. It is never printed."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping

from llmservice_operator.kube.errors import Forbidden, KubeError
from llmservice_operator.kube.resources import Resource
from llmservice_runtime.redact import Redactor

from llmservice_cli.api import Api, Json
from llmservice_cli.errors import CliError
from llmservice_cli.services import endpoint_of

IDENTITY: Mapping[str, str] = {"Accept-Encoding": "identity"}
"""For answers that are read with a bound: nothing is unpacked."""
SECRET = Resource("", "v1", "secrets", "Secret")
LONGEST = 4096
"""Characters of a key."""


def key_in(text: str) -> str:
    """The first line that is not empty: a Secret may hold several keys, one a line. Empty where a header cannot hold
    it."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if line.isascii() and line.isprintable() and len(line) <= LONGEST else ""


def key_of(variable: str | None) -> str:
    """The key in an environment variable, empty where none is named; CliError where there is none in it."""
    if variable is None:
        return ""
    text = os.environ.get(variable, "")
    if key := key_in(text):
        return key
    raise CliError(
        f"the environment variable {variable} has no key that can be sent: a key is at most {LONGEST} characters of "
        "printable ASCII"
        if text.strip()
        else f"the environment variable {variable} is empty or not set",
        f"export {variable}=KEY",
    )


def headers_of(key: str) -> Mapping[str, str]:
    """Of every request; without the key's where there is none."""
    return {**IDENTITY, "Authorization": f"Bearer {key}"} if key else IDENTITY


def hiding(key: str) -> Redactor:
    """Takes the key out of what the server says."""
    redactor = Redactor({})
    redactor.hide(key)
    return redactor


async def from_secret(kube: Api, service: Json) -> tuple[str, str] | None:
    """The key, and in words where it is from; None where the service has none."""
    reference = endpoint_of(service).key
    if not reference:
        return None
    namespace, name, entry = service["metadata"]["namespace"], str(reference["name"]), str(reference["key"])
    place = f"the key {entry!r} of the Secret {name!r} in namespace {namespace}"
    try:
        found = await kube.get(SECRET, namespace, name)
    except Forbidden as error:
        raise CliError(
            f"the service needs an API key, and you may not read {place}",
            "set it in the environment and name the variable: --api-key-env VARIABLE",
        ) from error
    except KubeError as error:
        raise CliError(
            f"{place} cannot be read: {error.message}", "--api-key-env VARIABLE names another place"
        ) from error
    if key := key_in(_decoded(((found or {}).get("data") or {}).get(entry))):
        return key, place
    raise CliError(
        f"{place} does not exist or is empty", "write it, or name a variable with a key: --api-key-env VARIABLE"
    )


def _decoded(value: object) -> str:
    try:
        return base64.b64decode(str(value or ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
