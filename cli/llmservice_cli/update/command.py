"""`llmservice update`: asks for what waits for a service's next rollout."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llmservice_operator.api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_operator.kube.resources import LLMSERVICE

from llmservice_cli.api import Json
from llmservice_cli.cluster import connect
from llmservice_cli.errors import ExitCode, WrongUsage
from llmservice_cli.services import rollout_of, service, services
from llmservice_cli.text import stamp

from .arguments import Options


async def run(options: Options) -> ExitCode:
    if bool(options.names) == options.all or (options.all_namespaces and not options.all):
        raise WrongUsage("which services to update is not clear", "give NAMEs or --all (with -A: of all namespaces)")
    async with connect(options) as connection:
        if options.all:
            found = await services(connection.kube, None if options.all_namespaces else connection.namespace)
            chosen: Sequence[Json] = [each for each in found if rollout_of(each).get("updatePending")]
        else:
            chosen = [await service(connection.kube, connection.namespace, name) for name in options.names or ()]
        if not chosen:
            print("nothing waits for a rollout")
        change = {"metadata": {"annotations": {UPDATE_REQUESTED_ANNOTATION: stamp(time.time(), "seconds")}}}
        for each in chosen:
            metadata = each["metadata"]
            if options.dry_run:
                print(f"{metadata['namespace']}/{metadata['name']}: an update would be requested; nothing is changed")
                continue
            await connection.kube.merge(LLMSERVICE, metadata["namespace"], metadata["name"], change)
            waits = "" if rollout_of(each).get("updatePending") else "; nothing was known to wait in it"
            print(f"{metadata['namespace']}/{metadata['name']}: update requested{waits}")
    return ExitCode.DONE
