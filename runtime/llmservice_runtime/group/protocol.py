"""What the supervisors of a group tell each other, and how each knows that it hears a member of its own group.

A group is one replica over several pods. Rank 0, the leader, answers requests, and with hybrid balancing the other
ranks, its workers, do too. Each worker keeps one connection to the leader. It says once who it is (Hello); then it
sends a Report and receives an Order, once a second and at each change. Both describe a state and not an event: whoever
missed one learns everything from the next.

A connection begins with a nonce of each side. After that each line is `MAC JSON`; the MAC (HMAC-SHA256 with the group's
token) covers the sender's role, both nonces, the number of the line and the JSON, so that no line can be forged,
replayed, reordered or sent back. The lines are not encrypted, since they hold what the status shows anyway.

Standard library only, Python 3.10 and later, like all of the runtime.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from llmservice_runtime.bounded_json import Refused, UnknownWord, parse
from llmservice_runtime.contract import MAX_NODES, MAX_TEXT, Failure
from llmservice_runtime.documents import Document, Field, to_line
from llmservice_runtime.str_enum import StrEnum

LINE_BYTES = 16 * 1024
"""Longest line, its end included."""
HELLO_BYTES = 2048
"""Of the lines before a worker has proved that it knows the token."""
MOST_REQUESTS = 1_000_000
"""That a member says to answer at once."""
_FAILURE_BYTES = 4096
_NONCE = re.compile(rb"[0-9a-f]{32}\n")
_MAC_CHARACTERS = 64

D = TypeVar("D", bound=Document)


class Step(StrEnum):
    """What a member does."""

    PREPARING = "Preparing"
    """Preflight and fetch."""
    WAITING = "Waiting"
    """It could start vLLM, of which nothing runs any more, and no port is held."""
    RUNNING = "Running"
    """vLLM runs, and is not known to have failed."""
    FAILED = "Failed"
    LEAVING = "Leaving"
    """It got SIGTERM. vLLM runs until the group's requests are answered."""


@dataclass(frozen=True)
class Hello(Document):
    """Who a member is. What a connection says from then on is said of this rank and this pod."""

    rank: Annotated[int, Field(most=MAX_NODES - 1)]
    size: Annotated[int, Field(least=2, most=MAX_NODES)]
    group: Annotated[str, Field(longest=253)]
    """The leader's host, which no other group has: the token is the same for all groups of a revision."""
    revision: Annotated[str, Field(longest=128)]
    """Of the pod template; members of different revisions form no group."""
    instance: Annotated[str, Field(longest=64)]
    """Of the supervisor, at random: a container that started anew has another one."""
    pod: Annotated[str, Field(longest=253)] = ""
    node: Annotated[str, Field(longest=253)] = ""
    vllm_version: Annotated[str, Field(longest=128)] = ""
    """Empty while unknown, as is `build`."""
    build: Annotated[str, Field(longest=64)] = ""
    """Digest of the installed packages: images of the same version may differ."""


@dataclass(frozen=True)
class Report(Document):
    """The state of a member."""

    incarnation: int
    """The number of the start that `step` is about."""
    step: Annotated[Step, Field(forgives=UnknownWord, instead=Step.PREPARING)]
    started: bool = False
    """vLLM answered a request, or runs without an API."""
    progress: Annotated[str, Field(longest=MAX_TEXT, is_prose=True)] = ""
    """Of a start."""
    in_flight: Annotated[int, Field(most=MOST_REQUESTS)] = 0
    """Requests that it answers now."""
    drained: bool = False
    """A member is to end, and this one has answered its requests and takes no more."""
    failure: Annotated[Failure | None, Field(forgives=Refused)] = None


@dataclass(frozen=True)
class Order(Document):
    """What the leader wants of a worker."""

    incarnation: int = 0
    """0: nothing yet."""
    run: bool = False
    """Whether vLLM is to run, as this incarnation; else it is to end."""
    ready: bool = False
    """Whether the group takes requests."""
    blamed: Annotated[int | None, Field(most=MAX_NODES - 1)] = None
    """The rank on which it happened that the last incarnation failed."""
    is_exhausted: bool = False
    """The group has used up its restarts, and starts no more."""
    drain: bool = False
    """A member is to end: each one with an API answers its requests, while vLLM of all still runs."""
    refused: Annotated[str, Field(longest=MAX_TEXT, is_prose=True)] = ""
    """Why the worker is no member; the connection then ends."""


def bounded(report: Report) -> Report:
    """The report with texts that fit into a line."""
    failure = report.failure and Failure.from_json(report.failure.to_json(_FAILURE_BYTES))
    return replace(report, progress=report.progress[:MAX_TEXT], failure=failure)


class Channel:
    """An authenticated connection between leader and worker."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        key: bytes,
        session: bytes,
        *,
        is_leader: bool,
    ) -> None:
        self._reader, self._writer, self._key, self._session = reader, writer, key, session
        self._own, self._others = (b"leader", b"worker") if is_leader else (b"worker", b"leader")
        self._sent = self._received = 0

    @classmethod
    async def opened(
        cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, *, is_leader: bool
    ) -> Channel:
        """The channel over a new connection. Refused; OSError.

        The other side has proved nothing before the first document from it.
        """
        own = secrets.token_hex(16).encode()
        writer.write(own + b"\n")
        line = await _line(reader, HELLO_BYTES)
        if not _NONCE.fullmatch(line):
            raise Refused("it did not begin with a nonce")
        nonces = (own, line[:-1]) if is_leader else (line[:-1], own)
        return cls(reader, writer, token.encode(), b"".join(nonces), is_leader=is_leader)

    def write(self, document: Document) -> None:
        """Send it as soon as the other side takes it."""
        text = to_line(document.to_document()).encode()
        self._writer.write(self._mac(self._own, self._sent, text) + b" " + text + b"\n")
        self._sent += 1

    async def send(self, document: Document) -> None:
        """OSError once the connection is gone."""
        self.write(document)
        await self._writer.drain()

    async def receive(self, kind: type[D], most_bytes: int = LINE_BYTES) -> D:
        """The next document. Refused for a line that is no member's; OSError once the connection is gone."""
        line = await _line(self._reader, most_bytes)
        mac, text = line[:_MAC_CHARACTERS], line[_MAC_CHARACTERS + 1 : -1]
        if not hmac.compare_digest(mac, self._mac(self._others, self._received, text)):
            raise Refused("it does not know the group's token")
        self._received += 1
        return kind.from_document(parse(text, most_bytes))

    def abort(self) -> None:
        """End the connection at once; whoever reads from it gets an OSError."""
        self._writer.transport.abort()

    def _mac(self, sender: bytes, number: int, text: bytes) -> bytes:
        covered = b"\n".join((sender, self._session, str(number).encode(), text))
        return hmac.new(self._key, covered, hashlib.sha256).hexdigest().encode()


async def _line(reader: asyncio.StreamReader, most_bytes: int) -> bytes:
    """A whole line, also one that is longer than the reader's limit.

    Refused where it is longer than `most_bytes`; ConnectionResetError at the end of the connection.
    """
    line, is_whole = b"", False
    while not is_whole:
        try:
            line += await reader.readuntil(b"\n")
            is_whole = True
        except asyncio.LimitOverrunError as overrun:
            line += await reader.readexactly(overrun.consumed)
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the connection was closed") from None
        if len(line) > most_bytes:
            raise Refused(f"it sent a line of more than {most_bytes} bytes")
    return line
