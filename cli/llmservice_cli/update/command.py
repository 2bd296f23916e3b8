"""`llmservice update`: asks for what waits for a service's next rollout."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from llmservice_operator.api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_operator.kube.resources import LLMSERVICE

from llmservice_cli.api import Json
from llmservice_cli.cluster import add_scope, connect
from llmservice_cli.errors import ExitCode, WrongUsage
from llmservice_cli.services import rollout_of, service, services
from llmservice_cli.text import stamp

DESCRIPTION = "Ask for what waits for the next rollout of a service: it restarts its replicas."
EPILOG = """\
examples:
  llmservice update chat                   the replicas of one service are replaced, one after the other
  llmservice update --all                  every service of the namespace in which something waits
  llmservice update --all -A               of all namespaces: the operator takes them in turn

What waits is a new version of the operator, or changed drain settings; `llmservice status` says so (update pending).
It sets the annotation llmservice.dev/update-requested. Rights: get, list and patch on llmservices.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_scope(parser)
    parser.add_argument("names", nargs="*", metavar="NAME", help="LLMServices")
    parser.add_argument("--all", action="store_true", help="every one in which something waits")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="with --all: of all namespaces")


async def run(options: argparse.Namespace) -> ExitCode:
    if bool(options.names) == options.all or (options.all_namespaces and not options.all):
        raise WrongUsage("which services to update is not clear", "give NAMEs or --all (with -A: of all namespaces)")
    async with connect(options) as connection:
        if options.all:
            found = await services(connection.kube, None if options.all_namespaces else connection.namespace)
            chosen: Sequence[Json] = [each for each in found if rollout_of(each).get("updatePending")]
        else:
            chosen = [await service(connection.kube, connection.namespace, name) for name in options.names]
        if not chosen:
            print("nothing waits for a rollout")
        change = {"metadata": {"annotations": {UPDATE_REQUESTED_ANNOTATION: stamp(time.time(), "seconds")}}}
        for each in chosen:
            metadata = each["metadata"]
            await connection.kube.merge(LLMSERVICE, metadata["namespace"], metadata["name"], change)
            waits = "" if rollout_of(each).get("updatePending") else "; nothing was known to wait in it"
            print(f"{metadata['namespace']}/{metadata['name']}: update requested{waits}")
    return ExitCode.DONE
