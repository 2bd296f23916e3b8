"""Pods by their address and labels of namespaces, as the API server says, kept for a short time."""

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

from llmservice_activator.admission import Labels, Source, Unidentified

logger = logging.getLogger(__name__)

NAMESPACE = Resource("", "v1", "namespaces", "Namespace")
KEPT = 10.0
"""Seconds that a pod is known by its address: so long may its successor have its rights."""
KEPT_ABSENT = 2.0
"""The same where there was none: an address may be in use before the API server knows it."""
KEPT_LABELS = 60.0
MOST = 10_000
"""Addresses that are kept, and namespaces."""
AT_ONCE, WAITING = 16, 512
"""Lookups; further ones are not begun."""
PATIENCE = 5.0
"""Seconds of a lookup, with its wait."""
PAGE = 100
"""Pods of an answer. Only pods with the host's network share an address, and those do not count."""
LARGEST = 16 * 2**20
"""Bytes of an answer."""

T = TypeVar("T")


class Sources:
    """Asks the API server for what is not known any more. Each question is asked once at a time."""

    def __init__(
        self, transport: Transport, namespaces: tuple[str, ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`namespaces`: those whose pods may be listed; none: all."""
        self._transport, self._namespaces = transport, namespaces
        self._pods: _Known[Source | None] = _Known(self._find, lambda pod: KEPT if pod else KEPT_ABSENT, clock)
        self._labels: _Known[Labels] = _Known(self._read_labels, lambda _: KEPT_LABELS, clock)

    async def pod(self, address: str) -> Source | None:
        """The pod that has this address; None where no pod that may be listed has it. Unidentified."""
        return await self._pods.get(address)

    async def namespace(self, name: str) -> Labels:
        """Its labels. Unidentified."""
        return await self._labels.get(name)

    async def _find(self, address: str) -> Source | None:
        found = []
        for namespace in self._namespaces or (None,):
            params = {"fieldSelector": f"status.podIP={address}", "limit": str(PAGE)}
            found += sources_of(
                await self._transport.request("list", POD, POD.path(namespace), params=params, max_bytes=LARGEST),
                address,
            )
        if len(found) > 1:
            raise Unidentified("several pods have its address")
        return found[0] if found else None

    async def _read_labels(self, name: str) -> Labels:
        namespace = await self._transport.request("get", NAMESPACE, NAMESPACE.path(None, name), max_bytes=LARGEST)
        metadata = namespace.get("metadata")
        return _labels(metadata.get("labels") if isinstance(metadata, Mapping) else None)


class _Known(Generic[T]):
    """Answers by question, each as long as it is kept; the oldest make room."""

    def __init__(
        self, ask: Callable[[str], Awaitable[T]], kept: Callable[[T], float], clock: Callable[[], float]
    ) -> None:
        self._ask, self._kept, self._clock = ask, kept, clock
        self._answers: OrderedDict[str, tuple[float, T]] = OrderedDict()
        """With the time until which they hold."""
        self._asking: dict[str, asyncio.Task[T]] = {}
        self._problem = ""
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def get(self, question: str) -> T:
        """Unidentified where there is no answer."""
        known = self._answers.get(question)
        if known is not None and self._clock() < known[0]:
            return known[1]
        task = self._asking.get(question)
        if task is None:
            if len(self._asking) >= WAITING:
                raise Unidentified("too many addresses are looked up")
            task = self._asking[question] = asyncio.create_task(self._asked(question))
            task.add_done_callback(_seen)
        return await asyncio.shield(task)  # a client that goes ends no lookup that others wait for

    async def _asked(self, question: str) -> T:
        try:
            async with asyncio.timeout(PATIENCE), self._turn:
                began = self._clock()
                answer = await self._ask(question)
        except TimeoutError:
            raise Unidentified("the API server does not answer in time") from None
        except KubeError as error:
            self._say(" ".join(str(error).split()))
            raise Unidentified("the API server refuses or does not answer; see the activator's log") from None
        finally:
            del self._asking[question]
        self._problem = ""
        self._answers.pop(question, None)
        self._answers[question] = began + self._kept(answer), answer
        while len(self._answers) > MOST:
            self._answers.popitem(last=False)
        return answer

    def _say(self, problem: str) -> None:
        """Once, not for each address."""
        if problem != self._problem:
            logger.warning("cannot find out who a client is: %s", problem)
            self._problem = problem


def _seen(task: asyncio.Task[T]) -> None:
    """Whoever waited for it may be gone."""
    if not task.cancelled():
        task.exception()


def sources_of(pods: Mapping[str, Any], address: str) -> list[Source]:
    """Of a list as the API server sent it: pods with an address of their own, which this one is, that have not ended.

    What is not as expected is no pod: nobody is admitted by it.
    """
    items = pods.get("items")
    return [
        source
        for source in (_source(item, address) for item in (items if isinstance(items, list) else ()))
        if source is not None
    ]


def _source(item: object, address: str) -> Source | None:
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
    return Source(namespace, _labels(metadata.get("labels")))


def _labels(found: object) -> Labels:
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, Mapping) else {}
