"""Reads configurations of models in a separate process, which is killed if one takes too long.

A config.json comes from any repository and may be slow to read, so the event loop never reads one. The process is
started with the first configuration, kept, and restarted after it was killed. It reads one at a time, round-robin over
namespaces: configurations of one tenant do not delay those of others, evict their answers, or block the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Protocol

from kubeloop.resources import Key
from llmservice_planner.model import reader_process, reading
from llmservice_planner.model.reader_process import HEAD
from llmservice_planner.model.reading import Stopped

logger = logging.getLogger(__name__)

CPU_SECONDS = 0.5
"""Seconds of CPU for one configuration; usual ones take less than a hundredth of a second."""
MEMORY = 128 * 2**20
"""Bytes of address space of the whole process; it starts with 22 MiB."""
WALL_SECONDS = 30.0
"""Seconds for one configuration, if the CPU is busy."""
WAIT_SECONDS = 0.5
"""Seconds that a reconcile waits for an answer; later the service is queued again."""
MAX_WAITING = 4
"""Reconciles that wait at the same time, one per namespace: each occupies one of eight workers."""
MAX_CACHED = 1024
"""Cached answers of at most `reading.LARGEST_ANSWER` bytes. The oldest one of the namespace with the most is
evicted."""


class Configs(Protocol):
    """The reader's interface for reconcile."""

    async def read(self, key: Key, document: str) -> bytes | None:
        """The answer; None where it takes longer, and the key is queued once it is there."""


class ReaderUnavailable(RuntimeError):
    """The process could not be started, or is defective; independent of the configuration."""


class ConfigReader:
    def __init__(
        self,
        *,
        wake: Callable[[Key], None] = lambda key: None,
        observe: Callable[[str], None] = lambda result: None,
        seconds: float = CPU_SECONDS,
        wall: float = WALL_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        command: Sequence[str] = (sys.executable, "-B", "-m", reader_process.__name__),
    ) -> None:
        self.wake = wake
        self._observe = observe
        self._command = (*command, str(seconds), str(MEMORY))
        self._wall = wall
        self._patience = wait_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._known: OrderedDict[bytes, tuple[str, bytes]] = OrderedDict()
        """The namespace that an answer counts for, and the answer."""
        self._held: Counter[str] = Counter()
        self._asked: dict[bytes, asyncio.Future[bytes]] = {}
        self._waiting: OrderedDict[str, OrderedDict[bytes, str]] = OrderedDict()
        """By namespace; a document that several wait for is in each queue."""
        self._looking: set[str] = set()
        self._failed: dict[Key, BaseException] = {}
        """Errors for keys that were queued because of them."""
        self._pump: asyncio.Task[None] | None = None

    async def read(self, key: Key, document: str) -> bytes | None:
        """See Configs. ReaderUnavailable where the process cannot be started."""
        digest = sha256(document.encode(errors="surrogatepass")).digest()
        answer = self._recall(key.namespace, digest)
        if answer is not None:
            return answer
        if key in self._failed:
            raise self._failed.pop(key)
        asked = self._ask(key.namespace, digest, document)
        if key.namespace not in self._looking and len(self._looking) < MAX_WAITING:
            self._looking.add(key.namespace)
            try:
                done, _ = await asyncio.wait({asked}, timeout=self._patience)
            finally:
                self._looking.discard(key.namespace)
            if done:
                return None if asked.cancelled() else asked.result()
        asked.add_done_callback(partial(self._queue_key, key))
        return None

    def _queue_key(self, key: Key, asked: asyncio.Future[bytes]) -> None:
        if asked.cancelled():
            return
        error = asked.exception()
        if error is not None:
            self._failed[key] = error
        self.wake(key)

    async def close(self) -> None:
        """End the process; unread documents stay unread."""
        if self._pump is not None:
            self._pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pump
        await self._end()

    def _ask(self, namespace: str, digest: bytes, document: str) -> asyncio.Future[bytes]:
        asked = self._asked.get(digest)
        if asked is None:
            asked = self._asked[digest] = asyncio.get_running_loop().create_future()
            asked.add_done_callback(lambda one: one.cancelled() or one.exception())  # possibly nobody waits any more
        self._waiting.setdefault(namespace, OrderedDict()).setdefault(digest, document)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._work(), name="configurations")
        return asked

    async def _work(self) -> None:
        """Read what is queued, one document of each namespace in turn."""
        while self._waiting:
            namespace, mine = self._waiting.popitem(last=False)
            digest, document = mine.popitem(last=False)
            if mine:
                self._waiting[namespace] = mine
            asked = self._asked.get(digest)
            if asked is None:  # already read for another namespace
                if mine:
                    self._waiting.move_to_end(namespace, last=False)
                continue
            try:
                self._remember(namespace, digest, answer := await self._answer(document))
            except Exception as error:  # noqa: BLE001  # any error affects this document only, which is tried again
                asked.set_exception(_unavailable(error))
                with contextlib.suppress(Exception):
                    await self._end()
            else:
                self._failed.clear()
                asked.set_result(answer)
            finally:
                del self._asked[digest]
                asked.cancel()

    def _recall(self, namespace: str, digest: bytes) -> bytes | None:
        """A cached answer counts for the namespace with the fewest of those that asked for it."""
        found = self._known.get(digest)
        if found is None:
            return None
        owner, answer = found
        self._known.move_to_end(digest)
        if self._held[namespace] < self._held[owner]:
            self._forget_owner(owner)
            self._known[digest] = (namespace, answer)
            self._held[namespace] += 1
        return answer

    def _remember(self, namespace: str, digest: bytes, answer: bytes) -> None:
        self._known[digest] = (namespace, answer)
        self._held[namespace] += 1
        if len(self._known) > MAX_CACHED:
            most = max(self._held, key=self._held.__getitem__)
            del self._known[next(each for each, (owner, _) in self._known.items() if owner == most)]
            self._forget_owner(most)

    def _forget_owner(self, namespace: str) -> None:
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]

    async def _answer(self, document: str) -> bytes:
        found = await self._try(document)
        if found is Stopped.DIED:  # possibly for another cause: an idle process may be killed for its memory, too
            found = await self._try(document)
        if isinstance(found, bytes):
            self._observe("read")
            return found
        logger.warning("reading a model's configuration was stopped (%s); a new process reads the next one", found)
        self._observe(found)
        return reading.stopped(found)

    async def _try(self, document: str) -> bytes | Stopped:
        process = self._process or await self._start()
        try:
            async with asyncio.timeout(self._wall):
                return await _exchange(process, document)
        except TimeoutError:
            why = Stopped.TIME
        except (OSError, asyncio.IncompleteReadError, ValueError):
            why = await _cause(process)
        await self._end()
        return why

    async def _start(self) -> asyncio.subprocess.Process:
        environment = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            limit=reader_process.LARGEST_FRAME,
        )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _unavailable(error: Exception) -> ReaderUnavailable:
    if isinstance(error, OSError | RuntimeError):
        made = ReaderUnavailable(f"the process that reads configurations did not start: {error}")
    else:
        made = ReaderUnavailable(f"reading a configuration failed: {type(error).__name__}")
    made.__cause__ = error
    return made


async def _exchange(process: asyncio.subprocess.Process, document: str) -> bytes:
    """The answer, which `reading.architecture` accepts; ValueError otherwise."""
    assert process.stdin is not None
    assert process.stdout is not None
    frame = document.encode(errors="surrogatepass")
    process.stdin.write(HEAD.pack(len(frame)) + frame)
    await process.stdin.drain()
    (length,) = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
    if length > reading.LARGEST_ANSWER:
        raise ValueError("the answer is larger than answers are")
    answer = await process.stdout.readexactly(length)
    reading.architecture(answer)
    return answer


async def _cause(process: asyncio.subprocess.Process) -> Stopped:
    try:
        async with asyncio.timeout(1):
            code = await process.wait()
    except TimeoutError:
        return Stopped.DIED
    if code == reader_process.OUT_OF_MEMORY:
        return Stopped.MEMORY
    return Stopped.CPU if code == -signal.SIGPROF else Stopped.DIED
