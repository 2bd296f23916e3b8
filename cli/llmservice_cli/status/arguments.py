"""The options of `llmservice status`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Argument

from llmservice_cli.names import service_names
from llmservice_cli.options import OUTPUT, WideScope

DESCRIPTION = "How a service is, on one screen. What cannot be read is shown with the reason."
EPILOG = """\
examples:
  llmservice status                        every service of the namespace, a line each
  llmservice status chat -n team-a         one service: conditions, failure, start, pods, live figures of vLLM
  llmservice status chat -o json | jq '.services[0].pods[].live'

rights: get and list on llmservices and pods, get on pods/proxy for the live figures; for the held requests of a service
that may have no replica, list on pods and get on pods/proxy in the operator's namespace
"""


@dataclass(frozen=True, kw_only=True)
class Options(WideScope):
    """What was typed."""

    name: Annotated[
        str | None,
        Argument(metavar="NAME", help="the LLMService; none: a line for each", autocompletion=service_names),
    ] = None
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
