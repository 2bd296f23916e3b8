"""The options of `llmservice logs`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from llmservice_cli.names import Name
from llmservice_cli.options import Scope
from llmservice_cli.parameters import Option
from llmservice_cli.text import count_or_none, seconds

DESCRIPTION = "The log of all pods of a service, in the order of time. Each line has its pod and who wrote it."
EPILOG = """\
examples:
  llmservice logs chat                            the last 100 lines of each pod
  llmservice logs chat -f --source supervisor     what the supervisor reports from now on, of new pods too
  llmservice logs chat --previous --level error   why the server ended before its last restart
  llmservice logs chat -c fetch --since 10m       of the container that fetches the model
  llmservice logs wide --rank 1 --level error     of the second pod of each replica over several nodes
  llmservice logs chat -o json | jq -r 'select(.level == "WARNING").text'

A line has a level where its writer gave one; --level keeps lines without, such as tracebacks. --tail counts before
--source and --level. Without --container: the server, the container that fetches, and any that failed.

exit codes:
  0  lines were printed, or -f was ended by Ctrl-C
  1  there is none: the message has the reason and what to do
  2  wrong arguments

rights: get on llmservices, list on pods, get on pods/log; with -f also watch on pods
"""


@dataclass(frozen=True, kw_only=True)
class Options(Scope):
    """What was typed."""

    name: Name
    source: Annotated[
        Literal["all", "supervisor", "vllm"], Option("--source", help="whose lines of the server's container")
    ] = "all"
    level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, Option("--level", help="only this level and above")
    ] = None
    pod: Annotated[str | None, Option("--pod", metavar="NAME", help="only this pod, by its name or the end of it")] = (
        None
    )
    rank: Annotated[
        Any,
        Option(
            "--rank",
            parser=count_or_none,
            metavar="N",
            help="only pods of this rank, of replicas over several nodes; 0: the leaders",
        ),
    ] = None
    container: Annotated[
        str | None, Option("--container", "-c", metavar="NAME", help="only this container: server, fetch, runtime, ...")
    ] = None
    follow: Annotated[bool, Option("--follow", "-f", help="go on, across restarts and pods that come and go")] = False
    previous: Annotated[bool, Option("--previous", "-p", help="of the run before the last restart")] = False
    since: Annotated[
        Any, Option("--since", parser=seconds, metavar="TIME", help="not older than this, such as 90s, 10m, 2h")
    ] = None
    tail: Annotated[
        Any,
        Option(
            "--tail",
            parser=count_or_none,
            metavar="LINES",
            help="the last lines of each container; default: 100, with --since all",
        ),
    ] = None
    timestamps: Annotated[bool, Option("--timestamps", help="each line begins with its time")] = False
    output: Annotated[
        Literal["table", "json"], Option("--output", "-o", help="lines of text, or a line of JSON for each")
    ] = "table"
