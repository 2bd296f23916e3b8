"""Why something could not be read: one line of bounded length, whatever others wrote into it."""

from __future__ import annotations

from kubeloop.errors import Forbidden, KubeError, Refused
from llmservice_runtime.bounded_json import clean

LONGEST = 300


def line_of(text: str) -> str:
    """Cleaned, and cut to LONGEST characters."""
    return " ".join(clean(text).split())[:LONGEST]


def why(error: KubeError, namespace: str | None) -> str:
    """The right that is missing, where it is one, and what the API server says. None: of all namespaces."""
    if isinstance(error, Forbidden) and not isinstance(error, Refused):
        where = "all namespaces" if namespace is None else f"namespace {namespace}"
        return line_of(f"needs {error.right} in {where}: {error.message}")
    return line_of(error.message)
