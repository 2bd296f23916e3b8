"""The options of `llmservice status`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmservice_cli.names import service_names
from llmservice_cli.options import OUTPUT, WideScope
from llmservice_cli.parameters import Argument, Option

DESCRIPTION = "How a service is, on one screen. What cannot be read is shown with the reason."
EPILOG = """\
examples:
  llmservice status                        every service of the namespace, a line each
  llmservice status chat -n team-a         one service: conditions, failure, pods by phase, plan and measured, Events
  llmservice status chat -w                the same, again whenever something changes; Ctrl-C ends it
  llmservice status chat -o json | jq '.services[0].pods[].live'

With --watch and without a terminal there is a line for each change, with -o json a line of JSON.

exit codes:
  0  shown, however the service is; --watch was ended by Ctrl-C
  1  there is no such service, or it cannot be read
  2  wrong arguments

rights: get and list on llmservices and pods, list on events, get on pods/proxy for the live figures; with --watch also
watch on llmservices; for the held requests of a service that may have no replica, list on pods and get on pods/proxy in
the operator's namespace
"""


@dataclass(frozen=True, kw_only=True)
class Options(WideScope):
    """What was typed."""

    names: Annotated[
        list[str] | None,
        Argument(metavar="NAME", help="LLMServices; none: a line for each", complete=service_names),
    ] = None
    watch: Annotated[bool, Option("--watch", "-w", help="again whenever something changes")] = False
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
