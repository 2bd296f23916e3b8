"""Allocates a port at the activators for each service that may be at zero, unique in one installation.

A Lease named by the port's number in the operator's namespace reserves it: its creation is atomic, whichever process
reconciles the service. The Lease names its holder. If that is gone, the next service that tries the port takes it over.
The operator deletes no Lease; there are as many as there were services at a time. After a deletion by others a service
reserves its port again, or another one if it is taken.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kubeloop.client import KubeClient
from kubeloop.errors import AlreadyExists, Conflict, Forbidden, KubeError
from kubeloop.resources import LEASE, Key
from llmservice_api.constants import LLMSERVICE, MANAGED_BY_LABEL, OPERATOR
from llmservice_api.holding import FIRST_PORT, LAST_PORT

MOST_TRIES = 256
"""Ports that are tried for one service, each with one to three requests."""


class HoldingPorts:
    """Leases of ports, in one namespace."""

    def __init__(self, kube: KubeClient, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace

    async def claim(self, key: Key, uid: str, stored: int | None = None) -> int:
        """The service's port: the one that it has a Lease for, else the one in its status, else a free one. KubeError
        where none can be had."""
        holder = f"{key.namespace}/{key.name}/{uid}"
        ports = tuple(dict.fromkeys((*([] if stored is None else [stored]), *candidates(uid))))
        if (own := await self._own(holder, ports)) is not None:
            return own
        for port in ports:
            if await self._is_taken(port, holder):
                return port
        raise KubeError(f"none of {MOST_TRIES} ports from {next(candidates(uid))} is free")

    async def _is_taken(self, port: int, holder: str) -> bool:
        """Whether this port is the service's now."""
        name = f"llmservice-port-{port}"
        try:
            await self._kube.create(LEASE, self._manifest(name, holder))
        except AlreadyExists:
            live = await self._kube.get(LEASE, self._namespace, name)
        else:
            return True
        found = _holder(live)
        if live is None or found == holder:
            return found == holder
        if not await self._is_gone(found):
            return False
        try:
            metadata = self._manifest(name, holder)["metadata"]
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
            await self._kube.update(LEASE, self._manifest(name, holder) | {"metadata": metadata})
        except Conflict:
            return False  # another process was faster
        return True

    async def _own(self, holder: str, ports: Iterable[int]) -> int | None:
        """The port that the service holds. Ports after the first one without a Lease were never tried, unless that
        Lease was deleted: so the search ends at the second one."""
        missing = 0
        for port in ports:
            live = await self._kube.get(LEASE, self._namespace, f"llmservice-port-{port}")
            if _holder(live) == holder:
                return port
            missing += live is None
            if missing == 2:
                break
        return None

    async def _is_gone(self, holder: str) -> bool:
        """Whether the LLMService does not exist any more. False for a Lease without a holder, which is not the
        operator's."""
        namespace, name, uid = (*holder.split("/"), "", "", "")[:3]
        if holder.count("/") != 2 or not (namespace and name and uid):
            return False
        try:
            live = await self._kube.get(LLMSERVICE, namespace, name)
        except Forbidden:
            # A service in a namespace that is no longer watched may exist, with an EndpointSlice that leads its clients
            # to this port: another service at it would get their requests.
            return False
        return live is None or live["metadata"]["uid"] != uid

    def _manifest(self, name: str, holder: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": self._namespace, "labels": {MANAGED_BY_LABEL: OPERATOR}}
        spec = {"holderIdentity": holder}
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}


def candidates(uid: str) -> Iterator[int]:
    """Ports in the order in which a service tries them, always the same."""
    count = LAST_PORT - FIRST_PORT + 1
    first = zlib.crc32(uid.encode())
    return (FIRST_PORT + (first + step) % count for step in range(MOST_TRIES))


def _holder(lease: Mapping[str, Any] | None) -> str:
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")
