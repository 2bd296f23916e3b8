"""`llmservice update`: asks for what waits for a service's next rollout."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from llmservice_api.constants import LLMSERVICE, UPDATE_REQUESTED_ANNOTATION

from llmservice_cli.api import Json
from llmservice_cli.cluster import Connection, connect
from llmservice_cli.documents import show
from llmservice_cli.errors import ExitCode, WrongUsage
from llmservice_cli.services import rollout_of, service, services
from llmservice_cli.text import stamp
from llmservice_cli.update import Options
from llmservice_cli.wait.command import Wish, tell, until_known


async def run(options: Options) -> ExitCode:
    if bool(options.names) == options.all or (options.all_namespaces and not options.all):
        raise WrongUsage("which services to update is not clear", "give NAMEs or --all (with -A: of all namespaces)")
    async with connect(options) as connection:
        if options.all:
            found = await services(connection.kube, None if options.all_namespaces else connection.namespace)
            chosen: Sequence[Json] = [each for each in found if rollout_of(each).get("updatePending")]
        else:
            chosen = [await service(connection.kube, connection.namespace, name) for name in options.names or ()]
        rows = [await _requested(connection, each, is_dry_run=options.dry_run) for each in chosen]
        show(options.output, lambda: lines(rows), lambda: {"version": 1, "services": rows})
        if not options.wait or options.dry_run:
            return ExitCode.DONE
        wishes = [
            Wish(row["namespace"], row["name"], timeout=options.timeout, applied_update=row["wasPending"])
            for row in rows
        ]
        is_beside = options.output != "table"
        codes = [tell(wish, await until_known(connection, wish), is_beside=is_beside) for wish in wishes]
        return max(codes, default=ExitCode.DONE)


async def _requested(connection: Connection, found: Json, *, is_dry_run: bool) -> Json:
    """What was done for one service."""
    namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
    if not is_dry_run:
        change = {"metadata": {"annotations": {UPDATE_REQUESTED_ANNOTATION: stamp(time.time(), "seconds")}}}
        await connection.kube.merge(LLMSERVICE, namespace, name, change)
    was_pending = bool(rollout_of(found).get("updatePending"))
    return {"name": name, "namespace": namespace, "requested": not is_dry_run, "wasPending": was_pending}


def lines(rows: Sequence[Json]) -> Iterator[str]:
    """One for each service."""
    if not rows:
        yield "nothing waits for a rollout"
    for row in rows:
        did = "update requested" if row["requested"] else "an update would be requested; nothing is changed"
        waits = "" if row["wasPending"] else "; nothing was known to wait in it"
        yield f"{row['namespace']}/{row['name']}: {did}{waits}"
