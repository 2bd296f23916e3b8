"""Activators that can hold requests, from the EndpointSlices of their Service."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kubeloop.errors import Forbidden, KubeError, NotFound
from kubeloop.informer import Informer
from kubeloop.resources import ENDPOINT_SLICE, Resource
from kubeloop.transport import Transport
from llmservice_api.holding import SERVICE_NAME_LABEL, Activator, Activators

logger = logging.getLogger(__name__)

MOST = 64
"""Endpoints that are read of one slice."""
LONGEST_NODE = 253
GRACE_SECONDS = 15.0
"""Seconds for which the last activator may be missing: each service at zero would otherwise start after a short loss of
a node. Longer than an activator takes to become ready again."""
TRIES = 3
"""Refusals in a row after which there are no activators: a starting API server may refuse for some seconds."""


class ActivatorsWatch:
    """Watches the EndpointSlices of a Service; `changed` is called whenever `known` changes."""

    def __init__(
        self, transport: Transport, name: str, namespace: str, changed: Callable[[], None], grace: float = GRACE_SECONDS
    ) -> None:
        selector = f"{SERVICE_NAME_LABEL}={name}"
        self._informer = Informer(transport, ENDPOINT_SLICE, namespace, selector, self, report=self._reported)
        self._changed, self._grace = changed, grace
        self._slices: dict[tuple[str, str], tuple[Activator, ...]] = {}
        self._is_synced = False
        self._refusals = 0
        self._known: Activators = None
        self._away: asyncio.TimerHandle | None = None

    def known(self) -> Activators:
        """The activators; the same object while the value is unchanged."""
        return self._known

    async def run(self) -> None:
        """Watch; never returns."""
        await self._informer.run()

    def updated(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        self._slices[_where(obj)] = tuple(ready(obj))
        self._update_known()

    def deleted(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        self._slices.pop(_where(obj), None)
        self._update_known()

    def listed(
        self, resource: Resource, namespace: str | None, uids: Mapping[tuple[str, str], str], version: str
    ) -> None:
        self._slices = {where: found for where, found in self._slices.items() if where in uids}
        self._is_synced = True
        self._update_known()

    def _reported(self, error: KubeError | None) -> None:
        if error is None:
            self._refusals = 0
        elif isinstance(error, Forbidden | NotFound):
            self._refusals += 1
            if self._refusals == TRIES:
                logger.warning("no service can be at zero, since the activators cannot be listed: %s", error)
                self._is_synced = True
        self._update_known()

    def _update_known(self) -> None:
        """Update `known`: at once while there are activators; that there is none only once it lasts."""
        if not self._is_synced:
            return
        seen = {each for some in self._slices.values() for each in some}
        found = tuple(sorted(seen)) if self._refusals < TRIES else ()
        if found:
            self._stop_waiting()
            if found != self._known:
                self._take(found)
        elif self._known != ():
            if self._known is not None:
                self._take(None)
            if self._away is None:
                self._away = asyncio.get_running_loop().call_later(self._grace, self._are_gone)

    def _are_gone(self) -> None:
        self._away = None
        logger.warning("no activator is ready: services at zero get a replica")
        self._take(())

    def _stop_waiting(self) -> None:
        if self._away is not None:
            self._away.cancel()
            self._away = None

    def _take(self, known: Activators) -> None:
        self._known = known
        self._changed()


def ready(slice_: Mapping[str, Any]) -> Iterator[Activator]:
    """Endpoints of a slice that are ready and not terminating. Slices are untrusted."""
    endpoints = slice_.get("endpoints")
    for endpoint in endpoints[:MOST] if isinstance(endpoints, list) else ():
        found = _activator(endpoint) if isinstance(endpoint, Mapping) else None
        if found is not None:
            yield found


def _activator(endpoint: Mapping[str, Any]) -> Activator | None:
    conditions, addresses = endpoint.get("conditions"), endpoint.get("addresses")
    states = conditions if isinstance(conditions, Mapping) else {}
    # In the API, absent means ready.
    if states.get("ready") is False or states.get("terminating") is True:
        return None
    given = addresses[0] if isinstance(addresses, list) and addresses else None
    if not isinstance(given, str) or "%" in given:  # a zone may be any text, and the address goes into a URL
        return None
    try:
        address = str(ipaddress.ip_address(given))
    except ValueError:
        return None
    node = endpoint.get("nodeName")
    return Activator(address, node if isinstance(node, str) and len(node) <= LONGEST_NODE else "")


def _where(obj: Mapping[str, Any]) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]
