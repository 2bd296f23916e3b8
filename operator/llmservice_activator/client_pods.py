"""Pods by address and labels of namespaces, read from the API server and cached for a short time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from kubeloop.errors import KubeError
from kubeloop.resources import POD, Resource
from kubeloop.transport import Transport

from llmservice_activator.admission import ClientPod, Labels, Unidentified

logger = logging.getLogger(__name__)

NAMESPACE = Resource("", "v1", "namespaces", "Namespace")
POD_SECONDS = 10.0
"""Seconds that the pod of an address is cached; a later pod with the address has its access that long."""
ABSENT_SECONDS = 2.0
"""Seconds for an address without a pod: it may be in use before the API server knows it."""
LABELS_SECONDS = 60.0
MAX_CACHED = 10_000
"""Cached addresses, and cached namespaces."""
MAX_RUNNING, MAX_WAITING = 16, 512
"""Running and waiting lookups; further ones are refused."""
LOOKUP_SECONDS = 5.0
"""Seconds of a lookup, including its wait."""
PAGE = 100
"""Pods of a response. Only pods with host networking share an address, and those do not count."""
MAX_BYTES = 16 * 2**20
"""Bytes of a response."""

T = TypeVar("T")


class ClientPods:
    """Reads and caches; concurrent lookups of the same value share one request."""

    def __init__(
        self, transport: Transport, namespaces: tuple[str, ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`namespaces`: those whose pods may be listed; empty: all."""
        self._transport, self._namespaces = transport, namespaces
        self._pods: _Cache[ClientPod | None] = _Cache(
            self._find, lambda pod: POD_SECONDS if pod else ABSENT_SECONDS, clock
        )
        self._labels: _Cache[Labels] = _Cache(self._read_labels, lambda _: LABELS_SECONDS, clock)

    async def pod(self, address: str) -> ClientPod | None:
        """The pod with this address; None where no pod that may be listed has it. Unidentified."""
        return await self._pods.get(address)

    async def namespace(self, name: str) -> Labels:
        """The labels of a namespace. Unidentified."""
        return await self._labels.get(name)

    async def _find(self, address: str) -> ClientPod | None:
        found = []
        for namespace in self._namespaces or (None,):
            params = {"fieldSelector": f"status.podIP={address}", "limit": str(PAGE)}
            found += client_pods_of(
                await self._transport.request("list", POD, POD.path(namespace), params=params, max_bytes=MAX_BYTES),
                address,
            )
        if len(found) > 1:
            raise Unidentified("several pods have its address")
        return found[0] if found else None

    async def _read_labels(self, name: str) -> Labels:
        namespace = await self._transport.request("get", NAMESPACE, NAMESPACE.path(None, name), max_bytes=MAX_BYTES)
        metadata = namespace.get("metadata")
        return _labels(metadata.get("labels") if isinstance(metadata, Mapping) else None)


class _Cache(Generic[T]):
    """A bounded cache of lookups, each with its own expiry; the oldest are evicted."""

    def __init__(
        self, ask: Callable[[str], Awaitable[T]], kept: Callable[[T], float], clock: Callable[[], float]
    ) -> None:
        self._ask, self._kept, self._clock = ask, kept, clock
        self._answers: OrderedDict[str, tuple[float, T]] = OrderedDict()
        """Values with their expiry."""
        self._asking: dict[str, asyncio.Task[T]] = {}
        self._problem = ""
        self._running = asyncio.Semaphore(MAX_RUNNING)

    async def get(self, question: str) -> T:
        """The value; Unidentified where the lookup fails."""
        known = self._answers.get(question)
        if known is not None and self._clock() < known[0]:
            return known[1]
        task = self._asking.get(question)
        if task is None:
            if len(self._asking) >= MAX_WAITING:
                raise Unidentified("too many addresses are looked up")
            task = self._asking[question] = asyncio.create_task(self._asked(question))
            task.add_done_callback(_seen)
        return await asyncio.shield(task)  # a disconnected client cancels no lookup that others wait for

    async def _asked(self, question: str) -> T:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS), self._running:
                began = self._clock()
                answer = await self._ask(question)
        except TimeoutError:
            raise Unidentified("the API server does not answer in time") from None
        except KubeError as error:
            self._log_problem(" ".join(str(error).split()))
            raise Unidentified("the API server refuses or does not answer; see the activator's log") from None
        finally:
            del self._asking[question]
        self._problem = ""
        self._answers.pop(question, None)
        self._answers[question] = began + self._kept(answer), answer
        while len(self._answers) > MAX_CACHED:
            self._answers.popitem(last=False)
        return answer

    def _log_problem(self, problem: str) -> None:
        """Log a problem once, not for each address."""
        if problem != self._problem:
            logger.warning("cannot find out who a client is: %s", problem)
            self._problem = problem


def _seen(task: asyncio.Task[T]) -> None:
    """Retrieve the result: its waiters may be gone."""
    if not task.cancelled():
        task.exception()


def client_pods_of(pods: Mapping[str, Any], address: str) -> list[ClientPod]:
    """Pods in a list that have this address as their own and have not ended.

    Malformed items are skipped: they admit nobody.
    """
    items = pods.get("items")
    return [
        source
        for source in (_client_pod(item, address) for item in (items if isinstance(items, list) else ()))
        if source is not None
    ]


def _client_pod(item: object, address: str) -> ClientPod | None:
    if not isinstance(item, Mapping):
        return None
    parts = (item.get(name) for name in ("metadata", "spec", "status"))
    metadata, spec, status = (part if isinstance(part, Mapping) else {} for part in parts)
    namespace = metadata.get("namespace")
    if (
        not isinstance(namespace, str)
        or status.get("podIP") != address
        or spec.get("hostNetwork")
        or status.get("phase") in ("Succeeded", "Failed")
    ):
        return None
    return ClientPod(namespace, _labels(metadata.get("labels")))


def _labels(found: object) -> Labels:
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, Mapping) else {}
