"""The tasks that take keys from the queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from llmservice_operator.api.service import Key
from llmservice_operator.control.context import Context
from llmservice_operator.control.log import object_logger
from llmservice_operator.control.reconcile import Next, reconcile
from llmservice_operator.kube.errors import KubeError, NotLeader

logger = logging.getLogger(__name__)

WORKERS = 8

Reconcile = Callable[[Key, Context], Awaitable[Next]]


class Workers:
    """A few tasks that share one queue, until they are asked to stop."""

    def __init__(self, ctx: Context, *, count: int = WORKERS, reconcile: Reconcile = reconcile) -> None:
        self._ctx = ctx
        self._count = count
        self._reconcile = reconcile
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop`; what is in work then is finished first."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._work(), name=f"worker {number}")

    def stop(self) -> None:
        """Take no further key."""
        self._stopping.set()

    async def _work(self) -> None:
        while (key := await self._next()) is not None:
            try:
                if self._ctx.is_ours(key):
                    await self._handle(key)
                if not self._ctx.is_ours(key):  # before, or meanwhile
                    self._ctx.forget(key)
                    self._ctx.queue.succeeded(key)
            finally:
                self._ctx.queue.done(key)

    async def _next(self) -> Key | None:
        """A key, or None when it is time to stop."""
        getting = asyncio.ensure_future(self._ctx.queue.get())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({getting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not self._stopping.is_set():
                return getting.result()
            if getting.done():  # too late for this one: the next leader looks at every key anyway
                self._ctx.queue.done(getting.result())
                self._ctx.queue.add(getting.result())
            return None
        finally:
            stopping.cancel()
            if not getting.done():
                getting.cancel()

    async def _handle(self, key: Key) -> None:
        log = object_logger(logger, key)
        started = time.perf_counter()
        result = "error"
        try:
            then = await self._reconcile(key, self._ctx)
            result = "refused" if then.failure else "ok"
        except NotLeader as error:
            log.warning("%s", error)
            return
        except KubeError as error:
            self._retry(key, str(error))
            return
        except Exception:  # a bug in one service's path must not stop the others
            log.exception("unexpected error")
            self._retry(key, "unexpected error")
            return
        finally:
            self._ctx.metrics.reconcile_seconds.labels(result).observe(time.perf_counter() - started)
        self._plan(key, then)

    def _plan(self, key: Key, then: Next) -> None:
        if then.failure is not None:
            self._retry(key, then.failure)
            return
        self._ctx.queue.succeeded(key)
        if then.after is not None:
            self._ctx.queue.add_after(key, then.after)

    def _retry(self, key: Key, why: str) -> None:
        self._ctx.metrics.retries.inc()
        delay = self._ctx.queue.failed(key)
        object_logger(logger, key).info("trying again in %.1f s: %s", delay, why)
