"""`llmservice status`: the few reads it is made of, once or whenever something changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from llmservice_runtime.bounded_json import clean

from llmservice_cli.cluster import Connection, connect
from llmservice_cli.documents import tell, written
from llmservice_cli.errors import CliError, ExitCode, WrongUsage, say
from llmservice_cli.services import services
from llmservice_cli.terminal import Row, is_styled, show

from .arguments import Options
from .document import document
from .frame import Frame, frame
from .overview import overview
from .screen import screen
from .watch import watch


async def run(options: Options) -> ExitCode:
    """Print it. A service that is not Ready is an answer, not a failure."""
    if options.names and options.all_namespaces:
        raise WrongUsage("a name goes with one namespace, not with all", "leave out either NAME or --all-namespaces")
    async with connect(options) as connection:
        read = Reading(connection, options)
        if options.watch:
            return await watch(connection, options, read.rows, read.document)
        if options.output != "table":
            tell(written(options.output, await read.document()), end="")
        else:
            show(await read.rows())
        return read.end()


class Reading:
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
        found: list[Row] = []
        for each in await self._frames():
            found += [*([()] if found else []), *screen(each, now, is_styled=is_styled())]
        return found

    async def document(self) -> dict[str, Any]:
        """The same as JSON."""
        now = datetime.now(UTC)
        if self._names:
            return document([], await self._frames(), now)
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

    async def _frames(self) -> list[Frame]:
        assert self._namespace is not None
        reads = (frame(self._kube, self._namespace, name) for name in self._names)
        found = await asyncio.gather(*reads, return_exceptions=True)
        self._failed = [one for one in found if isinstance(one, CliError)]
        if unexpected := [one for one in found if isinstance(one, BaseException) and not isinstance(one, CliError)]:
            raise unexpected[0]
        if len(self._failed) == len(found):
            self.end()
        return [one for one in found if isinstance(one, Frame)]
