"""Handles one request: answers it, forwards it, or holds and then forwards it."""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from kubeloop import log
from kubeloop.resources import Key
from llmservice_api.holding import LastUse
from llmservice_runtime import access
from llmservice_runtime.contract import ACTIVATOR_PATH

from llmservice_activator.holding import answer, check
from llmservice_activator.holding.answer import Answer, Answered
from llmservice_activator.holding.check import NeedsPod
from llmservice_activator.holding.client import Client, Stalled
from llmservice_activator.holding.forward import BufferedBody, NotConnected, PodFailed, StreamedBody, Upload, forward
from llmservice_activator.holding.interface import Admits, Reason, Renews, RequestMetrics
from llmservice_activator.holding.limits import Entry, Ledger, Limits
from llmservice_activator.holding.service import Service, SlotQueue, Waiter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """State that all requests share."""

    session: aiohttp.ClientSession
    ledger: Ledger
    slots: SlotQueue[Waiter]
    wake: Callable[[Key], None]
    held_by_others: Callable[[Key], Awaitable[int]]
    """Requests of a service that other activators hold."""
    release_waiting: Callable[[], None]
    """Release requests that a slot is free for."""
    count: RequestMetrics
    limits: Limits
    admits: Admits
    renews: Renews
    checking: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """By namespace: one body is checked at a time, so that no namespace blocks the others."""
    slice_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for each slice of a check."""


class Exchange:
    def __init__(self, shared: Shared, service: Service, request: web.BaseRequest) -> None:
        self._shared, self._service = shared, service
        self._client = Client(
            request, shared.limits, any_origin=service.target.any_origin, root_path=service.target.root_path
        )
        self._arrived = time.monotonic()
        self._held_seconds = 0.0

    async def run(self) -> web.StreamResponse:
        """Handle the request; returns the response, already written."""
        client = self._client
        try:
            return await self._counted()
        except asyncio.CancelledError:
            self._lost(Reason.CLIENT_GONE)
            raise
        except ConnectionError:
            self._lost(Reason.CLIENT_GONE)
            raise asyncio.CancelledError from None  # what aiohttp expects for a disconnected client
        except Stalled:
            self._lost(Reason.CLIENT_STALLED)
            client.abort()
            raise asyncio.CancelledError from None

    async def _counted(self) -> web.StreamResponse:
        key, client = self._service.key, self._client
        try:
            response = await self._answered_or_forwarded()
        except Answered as answered:
            response = await client.answer(answered.answer)
            self._shared.count.answered(key, answered.answer.reason)
        except PodFailed as error:
            logger.warning("a replica failed while it had a request: %s", error, extra={log.KEY: key})
            response = client.cut() if client.is_relayed else await client.answer(answer.POD_FAILED)
            self._lost(Reason.POD_FAILED)
        except (ConnectionError, Stalled):
            raise
        except Exception:  # an error of one request does not affect others
            logger.exception("a request failed", extra={log.KEY: key})
            response = client.cut() if client.is_relayed else await client.answer(answer.INTERNAL)
            self._lost(Reason.INTERNAL)
        else:
            self._shared.count.forwarded(key, self._held_seconds)
        return response

    async def _answered_or_forwarded(self) -> web.StreamResponse:
        head, service = self._client.head, self._service
        if head.path != ACTIVATOR_PATH:
            await self._raise_not_admitted()
        known, found = service.target.keys, check.before_pods(head, service.target, service.keys)
        if found is answer.UNAUTHORIZED:
            renewed = await self._shared.renews(service.key)
            if renewed != known:
                found = check.before_pods(head, service.target, access.parse_keys("\n".join(renewed).encode()))
        _raise(found)
        streamed = StreamedBody(self._client.body(), is_empty=not self._client.request.body_exists)
        if self._shared.slots.take(service.key):
            try:
                return await self._forward(streamed)
            except NotConnected:
                pass  # the bytes read so far are kept
            finally:
                self._give_back()
        _raise(check.without_pod(head, service.target))
        return await self._hold(streamed)

    async def _hold(self, streamed: StreamedBody) -> web.StreamResponse:
        key, ledger = self._service.key, self._shared.ledger
        entry = ledger.enter(key, await self._shared.held_by_others(key))
        try:
            body = await self._received(entry, streamed)
            async with self._shared.checking[key.namespace]:
                verdict = await check.run_in_slices(
                    check.with_body(self._client.head, body, self._service.target), self._shared.slice_lock
                )
            if isinstance(verdict, Answer):
                raise Answered(verdict)
            waiter, upload = Waiter(self._service, entry, self._arrived), BufferedBody(body, entry)
            del body  # leaves the upload's reference as the only one
            return await self._until_forwarded(waiter, upload, verdict)
        finally:
            entry.close()

    async def _received(self, entry: Entry, streamed: StreamedBody) -> bytes:
        spooled = io.BytesIO()
        try:
            async with asyncio.timeout(self._service.target.timeout_seconds):
                async for piece in streamed.whole():
                    self._raise_refusal()
                    entry.add(len(piece))
                    spooled.write(piece)
        except TimeoutError:
            raise Answered(answer.SLOW_BODY) from None
        return spooled.getvalue()

    async def _until_forwarded(self, waiter: Waiter, upload: BufferedBody, verdict: NeedsPod) -> web.StreamResponse:
        key, is_again = self._service.key, False
        try:
            while True:
                self._enter(waiter, is_again)
                await self._released(waiter, verdict)
                try:
                    return await self._forward(upload)
                except NotConnected:
                    waiter.has_slot, is_again = False, True
                    self._give_back()
        finally:
            self._service.waiting.pop(waiter, None)
            self._shared.slots.leave(key, waiter)
            if waiter.has_slot:
                self._give_back()

    def _enter(self, waiter: Waiter, is_again: bool) -> None:
        key = self._service.key
        waiter.entry.hold()
        self._service.waiting[waiter] = None
        self._shared.slots.enter(key, waiter, first=is_again)
        self._shared.release_waiting()
        if not waiter.has_slot:
            self._shared.wake(key)
            if not is_again:
                self._shared.count.held(key)
                self._service.last_held = LastUse(time.time(), self._client.head.method, self._client.head.path)

    async def _released(self, waiter: Waiter, verdict: NeedsPod) -> None:
        """Wait for a slot. Answered where the request is refused or timed out."""
        while not waiter.has_slot:
            self._raise_refusal()
            seconds = self._service.target.timeout_seconds
            left = self._arrived + seconds - time.monotonic()
            if left <= 0:
                raise Answered(answer.timed_out(seconds))
            waiter.changed.clear()
            if verdict.streams:
                left = min(left, self._shared.limits.comment_seconds)
            if not await _happened(waiter.changed.wait(), left) and verdict.streams:
                await self._client.comment()
            self._held_seconds = time.monotonic() - self._arrived

    async def _forward(self, upload: Upload) -> web.StreamResponse:
        return await forward(self._shared.session, self._service.pods, self._client, upload)

    def _give_back(self) -> None:
        self._shared.slots.done(self._service.key)
        self._shared.release_waiting()

    async def _raise_not_admitted(self) -> None:
        refusal = await self._shared.admits(self._service.target, self._client.request.remote or "")
        if refusal is not None:
            raise Answered(answer.not_admitted(refusal))

    def _raise_refusal(self) -> None:
        if self._service.target.refusal is not None:
            raise Answered(answer.refused(self._service.target.refusal))

    def _lost(self, reason: Reason) -> None:
        self._shared.count.lost(self._service.key, reason)


def _raise(given: Answer | None) -> None:
    if given is not None:
        raise Answered(given)


async def _happened(awaited: Awaitable[object], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await awaited
    except TimeoutError:
        return False
    return True
