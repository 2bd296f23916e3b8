"""Which environment variables are credentials for fetching, and which of them vLLM gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from llmservice_runtime.contract import HF_TOKEN_ENV

_NAMES = frozenset({HF_TOKEN_ENV, "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "GOOGLE_APPLICATION_CREDENTIALS"})
# Keys, sessions and the variables that platforms add to pods of a service account with a cloud role.
_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_")
_HUB = ("HF_", "HUGGING_FACE_")


def is_credential(name: str) -> bool:
    """Whether a variable is a credential of a hub or cloud, or has a prefix of such variables."""
    return name in _NAMES or name.startswith(_PREFIXES)


def without(environment: Mapping[str, str], keep: Collection[str], *, hub: bool) -> dict[str, str]:
    """The variables without credentials, except those in `keep`; with `hub` also except the hub's."""
    return {
        name: value
        for name, value in environment.items()
        if name in keep or not is_credential(name) or (hub and name.startswith(_HUB))
    }
