"""The name of a service on the command line, and what a shell completes it with: nothing where the cluster does not
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from typer import Argument, Context

PATIENCE = 2.0
"""Seconds for which somebody who pressed Tab waits."""


def service_names(ctx: Context) -> Sequence[str]:
    """LLMServices of the namespace that the line names so far."""
    import asyncio

    from .errors import CliError

    try:
        return asyncio.run(asyncio.wait_for(_names(ctx.params), PATIENCE))
    except (CliError, TimeoutError):
        return ()


async def _names(given: dict[str, Any]) -> Sequence[str]:
    from .cluster import connect
    from .options import Scope
    from .services import services

    scope = Scope(**{key: given.get(key) for key in ("namespace", "context", "kubeconfig")})
    async with connect(scope) as connection:
        return [found["metadata"]["name"] for found in await services(connection.kube, connection.namespace)]


Name = Annotated[str, Argument(metavar="NAME", help="the LLMService", autocompletion=service_names)]
