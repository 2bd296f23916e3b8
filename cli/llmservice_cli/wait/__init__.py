"""The options of `llmservice wait`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from llmservice_cli.names import Name
from llmservice_cli.options import OUTPUT, Quiet, Scope
from llmservice_cli.parameters import Option
from llmservice_cli.text import seconds_or_none

DESCRIPTION = "Wait for a condition of a service, and end at once where it cannot become True."
EPILOG = """\
examples:
  llmservice wait chat                              until it is Ready, for 30 minutes at most
  llmservice wait chat --for Available -n team-a    until one replica answers
  llmservice wait chat --timeout 0                  what is known now
  llmservice wait chat -o json | jq -r .outcome     met, impossible or open

exit codes:
  0    the condition is True for the current generation
  1    it cannot become True: Stalled (the message says why, and what to do), paused, scaled to zero, or deleted
  2    wrong arguments, or the cluster could not be asked: kubeconfig, address, rights
  3    neither within --timeout
  130  interrupted

A service that does not exist yet is waited for. Progress goes to standard error.
rights: list and watch on llmservices
"""


@dataclass(frozen=True, kw_only=True)
class Options(Scope, Quiet):
    """What was typed."""

    name: Name
    condition: Annotated[Literal["Ready", "Available", "Accepted"], Option("--for", help="the condition")] = "Ready"
    timeout: Annotated[
        Any, Option("--timeout", parser=seconds_or_none, metavar="TIME", help="such as 90s, 5m, 2h; 0: look once")
    ] = "30m"
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
