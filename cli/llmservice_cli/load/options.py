"""The options of the commands that send requests to a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from llmservice_cli.names import service_names
from llmservice_cli.options import Scope

SERVER, LOAD = "server", "load"
EXIT_CODES = """\
exit codes:
  0    every request was answered
  1    no result; the message says what to do
  2    wrong arguments
  3    some requests were not answered
  130  interrupted; the result is of what was measured until then
"""


@dataclass(frozen=True, kw_only=True)
class Server(Scope):
    """NAME in a cluster, or --url and what goes with it."""

    name: Annotated[str | None, Argument(metavar="NAME", help="the LLMService", autocompletion=service_names)] = None
    url: Annotated[
        str | None,
        Option(
            "--url",
            metavar="URL",
            help="a server of the OpenAI API, reached from here, instead of NAME",
            rich_help_panel=SERVER,
        ),
    ] = None
    model: Annotated[
        str | None,
        Option(
            "--model",
            metavar="MODEL",
            help="to ask for; default: the service's, the first that the server lists",
            rich_help_panel=SERVER,
        ),
    ] = None
    api_key_env: Annotated[
        str | None,
        Option(
            "--api-key-env",
            metavar="VARIABLE",
            help="environment variable with the API key (with --url)",
            rich_help_panel=SERVER,
        ),
    ] = None
