"""The options of `llmservice update`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmservice_cli.names import service_names
from llmservice_cli.options import DRY_RUN, OUTPUT, Wait, WideScope
from llmservice_cli.parameters import Argument, Option

DESCRIPTION = "Ask for what waits for the next rollout of a service: it restarts its replicas."
EPILOG = """\
examples:
  llmservice update chat                   the replicas of one service are replaced, one after the other
  llmservice update --all                  every service of the namespace in which something waits
  llmservice update --all -A               of all namespaces: the operator takes them in turn

What waits is a new version of the operator, or changed drain settings; `llmservice status` says so (update pending).
It sets the annotation llmservice.dev/update-requested. Rights: get, list and patch on llmservices.
"""


@dataclass(frozen=True, kw_only=True)
class Options(WideScope, Wait):
    """What was typed."""

    names: Annotated[list[str] | None, Argument(metavar="NAME", help="LLMServices", complete=service_names)] = None
    all: Annotated[bool, Option("--all", help="every one in which something waits")] = False
    dry_run: Annotated[bool, DRY_RUN] = False
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
