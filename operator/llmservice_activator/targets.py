"""Keeps the held services up to date from LLMServices, pods and API keys."""

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
from llmservice_activator.holding.interface import HeldRequests, HoldingTarget
from llmservice_activator.holding_config import HoldingConfig
from llmservice_activator.services import Pod, Service, Services

logger = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
"""Seconds between checks of old keys and of ports that could not be opened."""
ENDING_SECONDS = 10.0
"""Seconds without a connection after which none is expected for a service whose Service leads to replicas: nodes learn
of it later."""
LONGEST_ENDING_SECONDS = 60.0
"""Seconds for which connections may prolong that: a client that knows the port could otherwise bypass the pods'
NetworkPolicies for ever."""


class RequestHolder(Protocol):
    """Holds the requests of services."""

    def update(self, target: HoldingTarget) -> Awaitable[None]:
        """Add or change a service. OSError where its port cannot be opened."""

    def remove(self, key: Key) -> Awaitable[None]:
        """Remove a service."""

    def held(self, key: Key) -> HeldRequests:
        """Requests of a service that are held."""

    def last_connection(self, key: Key) -> float:
        """Time of the last connection to a service, by the event loop's clock; 0: none came."""


class CannotHold(Exception):
    """Requests of a service cannot be held; the message has the remedy."""


class TargetUpdater:
    """Reports each held service once, and again when it changed."""

    def __init__(
        self,
        services: Services,
        holding: RequestHolder,
        keys: KeyReader,
        activators: Callable[[], int],
    ) -> None:
        """`activators`: the number that shares the pods of a service."""
        self._services, self._holder, self._keys, self._activators = services, holding, keys, activators
        self._targets: dict[Key, HoldingTarget] = {}
        self._problems: dict[Key, str] = {}
        self._ports: dict[int, set[Key]] = {}
        self._port_of: dict[Key, int] = {}
        self._ending: dict[Key, float] = {}
        """When each Service began to lead to replicas only, while requests may still arrive here."""
        self._touched: dict[Key, None] = {}
        self._reporting: Key | None = None
        self._wake = asyncio.Event()

    def touched(self, key: Key) -> None:
        self._touched[key] = None
        self._wake.set()

    def touched_all(self) -> None:
        for key in self._services:
            self.touched(key)

    def leads_here(self, key: Key) -> bool:
        """Whether a Service may be pointed here: its requests are answered, and not only for a transition."""
        target = self._targets.get(key)
        return target is not None and target.is_routed and key not in self._ending

    def problem(self, key: Key) -> str:
        """Why requests of a service cannot be held, with the remedy; empty if they can."""
        return self._problems.get(key, "")

    async def run(self) -> None:
        """Report changes; never returns."""
        loop = asyncio.get_running_loop()
        due = loop.time() + CHECK_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            if loop.time() >= due:
                self._check_again()
                due = loop.time() + CHECK_SECONDS
            self._wake.clear()
            while self._touched:
                key = self._reporting = next(iter(self._touched))
                del self._touched[key]
                try:
                    await self._report(key)
                except Exception:  # an error about one service does not affect the others
                    logger.exception("requests cannot be held", extra={log.KEY: key})
                    self._problems[key] = "internal error; see the activator's log"
            self._reporting = None

    def is_settled(self) -> bool:
        """Whether all known changes are reported."""
        return not self._touched and self._reporting is None and not self._keys.is_reading()

    def _check_again(self) -> None:
        for key in self._services:
            service = self._services.find(key)
            holding = service.holding if service is not None else None
            if key in self._ending and key in self._targets and (self._targets[key].is_routed or holding is None):
                self.touched(key)
            if holding is None:
                continue
            if holding.keys is not None and not _ready(self._services.pods(key)):
                self._keys.request(key)
            if key in self._problems:
                self.touched(key)

    async def _report(self, key: Key) -> None:
        service = self._services.find(key)
        holding = service.holding if service is not None else None
        before, target, problem = self._targets.get(key), None, ""
        if holding is None:
            self._keys.forget(key)
            target = self._last_target(service, before)
        if target is None:
            self._set_port(key, holding.port if holding is not None else 0)
        try:
            if service is not None and holding is not None:
                target, problem = self._target(service, holding)
        except CannotHold as why:
            problem = str(why)
        if before is not None and (target is None or target.uid != before.uid):
            del self._targets[key]
            await self._holder.remove(key)
        if target is not None and target != before:
            try:
                await self._holder.update(target)
            except OSError as error:
                if key not in self._targets:
                    await self._holder.remove(key)
                problem = f"port {target.port} cannot be opened: {error}; free it in the activators' pods"
            else:
                self._targets[key] = target
        if key not in self._targets:
            self._ending.pop(key, None)
        self._log_problem(key, problem)

    def _last_target(self, service: Service | None, before: HoldingTarget | None) -> HoldingTarget | None:
        """The last state of a service that always has a replica now: held requests are answered first, and those that
        still arrive."""
        if service is None or before is None or service.uid != before.uid or not service.replicas:
            return None
        if before.is_shut:
            return None
        is_routed = self._is_routed(service.key, is_direct=True)
        if not is_routed and not self._holder.held(service.key).requests:
            return None
        return replace(before, pods=_ready(self._services.pods(service.key)), refusal=None, is_routed=is_routed)

    def _is_routed(self, key: Key, *, is_direct: bool) -> bool:
        """Whether requests may arrive here; for a limited time where the Service leads to replicas only."""
        if not is_direct:
            self._ending.pop(key, None)
            return True
        now = asyncio.get_running_loop().time()
        began = self._ending.setdefault(key, now)
        is_quiet = now >= max(began, self._holder.last_connection(key)) + ENDING_SECONDS
        return now < began + LONGEST_ENDING_SECONDS and not (is_quiet and not self._holder.held(key).requests)

    def _target(self, service: Service, holding: HoldingConfig) -> tuple[HoldingTarget, str]:
        """The held service, with a problem that does not prevent holding, or "". CannotHold where its requests must not
        be held."""
        key, keys, problem = service.key, None, ""
        pods = () if holding.is_shut else _ready(self._services.pods(key))
        if holding.keys is not None:
            if not pods:
                self._keys.request(key)
            found, before = self._keys.get(key, holding.keys), self._targets.get(key)
            if found.problem and (before is None or before.uid != service.uid or before.keys is None):
                raise CannotHold(found.problem)
            # While a Secret is recreated new clients are refused; held requests were sent with a valid key.
            keys, problem = frozenset() if found.problem else found.keys, found.problem
        if not holding.port:
            raise CannotHold("the operator has not allotted a port yet: status.holding.port is empty")
        if (owner := self._owner(holding.port)) != key:
            raise CannotHold(
                f"its port {holding.port} is that of LLMService {owner}; remove status.holding to have another"
            )
        target = HoldingTarget(
            key=key,
            uid=service.uid,
            port=holding.port,
            model_names=holding.model_names,
            max_requests=holding.max_requests,
            max_bytes=holding.max_bytes,
            timeout_seconds=holding.timeout_seconds,
            at_once=max(1, holding.sequences // self._activators()),
            pods=pods,
            keys=keys,
            # Pods of the previous revision keep serving while a later one fails.
            refusal=None if pods else holding.refusal,
            clients=holding.clients,
            is_shut=holding.is_shut,
            # A client that knows this port reaches no model whose NetworkPolicy refuses it.
            is_routed=self._is_routed(key, is_direct=service.is_direct and bool(pods)),
            root_path=holding.root_path,
            any_origin=holding.any_origin,
        )
        return target, problem

    def _log_problem(self, key: Key, problem: str) -> None:
        if not problem:
            self._problems.pop(key, None)
        elif self._problems.get(key) != problem:
            logger.warning("requests cannot be held: %s", problem, extra={log.KEY: key})
            self._problems[key] = problem

    def _set_port(self, key: Key, port: int) -> None:
        """Record the port of a service. Other services of its old and its new port are checked again."""
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
        """The oldest of the services with this port in their status."""
        return min(self._ports[port], key=self._age)

    def _age(self, key: Key) -> tuple[str, str]:
        service = self._services.find(key)
        return (
            (service.holding.created, service.uid) if service is not None and service.holding is not None else ("~", "")
        )


def _ready(pods: tuple[Pod, ...]) -> tuple[str, ...]:
    """Base URLs of ready pods."""
    addresses = sorted({pod.address for pod in pods if pod.is_ready and pod.address})
    return tuple(f"http://[{each}]:{HTTP_PORT}" if ":" in each else f"http://{each}:{HTTP_PORT}" for each in addresses)
