"""One question and its answer, and what is remembered of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from llmservice_operator.kube.errors import KubeError
from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.redact import Redactor

from llmservice_cli.cluster import connect
from llmservice_cli.errors import CliError, say
from llmservice_cli.load.answer import Failure, Loss, http_failure
from llmservice_cli.load.key import headers_of, hiding, key_of
from llmservice_cli.load.lines import Lines
from llmservice_cli.load.routes import service_key
from llmservice_cli.load.server import direct as target_of
from llmservice_cli.load.server import inspect
from llmservice_cli.services import service

from .arguments import Options
from .conversation import Conversation
from .reply import LONGEST_ANSWER, Piece, Reply
from .server import ByName, ByUrl, Server, Way, direct

PATH = "/v1/chat/completions"
LONGEST_REFUSAL = 64 * 2**10
"""Bytes of the body of an error."""


@dataclass
class Chat:
    """A conversation with one server."""

    server: Server
    options: Options
    redactor: Redactor
    """Hides the API key in what the server says of a refusal."""
    conversation: Conversation
    clock: Callable[[], float] = time.monotonic
    reply: Reply | None = field(default=None)
    """The latest one, also one that was interrupted."""

    async def ask(self, question: str, show: Callable[[Piece], None]) -> Reply:
        """The answer, shown as it comes. A failure is in the Reply; CliError where there is nobody to ask."""
        async with self.server.way() as way:
            reply = self.reply = Reply(self.clock())
            narrator = asyncio.create_task(self._narrate(way)) if way.holder and not self.options.quiet else None
            try:
                await self._stream(way, question, reply, show, narrator)
            except httpx.HTTPError as error:
                reply.failure = Failure(Loss.CUT if reply.first else Loss.NOT_CONNECTED, way.error_of(error))
            finally:
                if narrator is not None:
                    await _ended(narrator)
                reply.end()
                self._remember(question, reply)
        if reply.failure is not None:
            reply.failure = Failure(reply.failure.loss, self.redactor.clean(reply.failure.error))
        return reply

    async def _stream(
        self,
        way: Way,
        question: str,
        reply: Reply,
        show: Callable[[Piece], None],
        narrator: asyncio.Task[None] | None,
    ) -> None:
        lines = Lines(LONGEST_ANSWER)
        async with way.http.stream("POST", PATH, json=self._body(question)) as response:
            if response.status_code != 200:
                reply.failure = http_failure(response.status_code, await _beginning(response))
                return
            async for data in response.aiter_raw():  # nothing is unpacked that was not asked to be packed
                try:
                    found = list(lines.take(data))
                except Refused as why:
                    reply.failure = Failure(Loss.NOT_UNDERSTOOD, f"the answer is given up: {why}")
                    return
                for line in found:
                    if (piece := reply.take(line, self.clock())) is not None:
                        if narrator is not None:
                            narrator.cancel()
                        show(piece)

    async def _narrate(self, way: Way) -> None:
        say(f"{self.server.name} has no ready replica: {way.holder} holds the request and starts one")
        await self.server.narrate()

    def _body(self, question: str) -> Mapping[str, Any]:
        given = {"max_tokens": self.options.max_tokens, "temperature": self.options.temperature}
        return {
            "model": self.server.model,
            "messages": self.conversation.asking(question),
            "stream": True,
            "stream_options": {"include_usage": True},
            **{name: value for name, value in given.items() if value is not None},
        }

    def _remember(self, question: str, reply: Reply) -> None:
        if self.conversation.keep(question, reply.text) and not self.options.quiet:
            say("the oldest turns are not sent any more: the conversation is longer than is kept")


async def _ended(task: asyncio.Task[None]) -> None:
    """A failure of it is said, and hides no answer."""
    task.cancel()
    await asyncio.wait({task})
    error = None if task.cancelled() else task.exception()
    if isinstance(error, KubeError):
        say(f"the service's status cannot be followed: {error.message}")
    elif error is not None:
        raise error


async def _beginning(response: httpx.Response) -> bytes:
    whole = bytearray()
    async for data in response.aiter_raw():
        whole += data[: LONGEST_REFUSAL - len(whole)]
        if len(whole) >= LONGEST_REFUSAL:
            break
    return bytes(whole)


@asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Chat]:
    """With the model and the key known; nothing was asked yet."""
    conversation = Conversation(options.system)
    if options.url:
        key = key_of(options.api_key_env)
        async with direct(options.url, headers_of(key)) as way:
            model = (await inspect(target_of(options.url, way.http), options.model)).model
        yield Chat(ByUrl(options.url, model, headers_of(key)), options, hiding(key), conversation)
        return
    async with connect(options) as connection:
        found = await service(connection.kube, connection.namespace, options.name or "")
        key = await service_key(connection.kube, found, options.api_key_env, None if options.quiet else say)
        names = ((found.get("status") or {}).get("endpoint") or {}).get("modelNames") or [options.name]
        server_of = ByName(connection, options, options.model or str(names[0]), headers_of(key))
        yield Chat(server_of, options, hiding(key), conversation)


def raise_for(reply: Reply, server: Server) -> None:
    """CliError where there is no answer, or only a part of one."""
    if reply.failure is None:
        return
    raise CliError(f"{server.name}: {reply.failure.error or reply.failure.loss}", _remedy(reply.failure, server))


def _remedy(failure: Failure, server: Server) -> str:
    match failure.loss:
        case "http-401":
            return "name an environment variable with the API key: --api-key-env VARIABLE"
        case "http-403":
            return "spec.scaling.holding.from admits no port-forward: ask from a pod that it admits"
        case "http-404":
            return "choose a served model with --model: llmservice status NAME lists them"
        case "http-400":
            return "see the message; where the conversation is longer than the context, /reset begins a new one"
        case "http-429" | "http-503":
            return f"ask again a little later, or {server.advice}"
    return server.advice
