"""The argument NAME, and the names of services with which a shell completes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from click import Context, Parameter

from .options import Scope
from .parameters import Argument

PATIENCE = 2.0
"""Seconds for which somebody who pressed Tab waits."""


def service_names(ctx: Context, _: Parameter, incomplete: str) -> list[str]:
    """What a shell completes with: LLMServices of the namespace that the line names so far. Nothing where the cluster
    does not answer."""
    import asyncio

    from .errors import CliError

    try:
        names = asyncio.run(asyncio.wait_for(_names(ctx.params), PATIENCE))
    except (CliError, TimeoutError):
        return []
    return [name for name in names if name.startswith(incomplete)]


async def _names(given: dict[str, Any]) -> Sequence[str]:
    from .cluster import connect
    from .services import services

    scope = Scope(**{key: given.get(key) for key in ("namespace", "context", "kubeconfig")})
    async with connect(scope) as connection:
        return [found["metadata"]["name"] for found in await services(connection.kube, connection.namespace)]


Name = Annotated[str, Argument(metavar="NAME", help="the LLMService", complete=service_names)]
