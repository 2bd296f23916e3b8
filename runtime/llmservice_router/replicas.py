"""The replicas that prompts are routed to: those that the cluster's DNS has for a headless Service.

DNS and not the Kubernetes API: pods of tenants have no rights there, the operator may give them none, and it goes on
while the operator or the API server is down. A Service without a cluster address has an address record for each ready
pod that is not terminating (Kubernetes DNS-Based Service Discovery 1.1.0, section 2.4.1), at most PROPAGATION_SECONDS
old: records live 5 s (kubernetes plugin of CoreDNS), and are asked for each second.

vllm-router's own discovery is not used: it lists pods, with rights, and adds some that are not ready.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from llmservice_runtime.bounded_json import parse
from llmservice_runtime.contract import PROPAGATION_SECONDS

from llmservice_router import envoy

logger = logging.getLogger(__name__)

ASK_SECONDS = 1.0
"""Between two questions to the DNS."""
MOST = 1000
"""Replicas: as many as an LLMService may have."""
LONGEST_ANSWER = 4 << 20
"""Bytes of vllm-router's list of workers."""
_SOON = aiohttp.ClientTimeout(total=2)
_NONE = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
"""The DNS knows that there is no address. Other errors are of the DNS itself."""

Address = tuple[str, int]
Resolve = Callable[[], Awaitable[frozenset[Address] | None]]


def absolute(name: str, resolv_conf: str) -> str:
    """The Service's name in the cluster's own domain, by the pod's resolv.conf. A short one would be looked up in the
    domains of the node as well, where it may be anybody's."""
    lines = (line.split() for line in resolv_conf.splitlines())
    domains = (word for words in lines if words[:1] == ["search"] for word in words[1:])
    own = next((domain for domain in domains if domain.split(".")[1:2] == ["svc"]), None)
    return name if own is None or "." in name else f"{name}.{own.rstrip('.')}."


async def resolve(name: str, port: int) -> frozenset[Address] | None:
    """Addresses of ready replicas, one for each pod: with two families, those of IPv4. None: the DNS does not answer,
    and what was known last is kept."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return frozenset() if error.errno in _NONE else None
    except OSError:
        return None
    by_family: dict[int, set[Address]] = {}
    for family, _, _, _, address in found:
        by_family.setdefault(family, set()).add((str(address[0]), port))
    addresses = by_family.get(socket.AF_INET) or by_family.get(socket.AF_INET6) or set()
    return frozenset(sorted(addresses)[:MOST])


def url(address: Address) -> str:
    """As vllm-router names a worker."""
    host, port = address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Replicas:
    """Keeps Envoy's endpoints and vllm-router's workers as the DNS has the replicas."""

    def __init__(self, resolve: Resolve, router: Address | None, session: aiohttp.ClientSession, folder: Path) -> None:
        """`router` is vllm-router's address; None: Envoy chooses the replica."""
        self._resolve, self._router, self._session, self._folder = resolve, router, session, folder
        self._version = 0
        self._written: dict[str, object] = {}
        self._adding: dict[str, asyncio.Task[None]] = {}
        self.known: frozenset[Address] | None = None
        """None: the DNS has not answered yet."""
        self.is_empty = False
        """The DNS has none any more. Those that are known drain, and are kept for PROPAGATION_SECONDS."""
        self._empty_since = 0.0
        self.is_ending = False
        """The last replicas are kept where the DNS has none: the Service that named them may be gone already."""
        self.are_workers = False
        """vllm-router has all of them, and none besides."""
        self.is_by_router = False
        """Prompts go to vllm-router, which has workers; else Envoy chooses their replica, as that of other paths."""
        self.closes(False)  # Envoy starts with files only
        self._lead(frozenset())

    async def follow(self) -> None:
        """One question to the DNS, and what follows from its answer."""
        found = await self._resolve()
        if found is None and self.are_workers:
            logger.warning("the DNS does not answer; %d replicas are kept", len(self.known or ()))
        if found is not None:
            found = self._kept(found)
        if found is not None and found != self.known:
            logger.info("replicas: %s", ", ".join(sorted(map(url, found))) or "none")
            self.known = found
        if self.known is not None:
            self._lead(self.known)
            wanted = {url(address) for address in self.known}
            self.are_workers = self._router is None or await self._follow_workers(wanted)
            self._lead(self.known)

    def router_ended(self) -> None:
        """Until vllm-router has workers again, Envoy chooses the replica of prompts too."""
        self.is_by_router = self.are_workers = False
        self._lead(self.known or frozenset())

    def closes(self, are_closed: bool) -> None:
        """Whether connections of clients end, as `envoy.CLOSING_FILE` has it."""
        if self._written.get(envoy.CLOSING_FILE) is not are_closed:
            self._write(envoy.CLOSING_FILE, "1" if are_closed else "0")
            self._written[envoy.CLOSING_FILE] = are_closed

    def _kept(self, found: frozenset[Address]) -> frozenset[Address] | None:
        """What follows from an answer of the DNS; None: nothing."""
        now = asyncio.get_running_loop().time()
        if not found and not self.is_empty:
            self._empty_since = now
        self.is_empty = not found
        is_young = now - self._empty_since < PROPAGATION_SECONDS
        return None if self.known and not found and (self.is_ending or is_young) else found

    async def answer(self) -> bool:
        """Whether one of some replicas answers: a NetworkPolicy may let clients in, and not this pod."""
        for address in random.sample(sorted(self.known or ()), min(3, len(self.known or ()))):
            with suppress(aiohttp.ClientError, TimeoutError):
                async with self._session.get(f"{url(address)}/health", timeout=_SOON) as answer:
                    if answer.status == 200:
                        return True
        return False

    def _lead(self, replicas: frozenset[Address]) -> None:
        """Where Envoy's clusters lead."""
        servers = replicas if self._router is None or not self.is_by_router else frozenset({self._router})
        for file, found, name in (
            (envoy.ENDPOINTS_FILE, replicas, envoy.REPLICAS),
            (envoy.ROUTER_FILE, servers, envoy.ROUTER),
        ):
            if self._written.get(file) != found:
                self._version += 1
                self._write(file, json.dumps(envoy.endpoints(sorted(found), self._version, name)))
                self._written[file] = found

    def _write(self, file: str, text: str) -> None:
        """Replaced as a whole: Envoy reads it when a file is moved into its folder."""
        made = self._folder / f".{file}"
        made.write_text(text)
        made.replace(self._folder / file)

    async def _follow_workers(self, wanted: set[str]) -> bool:
        """Whether vllm-router has them, and none besides. What a removed worker answers is answered to its end."""
        try:
            known = await self._workers()
            self.is_by_router = bool(known & wanted)
            for worker in sorted(known - wanted):
                await self._change("DELETE", f"/workers/{quote(worker, safe='')}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            logger.warning("vllm-router's workers cannot be changed: %s", error or type(error).__name__)
            self.is_by_router = False
            return False
        # vllm-router answers once the worker did: others are not to wait for one that does not.
        for worker in wanted - known - self._adding.keys():
            self._adding[worker] = asyncio.create_task(self._add(worker), name=f"adding {worker}")
        return known == wanted

    async def _add(self, worker: str) -> None:
        try:
            await self._change("POST", "/workers", {"url": worker})
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            logger.warning("%s cannot be added: %s", worker, error or type(error).__name__)
        finally:
            del self._adding[worker]

    def _url(self) -> str:
        assert self._router is not None
        return url(self._router)

    async def _workers(self) -> set[str]:
        async with self._session.get(f"{self._url()}/workers") as answer:
            answer.raise_for_status()
            return workers_of(await answer.content.read(LONGEST_ANSWER))

    async def _change(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        async with self._session.request(method, f"{self._url()}{path}", json=body) as answer:
            if answer.status >= 400 and answer.status != 404:
                text = (await answer.content.read(500)).decode(errors="replace")
                raise ValueError(f"{method} {path}: {answer.status} {text}")


def workers_of(body: bytes) -> set[str]:
    """URLs from vllm-router's list of workers; ValueError."""
    found = parse(body, LONGEST_ANSWER)
    workers = found.get("workers") if isinstance(found, dict) else None
    if not isinstance(workers, list):
        raise ValueError("its list of workers is not one")
    return {each["url"] for each in workers if isinstance(each, dict) and isinstance(each.get("url"), str)}
