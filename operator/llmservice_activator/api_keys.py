"""API keys of services that may be at zero, each from the one Secret that its namespace's owner granted `get` on."""

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
from llmservice_api.scalars import SecretKeyRef
from llmservice_runtime.access import split_keys

logger = logging.getLogger(__name__)

SECRET = Resource("", "v1", "secrets", "Secret")
KEPT = 60.0
"""Seconds after which they are read again where they are wanted."""
AGAIN = 5.0
"""The same after a read that failed."""
LARGEST = 2 * 2**20
"""Bytes of an answer: a Secret has a MiB at most, as base64."""
READERS = 8
PATIENCE = 5.0
"""Seconds that a client waits for a read."""

_ACCOUNT = re.compile(r"system:serviceaccount:([a-z0-9-]{1,63}):([a-z0-9.-]{1,253})")
DOCS = "docs/serving/scale-to-zero.md"


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """What was found; no keys where `problem` says why, with the remedy."""

    keys: frozenset[str]
    problem: str


NOT_READ = ApiKeys(frozenset(), "the Secret with the API keys was not read yet")


@dataclass(slots=True)
class _Entry:
    ref: SecretKeyRef
    found: ApiKeys = NOT_READ
    due: float = float("-inf")


class KeyReader:
    """Reads Secrets when they are wanted. Keys are in no log and no message."""

    def __init__(
        self,
        transport: Transport,
        changed: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called after a read that found something else than the one before."""
        self._transport, self._changed, self._clock = transport, changed, clock
        self._entries: dict[Key, _Entry] = {}
        self._wanted: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: dict[Key, asyncio.Event] = {}
        """Set when they are read."""

    def get(self, key: Key, ref: SecretKeyRef) -> ApiKeys:
        """As they were read last; of another reference than before none were."""
        entry = self._entries.get(key)
        if entry is None or entry.ref != ref:
            entry = self._entries[key] = _Entry(ref)
            self.want(key)
        return entry.found

    def want(self, key: Key) -> None:
        """Have them read where they are older than a minute."""
        entry = self._entries.get(key)
        if entry is not None and key not in self._queued and self._clock() >= entry.due:
            self._queued[key] = asyncio.Event()
            self._wanted.put_nowait(key)

    async def renewed(self, key: Key) -> frozenset[str]:
        """Valid ones, for a client whose key was unknown: read again where they are older than a minute."""
        self.want(key)
        if (is_read := self._queued.get(key)) is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_read.wait(), PATIENCE)
        entry = self._entries.get(key)
        return entry.found.keys if entry is not None else frozenset()

    def is_reading(self) -> bool:
        """Whether some that are wanted are not read yet."""
        return bool(self._queued)

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._entries.pop(key, None)

    async def run(self) -> None:
        """Read what is wanted; never returns."""
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
                self.want(key)  # another reference, while this one was read

    async def _read(self, key: Key, entry: _Entry) -> None:
        before, ref = entry.found, entry.ref
        try:
            path = SECRET.path(key.namespace, ref.name)
            entry.found = keys_of(await self._transport.request("get", SECRET, path, max_bytes=LARGEST), ref)
        except Forbidden as error:
            entry.found = ApiKeys(frozenset(), _forbidden(error, ref))
        except NotFound:
            entry.found = ApiKeys(frozenset(), f"there is no Secret {ref.name}; create it with API keys in {ref.key}")
        except KubeError as error:
            # What was read before still holds.
            logger.warning("cannot read the Secret with the API keys: %s", error, extra={log.KEY: key})
            if not before.keys:
                entry.found = ApiKeys(frozenset(), f"Secret {ref.name} cannot be read: {' '.join(str(error).split())}")
        entry.due = self._clock() + (AGAIN if entry.found.problem else KEPT)
        if entry.found != before:
            if entry.found.problem:
                logger.warning("%s", entry.found.problem, extra={log.KEY: key})
            self._changed(key)


def keys_of(secret: Mapping[str, Any], ref: SecretKeyRef) -> ApiKeys:
    """Those of a Secret as the API server sent it, as a server parses its file of them."""
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
