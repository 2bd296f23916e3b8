"""Texts of others as a page may show them: escaped by jinja2, bounded, without control characters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from shlex import quote
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from kubeloop.errors import Forbidden, KubeError, Unreachable, lacks_right
from llmservice_cli.cluster import cli_error
from llmservice_cli.errors import CliError
from llmservice_cli.status.document import shown as figure
from llmservice_cli.text import age
from llmservice_runtime.bounded_json import clean
from markupsafe import Markup, escape

from .sessions import Viewer

# Why a page cannot be shown, and what to do about it.


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
    if lacks_right(error):
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


LONGEST = 4096
"""Characters of one text on a page."""
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that turn the order of what follows: a name could look like another one."""


def shown(value: Any) -> Any:
    """What stands for a value in a page. Templates give it every expression, so none is forgotten."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    text = str(value)
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."
    return _DIRECTION.sub("\ufffd", clean(text))


def whole(text: Any) -> Markup:
    """The text at its length, for a field whose content is sent again."""
    return escape(clean(str(text)))


def words(name: str) -> str:
    """DoesNotFit -> does not fit."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def css(word: str) -> str:
    """A word as the name of a class; `other` for one that may be anybody's."""
    found = word.replace(" ", "-")
    return found if re.fullmatch(r"[A-Za-z-]{1,32}", found, re.ASCII) else "other"


def environment() -> Environment:
    """Templates that escape everything, and fail for a name that they are not given."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["age"] = lambda stamp: age(str(stamp), datetime.now(UTC))
    made.filters["figure"] = figure
    made.filters["quote"] = lambda text: quote(str(text))
    made.filters["whole"] = whole
    made.filters["words"] = words
    made.filters["css"] = css
    return made
