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
from .envoy_gateway import Limits, behind
from .picker import picker
from .preview import Preview, changes, restart_of, show


async def run(options: Options) -> ExitCode:
    """Print what is decided; the exit code says whether anything would come of it."""
    _check(options)
    if options.component is not None:
        return _for_others(options)
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


def _check(options: Options) -> None:
    """WrongUsage for an option of another --for, and where one is missing."""
    of_gateway = {
        "--gateway": options.gateway,
        "--requests-per-minute": options.requests_per_minute,
        "--tokens-per-minute": options.tokens_per_minute,
        "--clients-by": options.clients_by,
    }
    for component, given in (("epp", {"--image": options.image}), ("envoy-ai-gateway", of_gateway)):
        for name, value in given.items():
            if component != options.component and value is not None:
                raise WrongUsage(f"{name} is of --for {component}", f"add --for {component}, or leave {name} out")
    if options.component == "envoy-ai-gateway":
        has_limit = options.requests_per_minute is not None or options.tokens_per_minute is not None
        if options.gateway is None:
            raise WrongUsage("no Gateway is named", "add --gateway [NAMESPACE/]NAME")
        if has_limit != (options.clients_by is not None):
            needed = "--clients-by HEADER" if has_limit else "--requests-per-minute or --tokens-per-minute"
            raise WrongUsage("a limit is of clients, and of these only", f"add {needed}")


def _for_others(options: Options) -> ExitCode:
    limits = Limits(options.clients_by, options.requests_per_minute, options.tokens_per_minute)
    made: list[Json] = []
    problems: list[Problem] = []
    file = services(options.file)
    for each in file.services:
        with each.collecting(problems):
            admit(each.manifest)
            obj = new(each.manifest, namespace_of(each.manifest, options.namespace, "default"))
            service = LLMService.from_object(obj)
            if options.component == "epp":
                made += picker(service, options.image)
            else:
                made += behind(service, options.gateway, limits)
    items = {"apiVersion": "v1", "kind": "List", "items": made}
    rows = (f"{each['kind']} {each['metadata']['namespace']}/{each['metadata']['name']}" for each in made)
    documents.show(options.output, lambda: rows, lambda: items)
    print_problems(problems, file.notes)
    return ExitCode.BAD_INPUT if problems else ExitCode.DONE
