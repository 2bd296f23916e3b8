"""Allots each service that may be at zero a port of its own at the activators, unique for one installation.

A port is taken by a Lease of its number in the operator's namespace: its creation is atomic, whichever process works on
a service. The Lease names its holder, which may be gone: then whoever comes to that port takes it over. The operator
deletes none; there are as many as there were services at a time. Where somebody else did, a service takes its port
again, or another one if that is taken by now.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kubeloop.client import KubeClient
from kubeloop.errors import AlreadyExists, Conflict, Forbidden, KubeError
from kubeloop.resources import LEASE, Key
from llmservice_api.constants import MANAGED_BY_LABEL, OPERATOR
from llmservice_api.holding import FIRST_PORT, LAST_PORT
from llmservice_api.kinds import LLMSERVICE

MOST_TRIES = 256
"""Ports that are looked at for one service: each is one request or three."""


class HoldingPorts:
    """The Leases of ports, in one namespace."""

    def __init__(self, kube: KubeClient, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace

    async def claim(self, key: Key, uid: str, stored: int | None = None) -> int:
        """The service's port: the one that it has a Lease of, else the one that its status has, else a free one.
        KubeError where there is none."""
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
            return False  # somebody else was faster
        return True

    async def _own(self, holder: str, ports: Iterable[int]) -> int | None:
        """The port that the service has. Those behind the first one without a Lease were never looked at, unless that
        Lease was deleted: so the second one is the end."""
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
        """Whether there is no such LLMService any more. A Lease that names none is not ours, and stays."""
        namespace, name, uid = (*holder.split("/"), "", "", "")[:3]
        if holder.count("/") != 2 or not (namespace and name and uid):
            return False
        try:
            live = await self._kube.get(LLMSERVICE, namespace, name)
        except Forbidden:
            # Of a namespace that is not watched any more. It may be there, with an EndpointSlice that leads its clients
            # to this port: another service at it would get their requests.
            return False
        return live is None or live["metadata"]["uid"] != uid

    def _manifest(self, name: str, holder: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": self._namespace, "labels": {MANAGED_BY_LABEL: OPERATOR}}
        spec = {"holderIdentity": holder}
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}


def candidates(uid: str) -> Iterator[int]:
    """The ports that a service looks at, in this order: always the same ones."""
    count = LAST_PORT - FIRST_PORT + 1
    first = zlib.crc32(uid.encode())
    return (FIRST_PORT + (first + step) % count for step in range(MOST_TRIES))


def _holder(lease: Mapping[str, Any] | None) -> str:
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")
