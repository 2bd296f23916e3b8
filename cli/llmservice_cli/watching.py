"""Objects of the API server, now and after each change: a list, and a watch that goes on from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from kubeloop.errors import Gone, ServerError, TooManyRequests, Unreachable, from_status
from kubeloop.resources import Resource

from .api import Api, Json

WATCH_SECONDS = 300
"""After which the API server is asked to end a watch; the list after it shows a change that got lost."""
SILENCE = 90.0
"""Seconds without a bookmark after which a watch is taken for dead."""
PAUSE = 1.0
Objects = Mapping[str, Json]
"""By uid: a name may come back."""


async def versions(
    kube: Api, resource: Resource, namespace: str | None, selector: Mapping[str, str], warn: Callable[[str], None]
) -> AsyncGenerator[Objects]:
    """All that the selector selects, for ever. An API server that answered once may fail for a while."""
    has_answered = False
    while True:
        try:
            async with aclosing(_once(kube, resource, namespace, selector)) as found:
                async for objects in found:
                    has_answered = True
                    yield objects
        except (ServerError, TooManyRequests, Unreachable) as error:
            if not has_answered:
                raise
            warn(error.message)
        except Gone:
            pass  # the list is read anew
        await asyncio.sleep(PAUSE)


async def _once(
    kube: Api, resource: Resource, namespace: str | None, selector: Mapping[str, str]
) -> AsyncGenerator[Objects]:
    """Until the API server ends the watch."""
    listed = await kube.list_selected(resource, namespace, selector)
    objects: dict[str, Json] = {one["metadata"]["uid"]: one for one in listed.get("items") or ()}
    yield dict(objects)
    since = str(listed["metadata"]["resourceVersion"])
    watched = kube.selected_events(resource, namespace, selector, since=since, seconds=WATCH_SECONDS, silence=SILENCE)
    async with aclosing(watched) as events:
        async for event in events:
            kind, found = event["type"], event["object"]
            if kind == "ERROR":
                raise from_status(int(found.get("code") or 500), found, right=f"watch {resource.full_name}")
            if kind == "DELETED":
                objects.pop(found["metadata"]["uid"], None)
            elif kind in ("ADDED", "MODIFIED"):
                objects[found["metadata"]["uid"]] = found
            else:
                continue
            yield dict(objects)
