"""The options of `llmservice rollback`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmservice_cli.names import Name
from llmservice_cli.options import DRY_RUN, OUTPUT, Scope, Wait
from llmservice_cli.parameters import Option

DESCRIPTION = "Have a service run a recorded revision, whatever the rest of its spec says."
EPILOG = """\
examples:
  llmservice rollback chat                       to the revision before: the last one that was fully rolled out
  llmservice rollback chat --to 9c0572bd91       to a recorded revision (llmservice history chat)
  llmservice rollback chat --undo                what the spec says runs again
  llmservice rollback chat --wait                until every replica runs it, or cannot

It sets spec.rollout.pinnedRevision, and nothing else: the rest of the spec waits until the pin is gone. Where the
manifest comes from Git, pin there as well: a tool that applies a manifest with another pin, or replaces whole objects,
takes this one back.
Rights: get and patch on llmservices, list on controllerrevisions.
"""


@dataclass(frozen=True, kw_only=True)
class Options(Scope, Wait):
    """What was typed."""

    name: Name
    to: Annotated[
        str | None, Option("--to", metavar="REVISION", help="revision or its number; default: the one before")
    ] = None
    undo: Annotated[bool, Option("--undo", help="remove the pin")] = False
    dry_run: Annotated[bool, DRY_RUN] = False
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
