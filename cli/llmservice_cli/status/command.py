"""`llmservice status`: arguments, and the few reads it is made of."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime

from llmservice_runtime.bounded_json import clean

from llmservice_cli.cluster import add_scope, connect
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.services import services

from .document import document
from .screen import overview, screen
from .snapshot import snapshot

DESCRIPTION = "How a service is, on one screen. What cannot be read is shown with the reason."
EPILOG = """\
examples:
  llmservice status                        every service of the namespace, a line each
  llmservice status chat -n team-a         one service: conditions, failure, start, pods, live figures of vLLM
  llmservice status chat -o json | jq '.services[0].pods[].live'

rights: get and list on llmservices and pods, get on pods/proxy for the live figures; for the held requests of a service
that may have no replica, list on pods and get on pods/proxy in the operator's namespace
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_scope(parser)
    parser.add_argument("name", nargs="?", help="the LLMService (default: a line for each)")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="list those of all namespaces")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")


async def run(options: argparse.Namespace) -> ExitCode:
    """Print it. A service that is not Ready is an answer, not a failure."""
    if options.name and options.all_namespaces:
        raise CliError("a name goes with one namespace, not with all", "leave out either NAME or --all-namespaces")
    async with connect(options) as connection:
        now = datetime.now(UTC)
        if options.name:
            seen = await snapshot(connection.kube, connection.namespace, options.name)
            text, found = screen(seen, now), document([], [seen], now)
        else:
            namespace = None if options.all_namespaces else connection.namespace
            listed = await services(connection.kube, namespace)
            nothing = [f"no LLMService in {f'namespace {namespace}' if namespace else 'any namespace'}"]
            text = overview(listed, with_namespace=options.all_namespaces) if listed else nothing
            found = document(listed, [], now)
    print(json.dumps(found, indent=2) if options.output == "json" else "\n".join(map(clean, text)))
    return ExitCode.DONE
