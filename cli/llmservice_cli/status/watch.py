"""`llmservice status --watch`: the same answer whenever something changes, until Ctrl-C."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from kubeloop.errors import ServerError, TooManyRequests, Unreachable
from llmservice_api.kinds import LLMSERVICE
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json
from llmservice_cli.cluster import Connection
from llmservice_cli.documents import in_a_line, tell, written
from llmservice_cli.errors import CliError, ExitCode, say
from llmservice_cli.terminal import Row, rendered, show
from llmservice_cli.watching import Objects, versions

from .arguments import Options
from .overview import change

REFRESH = 3.0
"""Seconds after which live figures and ages are read again although no object changed."""
PAUSE = 0.5
"""Seconds between two screens at least: a start changes the status several times a second."""
T = TypeVar("T")
Rows = Callable[[], Awaitable[list[Row]]]
Document = Callable[[], Awaitable[dict[str, Any]]]


async def watch(connection: Connection, options: Options, rows: Rows, document: Document) -> ExitCode:
    """Ends by Ctrl-C, which is no error."""
    try:
        async with aclosing(_versions(connection, options)) as found:
            if options.output != "table":
                await _documents(found, document, options.output)
            elif sys.stdout.isatty():
                await _screens(found, rows)
            else:
                await _lines(found, [f"{connection.namespace}/{name}" for name in options.names or ()])
    except asyncio.CancelledError:
        pass
    return ExitCode.DONE


async def _versions(connection: Connection, options: Options) -> AsyncGenerator[list[Json]]:
    """The services that are meant, by namespace and name, after each change of one."""
    namespace = None if options.all_namespaces else connection.namespace
    names = options.names or []
    selector = {"fieldSelector": f"metadata.name={names[0]}"} if len(names) == 1 else {}
    async with aclosing(versions(connection.kube, LLMSERVICE, namespace, selector, _warn)) as found:
        async for objects in found:
            yield _sorted(objects, names)


def _sorted(objects: Objects, names: Iterable[str]) -> list[Json]:
    wanted = set(names)
    meant = [one for one in objects.values() if not wanted or one["metadata"]["name"] in wanted]
    return sorted(meant, key=lambda one: (one["metadata"]["namespace"], one["metadata"]["name"]))


async def _lines(found: AsyncGenerator[list[Json]], named: Iterable[str]) -> None:
    """A line for each change of a service, for its end, and for one that was named and is not there."""
    told: dict[str, str] = {}
    async for services in found:
        now = f"{datetime.now(UTC):%H:%M:%S}"
        lines = {f"{one['metadata']['namespace']}/{one['metadata']['name']}": change(one) for one in services}
        lines |= {key: f"{key}: there is none yet" for key in named if key not in lines and key not in told}
        gone = {key: f"{key}: it is gone" for key in told if key not in lines}
        changed = [line for key, line in lines.items() if told.get(key) != line]
        told = lines
        for line in (*changed, *gone.values()):
            tell(f"{now} {line}")


async def _documents(found: AsyncGenerator[list[Json]], document: Document, output: str) -> None:
    """A line of JSON, or a document of YAML, after each change."""
    async for _ in found:
        answer = await _read(document, _warn)
        if answer is None:
            continue
        if output == "json":
            tell(in_a_line(answer))
        else:
            tell(f"---\n{written(output, answer)}", end="")


async def _screens(found: AsyncGenerator[list[Json]], rows: Rows) -> None:
    """Redrawn in place; the last one stays when the watch ends."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    changed = asyncio.Event()

    async def notice() -> None:
        async for _ in found:
            changed.set()

    last: list[Row] = []
    why = ""

    def keep(message: str) -> None:
        nonlocal why
        why = message

    console = Console(highlight=False, markup=False, emoji=False)
    noticing = asyncio.create_task(notice())
    try:
        with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while not noticing.done():
                changed.clear()
                last = await _read(rows, keep) or [((f"nothing can be read now: {clean(why)}", "yellow"),)]
                live.update(Text.from_ansi(rendered(last)), refresh=True)
                await asyncio.sleep(PAUSE)
                with suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH):
                        await changed.wait()
        await noticing
    finally:
        noticing.cancel()
        await asyncio.gather(noticing, return_exceptions=True)
        show(last)


async def _read(read: Callable[[], Awaitable[T]], warn: Callable[[str], None]) -> T | None:
    """None, and why, while a service that was named does not exist, or the API server does not answer."""
    try:
        return await read()
    except (CliError, ServerError, TooManyRequests, Unreachable) as error:
        warn(error.message)
        return None


def _warn(message: str) -> None:
    if not sys.stdout.isatty():
        say(f"warning: {message}; still watching")
