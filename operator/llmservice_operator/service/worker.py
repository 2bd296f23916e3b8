"""The tasks that take keys from the queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from kubeloop.errors import KubeError, NotLeader
from kubeloop.log import object_logger
from kubeloop.resources import Key
from llmservice_api.reasons import Reason

from llmservice_operator.service.containment import Attempt, Part
from llmservice_operator.service.context import Context
from llmservice_operator.service.execute import report_unhandled
from llmservice_operator.service.reconcile import Next, reconcile
from llmservice_operator.service.watch import PARENT, priority_of_service

logger = logging.getLogger(__name__)

WORKERS = 8
ASK_AGAIN = 0.2
"""Seconds until work that a death interrupted is asked for again while others wait."""

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
                with self._ctx.errors.contained(Part.BOOKKEEPING, key, "of what is in work") as attempt:
                    await self._work_on(key)
                if attempt.failed:
                    await self._fail(key, attempt)
            finally:
                self._ctx.queue.done(key)

    async def _work_on(self, key: Key) -> None:
        in_work = self._ctx.in_work
        if self._ctx.is_acting():
            if in_work.quarantined(key):
                await self._quarantine(key)
            elif not in_work.may_begin("reconcile", key):
                self._ctx.queue.add_after(key, ASK_AGAIN)
            else:
                async with in_work.during("reconcile", key):
                    await self._handle(key)
        if not self._ctx.is_acting():  # before, or meanwhile
            self._ctx.forget(key)
            self._ctx.queue.succeeded(key)

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
        started = time.perf_counter()
        then: Next | None = None
        with self._ctx.errors.contained(Part.RECONCILE, key) as attempt:
            then = await self._attempt(key)
        result = "error" if then is None else "refused" if then.failure else "ok"
        self._ctx.metrics.reconcile_seconds.labels(result).observe(time.perf_counter() - started)
        if attempt.failed:
            await self._fail(key, attempt)
        elif then is not None:
            self._plan(key, then)

    async def _fail(self, key: Key, attempt: Attempt) -> None:
        await self._report(Reason.INTERNAL_ERROR, f"Evidence: {attempt.place}.", key)
        self._retry(key, "internal error")

    async def _attempt(self, key: Key) -> Next | None:
        """None where the API server is why there is no answer: the key is tried again, or is another process's."""
        try:
            return await self._reconcile(key, self._ctx)
        except NotLeader as error:
            object_logger(logger, key).warning("%s", error)
        except KubeError as error:
            self._retry(key, str(error))
        return None

    async def _quarantine(self, key: Key) -> None:
        """Nothing of it is evaluated, and none of its pods is asked."""
        self._ctx.state_poller.forget(key)
        if await self._report(Reason.QUARANTINED, "", key):
            self._ctx.queue.succeeded(key)
        else:
            self._retry(key, "the status could not be written")

    async def _report(self, reason: Reason, evidence: str, key: Key) -> bool:
        """Whether the status has it. Others no longer wait for an update of this service: it may never end."""
        with self._ctx.errors.contained(Part.BOOKKEEPING, key, "of updates"):
            self._ctx.report_update(key, None)
        is_written = False
        with self._ctx.errors.contained(Part.BOOKKEEPING, key, "of the status"):
            log = object_logger(logger, key)
            try:
                await report_unhandled(reason, evidence, key, self._ctx, log)
                is_written = True
            except KubeError as error:
                log.warning("cannot write the status: %s", error)
        return is_written

    def _plan(self, key: Key, then: Next) -> None:
        if then.failure is not None:
            self._retry(key, then.failure)
            return
        if not self._ctx.errors.has_failed_lately(key):
            self._ctx.queue.succeeded(key)
        if then.after == 0:  # its status is not written yet, so it goes on before those that are well
            self._ctx.queue.add_after(key, 0, priority_of_service(self._ctx.cache.get(PARENT, *key)))
        elif then.after is not None:
            self._ctx.queue.add_after(key, then.after)

    def _retry(self, key: Key, why: str) -> None:
        self._ctx.metrics.retries.inc()
        delay = self._ctx.queue.failed(key)
        object_logger(logger, key).info("trying again in %.1f s: %s", delay, why)
