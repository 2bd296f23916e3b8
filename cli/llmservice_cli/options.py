"""Options that several commands have, as frozen dataclasses: the Options of a command inherit those that it needs.

A field is an option or an argument (parameters.py). Nothing here imports an API client:
`--help` and completion read only this and a command's __init__.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from .parameters import Option
from .text import seconds

CLUSTER = "cluster"
ANSWER, INPUTS = "the answer", "what to decide about"
OUTPUT = Option("--output", "-o", help="form of the answer", group=ANSWER)


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Which cluster, by the rules of kubectl, and which namespace."""

    namespace: Annotated[
        str | None, Option("--namespace", "-n", metavar="NAME", help="default: the context's", group=CLUSTER)
    ] = None
    context: Annotated[
        str | None,
        Option(
            "--context",
            metavar="NAME",
            help="of the kubeconfig; default: the current one",
            group=CLUSTER,
        ),
    ] = None
    kubeconfig: Annotated[
        str | None,
        Option(
            "--kubeconfig",
            metavar="FILE",
            help="default: $KUBECONFIG, in a pod its service account, else ~/.kube/config",
            group=CLUSTER,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class WideScope(Scope):
    """One namespace, or all."""

    all_namespaces: Annotated[bool, Option("--all-namespaces", "-A", help="of all namespaces", group=CLUSTER)] = False


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """For commands that report their progress."""

    quiet: Annotated[bool, Option("--quiet", "-q", help="no progress on standard error", group=ANSWER)] = False


@dataclass(frozen=True, kw_only=True)
class Given:
    """For commands of which some options go with others only."""

    given: frozenset[str] = frozenset()
    """Fields whose value was typed; filled in by `app.command`, and no option."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """For commands after which something is rolled out."""

    wait: Annotated[bool, Option("--wait", help="until it is rolled out, or cannot be: exit codes of wait")] = False
    timeout: Annotated[
        Any, Option("--timeout", parser=seconds, metavar="TIME", help="of --wait, such as 90s, 5m, 2h")
    ] = "30m"


DRY_RUN = Option("--dry-run", help="say what would be changed, and change nothing")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """For commands that decide about the LLMServices of a file."""

    file: Annotated[
        str,
        Option("--file", "-f", metavar="FILE", help="manifests, a folder of them, or - for stdin", group=INPUTS),
    ]
    config: Annotated[
        str | None,
        Option(
            "--config",
            metavar="PATH",
            help="the model's config.json, or a folder with it: what the operator's inspection would find",
            group=INPUTS,
        ),
    ] = None
    settings: Annotated[
        str | None,
        Option(
            "--settings",
            metavar="FILE",
            help="the operator's settings file, or the values of its chart; default: the operator's own where a"
            " cluster is asked and you may read its ConfigMap, else the chart's defaults",
            group=INPUTS,
        ),
    ] = None


LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""RFC 1123."""
_FORM = re.compile(LABEL)
_LONGEST = 63


def is_namespace(name: Any) -> bool:
    """Whether a namespace can have this name. Another one would be another path of the API server."""
    return isinstance(name, str) and len(name) <= _LONGEST and _FORM.fullmatch(name) is not None
