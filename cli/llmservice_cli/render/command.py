"""`llmservice render`: the objects that the operator would make of a manifest, and what it would say about it."""

from __future__ import annotations

from datetime import UTC, datetime

from llmservice_operator.observe.observed import Observed

from llmservice_cli import settings
from llmservice_cli.errors import ExitCode, WrongUsage, print_problems
from llmservice_cli.manifests import Json, admit, services
from llmservice_cli.options import is_namespace
from llmservice_cli.render import Options
from llmservice_cli.text import shown

from . import others
from .decided import NEW_UID, ClusterReader, decided, namespace_of, new, previews, with_config
from .preview import Preview, changes, restart_of, show


async def run(options: Options) -> ExitCode:
    """Print what is decided; the exit code says whether anything would come of it."""
    if options.namespace and not is_namespace(options.namespace):
        raise WrongUsage(f"{shown(options.namespace)} is no name of a namespace", "give one with -n NAME")
    others.check_options(options)
    if options.component is not None:
        return others.run(options)
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
