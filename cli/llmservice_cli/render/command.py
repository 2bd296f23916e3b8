"""`llmservice render`: the objects that the operator would make of a manifest, and what it would say about it."""

from __future__ import annotations

from datetime import UTC, datetime

from llmservice_api.errors import Problem
from llmservice_api.service import LLMService
from llmservice_operator.observe.observed import Observed

from llmservice_cli import documents, settings
from llmservice_cli.errors import ExitCode, WrongUsage, print_problems
from llmservice_cli.manifests import Json, admit, services
from llmservice_cli.render import Options

from .decided import NEW_UID, ClusterReader, decided, namespace_of, new, previews, with_config
from .picker import picker
from .preview import Preview, changes, restart_of, show


async def run(options: Options) -> ExitCode:
    """Print what is decided; the exit code says whether anything would come of it."""
    if options.component is not None:
        return _for_a_picker(options)
    if options.image is not None:
        raise WrongUsage("--image is of an endpoint picker", "add --for epp, or leave it out")
    given = settings.defaults() if options.settings is None else settings.of_file(options.settings)
    now = datetime.now(UTC)

    async def preview(manifest: Json) -> Preview:
        admit(manifest)
        obj = with_config(new(manifest, namespace_of(manifest, options.namespace, "default")), options.config)
        decision, status = await decided(obj, Observed(), given, now, ClusterReader())
        made = changes(decision, Observed(), NEW_UID, {})
        restart = restart_of(made, None, None, status)
        return Preview.of(obj, made, status, restart)

    made, problems, notes = await previews(services(options.file), preview)
    show(made, "manifests" if options.output == "yaml" else options.output)
    print_problems(problems, notes)
    if problems or not all(each.is_accepted for each in made):
        return ExitCode.BAD_INPUT
    return ExitCode.STALLED if any(each.is_stalled for each in made) else ExitCode.DONE


def _for_a_picker(options: Options) -> ExitCode:
    made: list[Json] = []
    problems: list[Problem] = []
    file = services(options.file)
    for each in file.services:
        with each.collecting(problems):
            admit(each.manifest)
            obj = new(each.manifest, namespace_of(each.manifest, options.namespace, "default"))
            made += picker(LLMService.from_object(obj), options.image)
    items = {"apiVersion": "v1", "kind": "List", "items": made}
    rows = (f"{each['kind']} {each['metadata']['namespace']}/{each['metadata']['name']}" for each in made)
    documents.show(options.output, lambda: rows, lambda: items)
    print_problems(problems, file.notes)
    return ExitCode.BAD_INPUT if problems else ExitCode.DONE
