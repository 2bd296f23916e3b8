"""One object of the API server, now and at each change: a list of one, and a watch that goes on from it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from llmservice_operator.kube.errors import Gone, ServerError, TooMany, Unreachable, from_status
from llmservice_operator.kube.resources import LLMSERVICE
from llmservice_operator.kube.transport import Transport

Json = Mapping[str, Any]

WATCH_SECONDS = 300
"""After which the API server is asked to end a watch; the list after it shows a change that got lost."""
SILENCE = 90.0
"""Seconds without a bookmark after which a watch is taken for dead."""
PAUSE = 1.0
_PASSING = (Gone, ServerError, TooMany, Unreachable)


async def changes(
    transport: Transport,
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
            async with contextlib.aclosing(_once(transport, namespace, name)) as looks:
                async for each in looks:
                    has_answered = True
                    yield each
        except _PASSING as error:
            if not has_answered:
                raise
            if not isinstance(error, Gone):
                warn(error.message)
        await sleep(PAUSE)


async def _once(transport: Transport, namespace: str, name: str) -> AsyncGenerator[Json | None]:
    """Until the API server ends the watch."""
    path, params = LLMSERVICE.path(namespace), {"fieldSelector": f"metadata.name={name}"}
    listed = await transport.request("list", LLMSERVICE, path, params=params)
    yield next(iter(listed.get("items") or ()), None)
    watched = {
        **params,
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": str(listed["metadata"]["resourceVersion"]),
        "timeoutSeconds": str(WATCH_SECONDS),
    }
    async with contextlib.aclosing(transport.lines(LLMSERVICE, path, params=watched, silence=SILENCE)) as lines:
        async for line in lines:
            event = json.loads(line)
            match event["type"]:
                case "ERROR":
                    status = event["object"]
                    raise from_status(int(status.get("code") or 500), status, right="watch llmservices")
                case "DELETED":
                    yield None
                case "ADDED" | "MODIFIED":
                    yield event["object"]
