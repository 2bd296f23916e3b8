"""One question and its answer, and what is remembered of them.

Where a request goes (a pod, an activator that holds it, the Service, or --url) is decided anew for each answer, since
replicas come and go while somebody reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
from kubeloop.errors import Forbidden, KubeError
from llmservice_api.conditions import ConditionType
from llmservice_api.holding import stored_port
from llmservice_runtime.bounded_json import Reader, Refused
from llmservice_runtime.redact import Redactor

from llmservice_cli.api import Json
from llmservice_cli.chat import Options
from llmservice_cli.cluster import Connection, connect
from llmservice_cli.errors import CliError, say
from llmservice_cli.forward import RIGHT, Forward, PodPort, forwarded
from llmservice_cli.installation import ACTIVATORS, NAMESPACE, activators
from llmservice_cli.load.answer import LONGEST_EVENT, Answer, Failure, Lines, Loss, http_failure
from llmservice_cli.load.client import LONGEST_REFUSAL, beginning
from llmservice_cli.load.server import (
    CONNECT_SECONDS,
    base_of,
    client_of,
    headers_of,
    hiding,
    inspect,
    key_of,
    ready_pods,
    service_key,
    url_inside,
)
from llmservice_cli.load.server import direct as target_of
from llmservice_cli.services import condition_of, service
from llmservice_cli.wait.command import Outcome, Wish, assess, changes, until_known

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


# What was said so far, as the OpenAI API takes it, bounded.

MOST_TURNS = 200
MOST_CHARACTERS = 400_000
"""Of all turns: about 100,000 tokens."""

Message = dict[str, str]


@dataclass
class Conversation:
    """A question and its answer are one turn; the oldest turns are dropped where there are too many."""

    system: str | None = None
    dropped: int = 0
    """Turns."""
    _turns: list[tuple[str, str]] = field(default_factory=list)

    def asking(self, question: str) -> Sequence[Message]:
        """The messages of a request."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for asked, answered in self._turns:
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        return [*messages, {"role": "user", "content": question}]

    def keep(self, question: str, answer: str) -> int:
        """Remember a turn; the number of those that are dropped for it. Without an answer there is none."""
        if not answer:
            return 0
        self._turns.append((question, answer))
        before = len(self._turns)
        while len(self._turns) > MOST_TURNS or (len(self._turns) > 1 and self._length() > MOST_CHARACTERS):
            del self._turns[0]
        gone = before - len(self._turns)
        self.dropped += gone
        return gone

    def reset(self) -> None:
        """Forget all turns, and not the system message."""
        self._turns.clear()

    def _length(self) -> int:
        return sum(len(asked) + len(answered) for asked, answered in self._turns)


# One streamed answer of a chat: bytes in, what the model says out. Pure, and bounded: the server is not trusted.

LONGEST_ANSWER = 16 * 2**20
"""Bytes of a stream; the longest contexts give less."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event adds."""

    text: str = ""
    reasoning: str = ""


class Reply(Answer):
    """An answer as far as it has come, which may have any length. Times are the clock's seconds."""

    name = "the event"

    def __init__(self, sent: float) -> None:
        super().__init__()
        self.sent = sent
        self.text = self.reasoning = ""
        self.first: float | None = None
        """When the first piece of text or reasoning came."""
        self.latest: float | None = None
        self._texts: list[Piece] = []

    def add(self, line: str, now: float) -> Piece | None:
        """What a line adds; None where that is nothing. Comments, and lines after a failure, are ignored."""
        if self.failure is not None:
            return None
        try:
            piece = next((_piece(each.within("delta")) for each in self.take(line) if each.has("delta")), Piece())
        except Refused as why:
            self.failure = self.not_understood(str(why), line)
            return None
        if piece == Piece():
            return None
        self.first = now if self.first is None else self.first
        self.latest = now
        self._texts.append(piece)
        return piece

    def not_understood(self, why: str, text: str) -> Failure:
        return Failure(Loss.NOT_UNDERSTOOD, f"an event of the answer is not understood: {why}")

    def end(self) -> None:
        """The stream has ended."""
        self.text = "".join(piece.text for piece in self._texts)
        self.reasoning = "".join(piece.reasoning for piece in self._texts)
        if self.failure is None and self.finish_reason == "abort":
            self.failure = Failure(Loss.ABORTED, "the server gave the request up, or is being stopped")
        if self.failure is None and not self.is_done:
            self.failure = Failure(Loss.CUT, "the answer ended before it was whole")

    @property
    def tokens(self) -> int:
        """By the server's count; without one, a token for each piece."""
        counted = None if self.usage is None else self.usage.completion
        return len(self._texts) if counted is None else counted

    @property
    def first_token_seconds(self) -> float | None:
        """From the request to the first token."""
        return None if self.first is None else self.first - self.sent

    @property
    def tokens_per_second(self) -> float | None:
        """Of the tokens after the first one; None where there is no time between two pieces."""
        if self.first is None or self.latest is None or self.latest <= self.first or self.tokens < 2:
            return None
        return (self.tokens - 1) / (self.latest - self.first)


def _piece(delta: Reader) -> Piece:
    """`reasoning` is vLLM's name; `reasoning_content` what it was before."""
    reasoning = "reasoning" if delta.has("reasoning") else "reasoning_content"
    return Piece(delta.text("content", LONGEST_EVENT, default=""), delta.text(reasoning, LONGEST_EVENT, default=""))


PATH = "/v1/chat/completions"


@dataclass
class Chat:
    """A conversation with one server."""

    server: Server
    options: Options
    redactor: Redactor
    """Hides the API key in what the server says of a refusal."""
    conversation: Conversation
    clock: Callable[[], float] = time.monotonic
    reply: Reply | None = None
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
                reply.failure = http_failure(
                    response.status_code, await beginning(response.aiter_raw(), LONGEST_REFUSAL)
                )
                return
            async for data in response.aiter_raw():  # nothing is unpacked that was not asked to be packed
                try:
                    found = list(lines.take(data))
                except Refused as why:
                    reply.failure = Failure(Loss.NOT_UNDERSTOOD, f"the answer is given up: {why}")
                    return
                for line in found:
                    if (piece := reply.add(line, self.clock())) is not None:
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
