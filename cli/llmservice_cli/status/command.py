"""`llmservice status`: the few reads it is made of, once or whenever something changes.

What only the screen of one service needs is imported for it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from kubeloop.errors import ServerError, TooManyRequests, Unreachable
from llmservice_api.conditions import ConditionType
from llmservice_api.constants import LLMSERVICE
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json, name_of, status_of, versions
from llmservice_cli.cluster import Connection, connect
from llmservice_cli.documents import in_a_line, tell, written
from llmservice_cli.errors import CliError, ExitCode, WrongUsage, say
from llmservice_cli.services import NO_VALUE, by_name, condition_of, services, share_done
from llmservice_cli.status import Options
from llmservice_cli.terminal import Row, is_styled, rendered, show
from llmservice_cli.text import age, table

if TYPE_CHECKING:
    from .snapshot import Snapshot

HEADER = ("NAME", "READY", "REASON", "PROGRESS", "GPUS", "MODEL", "URL", "AGE")
REFRESH = 3.0
"""Seconds after which live figures and ages are read again although no object changed."""
PAUSE = 0.5
"""Seconds between two screens at least: a start changes the status several times a second."""
T = TypeVar("T")


async def run(options: Options) -> ExitCode:
    """Print it. A service that is not Ready is an answer, not a failure."""
    if options.names and options.all_namespaces:
        raise WrongUsage("a name goes with one namespace, not with all", "leave out either NAME or --all-namespaces")
    async with connect(options) as connection:
        reading = StatusReader(connection, options)
        if options.watch:
            return await watch(connection, options, reading)
        if options.output != "table":
            tell(written(options.output, await reading.document()), end="")
        else:
            show(await reading.rows())
        return reading.end()


class StatusReader:
    """Reads what the options ask for, again for each answer. One service's absence hides no other's state."""

    def __init__(self, connection: Connection, options: Options) -> None:
        self._kube, self._names = connection.kube, tuple(dict.fromkeys(options.names or ()))
        self._namespace = None if options.all_namespaces else connection.namespace
        self._failed: list[CliError] = []

    async def rows(self) -> list[Row]:
        """The screen of each service that was named, else a line for each."""
        now = datetime.now(UTC)
        if not self._names:
            return [((clean(line).replace("\n", " "), ""),) for line in await self._overview(now)]
        from .screen import screen

        found: list[Row] = []
        for each in await self._snapshots():
            found += [*([()] if found else []), *screen(each, now, is_styled=is_styled())]
        return found

    async def document(self) -> dict[str, Any]:
        """The same as JSON."""
        from .document import document

        now = datetime.now(UTC)
        if self._names:
            return document([], await self._snapshots(), now)
        return document(await services(self._kube, self._namespace), [], now)

    def end(self) -> ExitCode:
        """Raises the error of a service that could not be read; of several the last one, after the others' messages."""
        for error in self._failed[:-1]:
            say(f"error: {error}")
        if self._failed:
            raise self._failed[-1]
        return ExitCode.DONE

    async def _overview(self, now: datetime) -> Sequence[str]:
        listed = await services(self._kube, self._namespace)
        where = f"namespace {self._namespace}" if self._namespace else "any namespace"
        if not listed:
            more = "; -n names another, -A lists all" if self._namespace else ""
            return [f"no LLMService in {where}{more}"]
        return overview(listed, now, with_namespace=self._namespace is None)

    async def _snapshots(self) -> list[Snapshot]:
        from .snapshot import Snapshot, snapshot

        assert self._namespace is not None
        reads = (snapshot(self._kube, self._namespace, name) for name in self._names)
        found = await asyncio.gather(*reads, return_exceptions=True)
        self._failed = [one for one in found if isinstance(one, CliError)]
        if unexpected := [one for one in found if isinstance(one, BaseException) and not isinstance(one, CliError)]:
            raise unexpected[0]
        if len(self._failed) == len(found):
            self.end()
        return [one for one in found if isinstance(one, Snapshot)]


def overview(found: Sequence[Json], now: datetime, *, with_namespace: bool) -> list[str]:
    """A line for each service."""
    rows = []
    for service in found:
        status, metadata = status_of(service), service["metadata"]
        row = [
            metadata["name"],
            status.get("ready", NO_VALUE),
            _reason(service),
            share_done(status.get("progress") or {}),
            str(status.get("gpus", NO_VALUE)),
            service["spec"]["model"]["uri"],
            (status.get("endpoint") or {}).get("url", NO_VALUE),
            age(str(metadata.get("creationTimestamp") or ""), now),
        ]
        rows.append([metadata["namespace"], *row] if with_namespace else row)
    return table(["NAMESPACE", *HEADER] if with_namespace else HEADER, rows)


def _reason(service: Json) -> str:
    ready = condition_of(service, ConditionType.READY)
    return "not reconciled yet" if ready is None else ready.reason


# --watch: the same answer whenever something changes.


async def watch(connection: Connection, options: Options, reading: StatusReader) -> ExitCode:
    """Ends by Ctrl-C, which is no error."""
    try:
        async with aclosing(_versions(connection, options)) as found:
            if options.output != "table":
                await _documents(found, reading.document, options.output)
            elif sys.stdout.isatty():
                await _screens(found, reading.rows)
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
            meant = (one for one in objects.values() if not names or one["metadata"]["name"] in names)
            yield sorted(meant, key=by_name)


async def _lines(found: AsyncGenerator[list[Json]], named: Iterable[str]) -> None:
    """A line for each change of a service, for its end, and for one that was named and is not there."""
    told: dict[str, str] = {}
    async for each in found:
        now = f"{datetime.now(UTC):%H:%M:%S}"
        lines = {name_of(one): change(one) for one in each}
        lines |= {key: f"{key}: there is none yet" for key in named if key not in lines and key not in told}
        gone = {key: f"{key}: it is gone" for key in told if key not in lines}
        changed = [line for key, line in lines.items() if told.get(key) != line]
        told = lines
        for line in (*changed, *gone.values()):
            tell(f"{now} {line}")


def change(service: Json) -> str:
    """One line that is another one whenever something that matters changes."""
    status = status_of(service)
    progress = status.get("progress") or {}
    doing = " ".join(str(progress[key]) for key in ("phase", "step") if progress.get(key))
    done = share_done(progress)
    parts = [f"{status.get('ready', NO_VALUE)} ready", doing, done if done.endswith("%") else ""]
    failure = status.get("failure") or {}
    told = f": {failure['message']} What to do: {failure.get('remedy', NO_VALUE)}" if failure.get("message") else ""
    return f"{name_of(service)}: {_reason(service)}, {', '.join(filter(None, parts))}{told}"


async def _documents(
    found: AsyncGenerator[list[Json]], document: Callable[[], Awaitable[dict[str, Any]]], output: str
) -> None:
    """A line of JSON, or a document of YAML, after each change."""
    async for _ in found:
        answer = await _read(document, _warn)
        if answer is None:
            continue
        if output == "json":
            tell(in_a_line(answer))
        else:
            tell(f"---\n{written(output, answer)}", end="")


async def _screens(found: AsyncGenerator[list[Json]], rows: Callable[[], Awaitable[list[Row]]]) -> None:
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
