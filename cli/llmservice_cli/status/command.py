"""`llmservice status`: the few reads it is made of."""

from __future__ import annotations

from datetime import UTC, datetime

from llmservice_runtime.bounded_json import clean

from llmservice_cli.cluster import connect
from llmservice_cli.documents import show
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.services import services

from .arguments import Options
from .document import document
from .screen import overview, screen
from .snapshot import snapshot


async def run(options: Options) -> ExitCode:
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
    show(options.output, lambda: map(clean, text), lambda: found)
    return ExitCode.DONE
