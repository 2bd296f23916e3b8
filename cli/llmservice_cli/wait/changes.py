"""One LLMService, now and at each change."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from llmservice_operator.kube.resources import LLMSERVICE

from llmservice_cli.api import Api, Json
from llmservice_cli.watching import versions


async def changes(api: Api, namespace: str, name: str, *, warn: Callable[[str], None]) -> AsyncGenerator[Json | None]:
    """The object, or None while there is none, for ever. An API server that answered once may fail for a while."""
    selector = {"fieldSelector": f"metadata.name={name}"}
    async with aclosing(versions(api, LLMSERVICE, namespace, selector, warn)) as found:
        async for objects in found:
            yield next(iter(objects.values()), None)
