"""The options of `llmservice chat`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from llmservice_cli.load.options import SERVER, Server
from llmservice_cli.options import OUTPUT, Quiet, Wait
from llmservice_cli.parameters import Option
from llmservice_cli.text import count

DESCRIPTION = """\
Chat with a served model. Answers are printed as they come, with tokens/s and time to first token on standard error.

Requests go through a port-forward to a ready pod. While a service that holds requests has none, they go to an
activator, which starts a replica. In a pod of the cluster they go to the Service.
"""
EPILOG = """\
examples:
  llmservice chat qwen                                  a chat, until Ctrl-D or /exit; /help lists more
  llmservice chat qwen -m "What is a port-forward?"     one answer
  git diff | llmservice chat qwen --system "Review it." one answer to the text on standard input
  llmservice chat qwen -m hello -o json | jq .timings   for programs
  llmservice chat --url http://127.0.0.1:8000           a server without a cluster

rights: get on llmservices, list on pods, get and create on pods/portforward; while no replica serves the last two in
the operator's namespace, too, and watch on llmservices; with an API key get on its Secret, or --api-key-env

exit codes:
  0    every answer came; or the chat was ended with Ctrl-D or /exit
  1    no answer, or a part of one; the message says what to do
  2    wrong arguments
  130  interrupted: Ctrl-C during an answer of a chat stops that answer, the next one ends the chat
"""
ASKED = "what to ask"


@dataclass(frozen=True, kw_only=True)
class Options(Server, Quiet, Wait):
    """What was typed."""

    message: Annotated[str | None, Option("--message", "-m", metavar="TEXT", help="ask this, and end", group=ASKED)] = (
        None
    )
    system: Annotated[str | None, Option("--system", metavar="TEXT", help="the system message", group=ASKED)] = None
    max_tokens: Annotated[
        Any,
        Option(
            "--max-tokens",
            parser=count,
            metavar="N",
            help="of an answer; default: what the context leaves",
            group=ASKED,
        ),
    ] = None
    temperature: Annotated[
        float | None,
        Option("--temperature", metavar="T", help="0 to 2; default: the model's", group=ASKED),
    ] = None
    model: Annotated[
        str | None,
        Option("--model", metavar="MODEL", help="such as an adapter; default: the service's", group=SERVER),
    ] = None
    wait: Annotated[
        bool, Option("--wait", help="until a replica is available, where none is and requests are not held")
    ] = False
    output: Annotated[Literal["text", "json", "yaml"], OUTPUT] = "text"
