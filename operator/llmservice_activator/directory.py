"""From LLMServices, pods and API keys to the targets whose requests come in here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from kubeloop import log
from kubeloop.resources import Key
from llmservice_runtime.contract import HTTP_PORT

from llmservice_activator.api_keys import KeyReader
from llmservice_activator.holding.target import Held, Target
from llmservice_activator.services import Pod, Service, Services
from llmservice_activator.zero import Zero

logger = logging.getLogger(__name__)

LOOK_AGAIN = 5.0
"""Seconds between looks at keys that may be old, and at ports that could not be opened."""
ENDING_SECONDS = 10.0
"""Without a connection, after which none is expected of a service that leads to replicas: nodes learn of it later."""
LONGEST_ENDING_SECONDS = 60.0
"""For which connections put that off: whoever knows the port would keep it open past the NetworkPolicies of pods."""


class Holding(Protocol):
    """Receives the targets."""

    def update(self, target: Target) -> Awaitable[None]:
        """A target is there, or changed. OSError where its port cannot be opened."""

    def remove(self, key: Key) -> Awaitable[None]:
        """It is gone."""

    def held(self, key: Key) -> Held:
        """What is held of it."""

    def last_connection(self, key: Key) -> float:
        """When the last one to it came, by the loop's time; 0: none did."""


class Unheld(Exception):
    """Requests of a service cannot come in here; the message has the remedy."""


class Directory:
    """Reports each target once, and again when it changed; the rest is pure."""

    def __init__(
        self,
        services: Services,
        holding: Holding,
        keys: KeyReader,
        activators: Callable[[], int],
    ) -> None:
        """`activators`: how many share the pods of a service."""
        self._services, self._holding, self._keys, self._activators = services, holding, keys, activators
        self._targets: dict[Key, Target] = {}
        self._problems: dict[Key, str] = {}
        self._ports: dict[int, set[Key]] = {}
        self._port_of: dict[Key, int] = {}
        self._ending: dict[Key, float] = {}
        """Since when services lead to replicas, to which requests may still come in here."""
        self._touched: dict[Key, None] = {}
        self._reporting: Key | None = None
        self._wake = asyncio.Event()

    def touched(self, key: Key) -> None:
        """Something of a service changed."""
        self._touched[key] = None
        self._wake.set()

    def touched_all(self) -> None:
        """Something that concerns all changed."""
        for key in self._services:
            self.touched(key)

    def leads_here(self, key: Key) -> bool:
        """Whether its Service may be pointed here: requests are answered, and not only for a while longer."""
        target = self._targets.get(key)
        return target is not None and target.is_routed and key not in self._ending

    def problem(self, key: Key) -> str:
        """Why its requests cannot come in here, with the remedy; empty: they can."""
        return self._problems.get(key, "")

    async def run(self) -> None:
        """Report; never returns."""
        loop = asyncio.get_running_loop()
        due = loop.time() + LOOK_AGAIN
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            if loop.time() >= due:
                self._look_again()
                due = loop.time() + LOOK_AGAIN
            self._wake.clear()
            while self._touched:
                key = self._reporting = next(iter(self._touched))
                del self._touched[key]
                try:
                    await self._report(key)
                except Exception:  # what is wrong with one service ends no other's requests
                    logger.exception("requests cannot be held", extra={log.KEY: key})
                    self._problems[key] = "internal error; see the activator's log"
            self._reporting = None

    def is_settled(self) -> bool:
        """Whether everything that is known was reported."""
        return not self._touched and self._reporting is None and not self._keys.is_reading()

    def _look_again(self) -> None:
        for key in self._services:
            service = self._services.find(key)
            zero = service.zero if service is not None else None
            if key in self._ending and key in self._targets and (self._targets[key].is_routed or zero is None):
                self.touched(key)
            if zero is None:
                continue
            if zero.keys is not None and not _ready(self._services.pods(key)):
                self._keys.want(key)
            if key in self._problems:
                self.touched(key)

    async def _report(self, key: Key) -> None:
        service = self._services.find(key)
        zero = service.zero if service is not None else None
        before, target, problem = self._targets.get(key), None, ""
        if zero is None:
            self._keys.forget(key)
            target = self._last_target(service, before)
        if target is None:
            self._move(key, zero.port if zero is not None else 0)
        try:
            if service is not None and zero is not None:
                target, problem = self._target(service, zero)
        except Unheld as why:
            problem = str(why)
        if before is not None and (target is None or target.uid != before.uid):
            del self._targets[key]
            await self._holding.remove(key)
        if target is not None and target != before:
            try:
                await self._holding.update(target)
            except OSError as error:
                if key not in self._targets:
                    await self._holding.remove(key)
                problem = f"port {target.port} cannot be opened: {error}; free it in the activators' pods"
            else:
                self._targets[key] = target
        if key not in self._targets:
            self._ending.pop(key, None)
        self._say(key, problem)

    def _last_target(self, service: Service | None, before: Target | None) -> Target | None:
        """Of a service that always has a replica now: what is held is answered first, and what still comes."""
        if service is None or before is None or service.uid != before.uid or not service.replicas:
            return None
        if before.is_shut:
            return None
        is_routed = self._is_routed(service.key, is_direct=True)
        if not is_routed and not self._holding.held(service.key).requests:
            return None
        return replace(before, pods=_ready(self._services.pods(service.key)), refusal=None, is_routed=is_routed)

    def _is_routed(self, key: Key, *, is_direct: bool) -> bool:
        """Whether requests may come in here; where replicas serve alone, for a while."""
        if not is_direct:
            self._ending.pop(key, None)
            return True
        now = asyncio.get_running_loop().time()
        began = self._ending.setdefault(key, now)
        is_quiet = now >= max(began, self._holding.last_connection(key)) + ENDING_SECONDS
        return now < began + LONGEST_ENDING_SECONDS and not (is_quiet and not self._holding.held(key).requests)

    def _target(self, service: Service, zero: Zero) -> tuple[Target, str]:
        """With what is wrong with it, though its requests come in. Unheld where they must not."""
        key, keys, problem = service.key, None, ""
        pods = () if zero.is_shut else _ready(self._services.pods(key))
        if zero.keys is not None:
            if not pods:
                self._keys.want(key)
            found, before = self._keys.get(key, zero.keys), self._targets.get(key)
            if found.problem and (before is None or before.uid != service.uid or before.keys is None):
                raise Unheld(found.problem)
            # A Secret that is made anew refuses clients for a moment; what is held was sent with a key.
            keys, problem = frozenset() if found.problem else found.keys, found.problem
        if not zero.port:
            raise Unheld("the operator has not allotted a port yet: status.holding.port is empty")
        if (owner := self._owner(zero.port)) != key:
            raise Unheld(f"its port {zero.port} is that of LLMService {owner}; remove status.holding to have another")
        target = Target(
            key=key,
            uid=service.uid,
            port=zero.port,
            model_names=zero.model_names,
            max_requests=zero.max_requests,
            max_bytes=zero.max_bytes,
            timeout_seconds=zero.timeout_seconds,
            at_once=max(1, zero.sequences // self._activators()),
            pods=pods,
            keys=keys,
            # Pods of the revision before serve on while a later one fails.
            refusal=None if pods else zero.refusal,
            clients=zero.clients,
            is_shut=zero.is_shut,
            # A stranger that knows this port reaches no model whose NetworkPolicy refuses it.
            is_routed=self._is_routed(key, is_direct=service.is_direct and bool(pods)),
            root_path=zero.root_path,
            any_origin=zero.any_origin,
        )
        return target, problem

    def _say(self, key: Key, problem: str) -> None:
        if not problem:
            self._problems.pop(key, None)
        elif self._problems.get(key) != problem:
            logger.warning("requests cannot be held: %s", problem, extra={log.KEY: key})
            self._problems[key] = problem

    def _move(self, key: Key, port: int) -> None:
        """Others of the old and the new port may have it, or not any more."""
        before = self._port_of.pop(key, 0)
        if port:
            self._port_of[key] = port
        if before == port:
            return
        self._ports.get(before, set()).discard(key)
        if port:
            self._ports.setdefault(port, set()).add(key)
        for each in (before, port):
            for other in self._ports.get(each, ()):
                if other != key:
                    self.touched(other)
            if not self._ports.get(each):
                self._ports.pop(each, None)

    def _owner(self, port: int) -> Key:
        """The oldest of those that have it in their status."""
        return min(self._ports[port], key=self._age)

    def _age(self, key: Key) -> tuple[str, str]:
        service = self._services.find(key)
        return (service.zero.created, service.uid) if service is not None and service.zero is not None else ("~", "")


def _ready(pods: tuple[Pod, ...]) -> tuple[str, ...]:
    """Base URLs of pods that serve."""
    addresses = sorted({pod.address for pod in pods if pod.is_ready and pod.address})
    return tuple(f"http://[{each}]:{HTTP_PORT}" if ":" in each else f"http://{each}:{HTTP_PORT}" for each in addresses)
