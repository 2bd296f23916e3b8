"""The API key of a service, from the Secret that its spec names. It is never printed."""

from __future__ import annotations

import base64
import binascii

from llmservice_operator.kube.errors import Forbidden, KubeError
from llmservice_operator.kube.resources import Resource

from llmservice_cli.api import Api, Json
from llmservice_cli.errors import CliError
from llmservice_cli.load.key import key_in
from llmservice_cli.services import endpoint_of

SECRET = Resource("", "v1", "secrets", "Secret")


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
