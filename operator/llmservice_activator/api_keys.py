"""API keys of services that may be at zero. Each comes from a Secret that the activator was granted `get` on."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kubeloop import log
from kubeloop.errors import Forbidden, KubeError, NotFound
from kubeloop.resources import Key, Resource
from kubeloop.transport import Transport
from llmservice_api.base import SecretKeyRef
from llmservice_runtime.access import split_keys

logger = logging.getLogger(__name__)

SECRET = Resource("", "v1", "secrets", "Secret")
CACHE_SECONDS = 60.0
"""Seconds after which keys are read again if they are needed."""
RETRY_SECONDS = 5.0
"""Seconds after which a failed read is repeated."""
MAX_BYTES = 2 * 2**20
"""Bytes of a response: a Secret has at most a MiB, as base64."""
READERS = 8
READ_SECONDS = 5.0
"""Seconds that a client waits for a read."""

_ACCOUNT = re.compile(r"system:serviceaccount:([a-z0-9-]{1,63}):([a-z0-9.-]{1,253})")
DOCS = "docs/serving/scale-to-zero.md"


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The keys, or `problem` with the cause and the remedy."""

    keys: frozenset[str]
    problem: str


NOT_READ = ApiKeys(frozenset(), "the Secret with the API keys was not read yet")


@dataclass(slots=True)
class _Entry:
    ref: SecretKeyRef
    found: ApiKeys = NOT_READ
    due: float = float("-inf")


class KeyReader:
    """Reads Secrets on demand. Keys are not logged and not part of messages."""

    def __init__(
        self,
        transport: Transport,
        changed: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called after a read with a new result."""
        self._transport, self._changed, self._clock = transport, changed, clock
        self._entries: dict[Key, _Entry] = {}
        self._wanted: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: dict[Key, asyncio.Event] = {}
        """Set while reads are requested."""

    def get(self, key: Key, ref: SecretKeyRef) -> ApiKeys:
        """The result of the last read; NOT_READ for a new reference."""
        entry = self._entries.get(key)
        if entry is None or entry.ref != ref:
            entry = self._entries[key] = _Entry(ref)
            self.request(key)
        return entry.found

    def request(self, key: Key) -> None:
        """Request a read, if the keys are older than a minute."""
        entry = self._entries.get(key)
        if entry is not None and key not in self._queued and self._clock() >= entry.due:
            self._queued[key] = asyncio.Event()
            self._wanted.put_nowait(key)

    async def renewed(self, key: Key) -> frozenset[str]:
        """Valid keys, for a client with an unknown key: read again if they are older than a minute."""
        self.request(key)
        if (is_read := self._queued.get(key)) is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_read.wait(), READ_SECONDS)
        entry = self._entries.get(key)
        return entry.found.keys if entry is not None else frozenset()

    def is_reading(self) -> bool:
        """Whether a requested read has not finished."""
        return bool(self._queued)

    def forget(self, key: Key) -> None:
        self._entries.pop(key, None)

    async def run(self) -> None:
        """Read on request; never returns."""
        async with asyncio.TaskGroup() as group:
            for _ in range(READERS):
                group.create_task(self._read_wanted())

    async def _read_wanted(self) -> None:
        while True:
            key = await self._wanted.get()
            entry = self._entries.get(key)
            try:
                if entry is not None:
                    await self._read(key, entry)
            finally:
                self._queued.pop(key).set()
            if self._entries.get(key) is not entry:
                self.request(key)  # the reference changed during the read

    async def _read(self, key: Key, entry: _Entry) -> None:
        before, ref = entry.found, entry.ref
        try:
            path = SECRET.path(key.namespace, ref.name)
            entry.found = keys_of(await self._transport.request("get", SECRET, path, max_bytes=MAX_BYTES), ref)
        except Forbidden as error:
            entry.found = ApiKeys(frozenset(), _forbidden(error, ref))
        except NotFound:
            entry.found = ApiKeys(frozenset(), f"there is no Secret {ref.name}; create it with API keys in {ref.key}")
        except KubeError as error:
            # The keys of an earlier read stay valid.
            logger.warning("cannot read the Secret with the API keys: %s", error, extra={log.KEY: key})
            if not before.keys:
                entry.found = ApiKeys(frozenset(), f"Secret {ref.name} cannot be read: {' '.join(str(error).split())}")
        entry.due = self._clock() + (RETRY_SECONDS if entry.found.problem else CACHE_SECONDS)
        if entry.found != before:
            if entry.found.problem:
                logger.warning("%s", entry.found.problem, extra={log.KEY: key})
            self._changed(key)


def keys_of(secret: Mapping[str, Any], ref: SecretKeyRef) -> ApiKeys:
    """The keys of a Secret, parsed as a server parses its key file."""
    data = secret.get("data")
    value = data.get(ref.key) if isinstance(data, Mapping) else None
    if not isinstance(value, str):
        return ApiKeys(frozenset(), f"Secret {ref.name} has no key {ref.key}; put the API keys there, one a line")
    try:
        found, problem = split_keys(base64.b64decode(value, validate=True))
        keys = frozenset(key.decode() for key in found)
    except UnicodeDecodeError:
        keys, problem = frozenset(), "it is not UTF-8"
    except (binascii.Error, ValueError):
        keys, problem = frozenset(), "it is not base64"
    if problem:
        return ApiKeys(frozenset(), f"key {ref.key} of Secret {ref.name} is of no use: {problem}; correct it")
    return ApiKeys(keys, "")


def _forbidden(error: Forbidden, ref: SecretKeyRef) -> str:
    account = _ACCOUNT.search(error.message)
    who = f"ServiceAccount {account[2]} of namespace {account[1]}" if account else "the activator's ServiceAccount"
    return (
        f"{who} may not get Secret {ref.name}, so requests cannot be checked while no replica serves; grant it with "
        f"the Role that `llmservice init` writes, see {DOCS}"
    )
