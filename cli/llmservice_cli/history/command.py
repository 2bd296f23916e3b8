"""`llmservice history`: a line for each recorded revision."""

from __future__ import annotations

from datetime import UTC, datetime

from llmservice_cli.api import Json
from llmservice_cli.cluster import connect
from llmservice_cli.documents import show
from llmservice_cli.errors import ExitCode
from llmservice_cli.history import Options
from llmservice_cli.revisions import Revision, recorded, roles_of
from llmservice_cli.services import service
from llmservice_cli.text import age, table


async def run(options: Options) -> ExitCode:
    async with connect(options) as connection:
        found = await service(connection.kube, connection.namespace, options.name)
        revisions = await recorded(connection.kube, connection.namespace, options.name)
    show(options.output, lambda: lines(revisions, found, datetime.now(UTC)), lambda: document(revisions, found))
    return ExitCode.DONE


def document(revisions: tuple[Revision, ...], found: Json) -> Json:
    """Names are only ever added."""
    return {
        "version": 1,
        "revisions": [
            {
                "revision": each.label,
                "number": each.number,
                "created": each.created,
                "standing": roles_of(each.label, found),
                "image": each.server.image,
                "args": list(each.server.args),
            }
            for each in revisions
        ],
    }


def lines(revisions: tuple[Revision, ...], found: Json, now: datetime) -> list[str]:
    """A table; the oldest has nothing to be compared with."""
    if not revisions:
        return [f"no revision of {found['metadata']['name']} is recorded yet"]
    befores = [*revisions[1:], None]
    rows = [
        [
            str(each.number),
            each.label,
            age(each.created, now),
            roles_of(each.label, found) or "-",
            "the oldest that is recorded" if before is None else each.changes_from(before),
        ]
        for each, before in zip(revisions, befores, strict=True)
    ]
    return table(["NUMBER", "REVISION", "AGE", "STANDING", "CHANGE"], rows, right=frozenset({0}))
