"""The options of `llmservice history`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmservice_cli.names import Name
from llmservice_cli.options import OUTPUT, Scope

DESCRIPTION = "The revisions of a service to which `llmservice rollback` can return, the latest first."
EPILOG = """\
examples:
  llmservice history chat                  which revisions are recorded, and what changed with each
  llmservice history chat -o json | jq '.revisions[].revision'

rights: get on llmservices, list on controllerrevisions (`view` has both)
"""


@dataclass(frozen=True, kw_only=True)
class Options(Scope):
    """What was typed."""

    name: Name
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
