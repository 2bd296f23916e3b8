"""One object of the API server, now and at each change: a list of one, and a watch that goes on from it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from llmservice_operator.kube.errors import Gone, ServerError, TooMany, Unreachable, from_status
from llmservice_operator.kube.resources import LLMSERVICE

from llmservice_cli.api import Api, Json

WATCH_SECONDS = 300
"""After which the API server is asked to end a watch; the list after it shows a change that got lost."""
SILENCE = 90.0
"""Seconds without a bookmark after which a watch is taken for dead."""
PAUSE = 1.0
_PASSING = (Gone, ServerError, TooMany, Unreachable)


async def changes(
    api: Api,
    namespace: str,
    name: str,
    *,
    warn: Callable[[str], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[Json | None]:
    """The object, or None while there is none, for ever. An API server that answered once may fail for a while."""
    has_answered = False
    while True:
        try:
            async with contextlib.aclosing(_once(api, namespace, name)) as versions:
                async for each in versions:
                    has_answered = True
                    yield each
        except _PASSING as error:
            if not has_answered:
                raise
            if not isinstance(error, Gone):
                warn(error.message)
        await sleep(PAUSE)


async def _once(api: Api, namespace: str, name: str) -> AsyncGenerator[Json | None]:
    """Until the API server ends the watch."""
    listed = await api.list_named(LLMSERVICE, namespace, name)
    yield next(iter(listed.get("items") or ()), None)
    since = str(listed["metadata"]["resourceVersion"])
    watched = api.events(LLMSERVICE, namespace, name, since=since, seconds=WATCH_SECONDS, silence=SILENCE)
    async with contextlib.aclosing(watched) as events:
        async for event in events:
            match event["type"]:
                case "ERROR":
                    status = event["object"]
                    raise from_status(int(status.get("code") or 500), status, right="watch llmservices")
                case "DELETED":
                    yield None
                case "ADDED" | "MODIFIED":
                    yield event["object"]
