"""Why a page cannot be shown, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kubeloop.errors import Forbidden, KubeError, Refused, Unreachable
from llmservice_cli.cluster import cli_error
from llmservice_cli.errors import CliError

from .viewer import Viewer


@dataclass(frozen=True, slots=True)
class Problem:
    """A page of its own."""

    code: int
    title: str
    message: str
    remedy: str
    command: str = ""
    """For an administrator."""
    asks_namespace: bool = False
    """Whether naming a namespace may help."""


def problem_of(error: KubeError | CliError, viewer: Viewer, path: Mapping[str, Any]) -> Problem:
    """`path` has the namespace, where the page is of one."""
    if isinstance(error, Forbidden) and not isinstance(error, Refused):
        return _missing_right(error, viewer, str(path.get("namespace", "")))
    found = error if isinstance(error, CliError) else cli_error(error)
    if isinstance(error, Unreachable):
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "The API server gives no answer", found.message, found.remedy)
    if isinstance(error, CliError):
        return Problem(HTTPStatus.NOT_FOUND, "There is nothing under this address", found.message, found.remedy)
    return Problem(HTTPStatus.BAD_GATEWAY, "The API server refuses to answer", found.message, found.remedy)


def _missing_right(error: Forbidden, viewer: Viewer, namespace: str) -> Problem:
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    binding = (
        ["kubectl", "create", "rolebinding", "llmservices-view", "-n", namespace]
        if namespace
        else ["kubectl", "create", "clusterrolebinding", "llmservices-view"]
    )
    return Problem(
        HTTPStatus.FORBIDDEN,
        "A right is missing",
        f"{viewer.name} needs {error.right} {where}: {error.message}",
        "Ask an administrator for the role view there, which has it" + ("." if namespace else ", or name a namespace."),
        shlex.join([*binding, "--clusterrole=view", viewer.as_subject]),
        asks_namespace=not namespace,
    )
