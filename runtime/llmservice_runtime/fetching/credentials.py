"""Which variables of the container are there to fetch with, and which of them vLLM gets to see."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from llmservice_runtime.contract import HF_TOKEN_ENV

_NAMES = frozenset({HF_TOKEN_ENV, "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "GOOGLE_APPLICATION_CREDENTIALS"})
# Keys and sessions, and where a role's are had: a platform adds those to pods of a service account.
_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_")
_HUB = ("HF_", "HUGGING_FACE_")


def is_credential(name: str) -> bool:
    """Whether a variable proves who somebody is to a hub or a cloud, or is of a family that does."""
    return name in _NAMES or name.startswith(_PREFIXES)


def without(environment: Mapping[str, str], keep: Collection[str], *, hub: bool) -> dict[str, str]:
    """The variables without credentials, but for those to keep; with `hub` the hub's stay as well."""
    return {
        name: value
        for name, value in environment.items()
        if name in keep or not is_credential(name) or (hub and name.startswith(_HUB))
    }
