"""The options of `llmservice report`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from click import BadParameter

from llmservice_cli.names import service_names
from llmservice_cli.options import OUTPUT, Scope
from llmservice_cli.parameters import Argument, Option
from llmservice_cli.text import count

DESCRIPTION = """\
Write one file for a bug report. With NAME: the LLMService, its children, their Events, the logs and metrics of its
pods, their claims of devices with templates of your own, and the operator's log lines about it. Without: the operator's
own Deployment, pods, logs, settings, Lease and CRD. Both have the findings of doctor, versions, and the nodes' facts
that matter.

Secrets are not read, and what looks like one in objects and logs is replaced by ***. Look through the bundle before you
hand it out: logs hold what your programs write, such as names, addresses and, where a server logs them, prompts.
"""
EPILOG = """\
examples:
  llmservice report chat -n team-a               writes chat-report-TIMESTAMP.tar.gz
  llmservice report chat --dry-run               lists what would be in it
  llmservice report chat -o json | jq -r .file
  llmservice report --out operator.tar.gz        of the operator itself
  tar -xzOf chat-report-*.tar.gz --wildcards '*/README.md'

What you have no right to read is left out, and named in the output and in the bundle's README.md. Rights: get and list
on llmservices and their children, pods, pods/log and events (`view` has them), get on pods/proxy (`edit` has it), where
devices are claimed list on resourceclaims and resourceclaimtemplates; for the operator's part list on deployments and
pods and get on pods/log in its namespace, and list on nodes

exit codes:
  0    written, also where something could not be read
  1    there is no such LLMService, the cluster did not answer, or the file could not be written
  2    wrong arguments, such as a file that exists already
"""


MOST_LINES = 100_000


def lines(text: str) -> int:
    """How many lines of a log."""
    value = count(text)
    if value > MOST_LINES:
        raise BadParameter(f"must be at most {MOST_LINES:,}, not {text!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class Options(Scope):
    """What was typed."""

    name: Annotated[
        str | None,
        Argument(metavar="NAME", help="the LLMService; none: the operator itself", complete=service_names),
    ] = None
    out: Annotated[
        Path | None, Option("--out", metavar="FILE", help="default: NAME-report-TIMESTAMP.tar.gz; never overwritten")
    ] = None
    lines: Annotated[
        Any, Option("--lines", parser=lines, metavar="N", help=f"last lines of each log, at most {MOST_LINES:,}")
    ] = "5000"
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
    dry_run: Annotated[bool, Option("--dry-run", help="list what would be collected, and write nothing")] = False
