"""Where the requests of a chat go: a pod, an activator that holds them, the Service, or --url.

It is decided anew for each answer, since replicas come and go while somebody reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import httpx
from kubeloop.errors import Forbidden, KubeError
from llmservice_api.conditions import ConditionType
from llmservice_api.holding import stored_port

from llmservice_cli.api import Json
from llmservice_cli.cluster import Connection
from llmservice_cli.errors import CliError, say
from llmservice_cli.forward import RIGHT, Forward, PodPort, forwarded
from llmservice_cli.installation import ACTIVATORS, NAMESPACE, activators
from llmservice_cli.load.server import CONNECT_SECONDS, base_of, client_of, ready_pods, url_inside
from llmservice_cli.services import condition_of, service
from llmservice_cli.wait.command import Outcome, Wish, assess, changes, until_known

from .arguments import Options

SILENCE = 900.0
"""Seconds without a byte after which an answer is given up: the longest prompts are computed before the first one.
An activator sends a comment each 5 s."""
TIMEOUT = httpx.Timeout(SILENCE, connect=CONNECT_SECONDS)


@dataclass(frozen=True)
class Way:
    """A client for one request."""

    http: httpx.AsyncClient
    place: str
    forward: Forward | None = None
    holder: str = ""
    """The activator that holds the request until a replica is ready; empty: none is needed."""

    def error_of(self, error: httpx.HTTPError) -> str:
        """In words; what the port-forward says is the cause of what the client sees."""
        if self.forward is not None and self.forward.error is not None:
            return self.forward.error.message
        if isinstance(error, httpx.ReadTimeout):
            return f"nothing came for {SILENCE:g} s"
        return f"{type(error).__name__}: {error}".rstrip(": ")


class Server(Protocol):
    """What a chat is with."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def advice(self) -> str:
        """What to do where it does not answer."""

    def way(self) -> contextlib.AbstractAsyncContextManager[Way]:
        """To it as it is now. CliError where there is none."""

    async def narrate(self) -> None:
        """Says on standard error how the start of a replica goes on, until it is cancelled."""


@dataclass(frozen=True)
class ByUrl:
    """A server that is reached from here."""

    url: str
    model: str
    headers: Mapping[str, str] = field(repr=False)
    advice: str = "check the address, and that the server is up"

    @property
    def name(self) -> str:
        return base_of(self.url)

    @asynccontextmanager
    async def way(self) -> AsyncIterator[Way]:
        async with direct(self.url, self.headers) as way:
            yield way

    async def narrate(self) -> None:
        return


@asynccontextmanager
async def direct(url: str, headers: Mapping[str, str], holder: str = "") -> AsyncIterator[Way]:
    """Without a port-forward."""
    async with client_of(url, headers, timeout=TIMEOUT) as http:
        yield Way(http, url, holder=holder)


@dataclass(frozen=True)
class ByName:
    """An LLMService."""

    connection: Connection
    options: Options
    model: str
    headers: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.connection.namespace}/{self.options.name}"

    @property
    def advice(self) -> str:
        return f"look at it: llmservice status {self.options.name} -n {self.connection.namespace}"

    @asynccontextmanager
    async def way(self) -> AsyncIterator[Way]:
        found = await self._service()
        held = stored_port(found.get("status") or {})
        if url := await url_inside(found, self.options):
            is_served = _is_available(found)
            if not is_served and held is None:
                await self._until_available(found)
            async with direct(url, self.headers, "" if is_served or held is None else url) as way:
                yield way
            return
        to, holder = await self._ready_pod(), ""
        if to is None and held is not None:
            to = await self._activator(held)
            holder = to.pod
        elif to is None:
            await self._until_available(found)
            to = await self._ready_pod()
        if to is None:
            raise CliError(f"{self.name} has no ready pod any more", self.advice)
        async with forwarded(self.connection, to, timeout=TIMEOUT, headers=self.headers) as (http, forward):
            yield Way(http, f"pod {to.pod}", forward, holder)

    async def narrate(self) -> None:
        namespace, name = self.connection.namespace, self.options.name or ""
        last = ""
        async with contextlib.aclosing(changes(self.connection.kube, namespace, name, warn=say)) as versions:
            async for found in versions:
                now = start_of(found)
                if now != last:
                    say(f"{name}: {now}")
                last = now

    async def _service(self) -> Json:
        return await service(self.connection.kube, self.connection.namespace, self.options.name or "")

    async def _ready_pod(self) -> PodPort | None:
        """The first by name; several chats need not be spread."""
        found = await ready_pods(self.connection.kube, self.connection.namespace, self.options.name or "")
        return found[0] if found else None

    async def _until_available(self, found: Json) -> None:
        """Waits with --wait; CliError with the reason why no replica is available."""
        namespace, name = self.connection.namespace, self.options.name or ""
        seen = assess(found, ConditionType.AVAILABLE, was_there=True)
        if self.options.wait and seen.outcome is Outcome.OPEN:
            wish = Wish(namespace, name, ConditionType.AVAILABLE, self.options.timeout, self.options.quiet)
            seen = await until_known(self.connection, wish) or seen
        if seen.outcome is Outcome.MET:
            return
        can_wait = seen.outcome is Outcome.OPEN and not self.options.wait
        waiting = f"llmservice chat {name} --wait waits for a replica; " if can_wait else ""
        raise CliError(f"{name} has no ready replica: {seen}", seen.remedy or waiting + self.advice)

    async def _activator(self, port: int) -> PodPort:
        right = f"list on pods and {RIGHT} in the operator's namespace ({NAMESPACE})"
        try:
            where, found = await activators(self.connection.kube)
        except Forbidden as error:
            raise CliError(
                "no replica is ready, and the activators that hold requests may not be listed",
                f"ask for the rights {right}, or send the request from a pod of the cluster, which wakes the service",
            ) from error
        except KubeError as error:
            raise CliError(
                f"the activators that hold requests cannot be listed: {error.message}", self.advice
            ) from error
        if not found:
            raise CliError(
                f"no replica is ready, and no pod of an activator runs in {where} ({ACTIVATORS})", self.advice
            )
        return PodPort(*found[0], port)


def start_of(found: Json | None) -> str:
    """What the status says of a replica that starts."""
    if found is None:
        return "it was deleted"
    status = found.get("status") or {}
    shown = condition_of(found, ConditionType.AVAILABLE) or condition_of(found, ConditionType.READY)
    progress = status.get("progress") or {}
    steps = [str(progress[key]) for key in ("phase", "artifact", "step") if progress.get(key)]
    if progress.get("percent") is not None:
        steps.append(f"{progress['percent']} %")
    return ", ".join([shown.reason if shown else "not reconciled yet", *([" ".join(steps)] if steps else [])])


def _is_available(found: Json) -> bool:
    available = condition_of(found, ConditionType.AVAILABLE)
    return available is not None and available.status == "True"
