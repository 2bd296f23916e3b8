"""`llmservice history`: a line for each recorded revision."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime

from llmservice_cli.api import Json
from llmservice_cli.cluster import add_scope, connect
from llmservice_cli.errors import ExitCode
from llmservice_cli.revisions import Revision, recorded, roles_of
from llmservice_cli.services import service
from llmservice_cli.text import age, table

DESCRIPTION = "The revisions of a service to which `llmservice rollback` can return, the latest first."
EPILOG = """\
examples:
  llmservice history chat                  which revisions are recorded, and what changed with each
  llmservice history chat -o json | jq '.revisions[].revision'

rights: get on llmservices, list on controllerrevisions (`view` has both)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_scope(parser)
    parser.add_argument("name", help="the LLMService")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")


async def run(options: argparse.Namespace) -> ExitCode:
    async with connect(options) as connection:
        found = await service(connection.kube, connection.namespace, options.name)
        revisions = await recorded(connection.kube, connection.namespace, options.name)
    if options.output == "json":
        print(json.dumps(document(revisions, found), indent=2))
    else:
        print("\n".join(lines(revisions, found, datetime.now(UTC))))
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
