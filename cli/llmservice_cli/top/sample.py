"""One read of everything that `llmservice top` shows, and what it costs the API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmservice_operator.api.constants import SERVICE_LABEL
from llmservice_operator.api.holding import stored_port
from llmservice_operator.build.meta import selector_text
from llmservice_operator.kube.credentials import Credentials
from llmservice_operator.kube.errors import KubeError
from llmservice_operator.kube.resources import POD, Resource
from llmservice_operator.kube.transport import Transport
from llmservice_operator.observe.projections.pods import PodFacts, replicas

from llmservice_cli.api import USER_AGENT, Api, Json
from llmservice_cli.cluster import LOGIN_TIMEOUT
from llmservice_cli.metrics import page_of
from llmservice_cli.services import service, services
from llmservice_cli.status.held import Pages, read_pages
from llmservice_cli.unread import line_of, why

from .rates import Reading, reading

AT_ONCE = 16
"""Pages that are read at the same time."""
MOST_PODS = 200
PATIENCE = 5.0
"""Seconds for a page."""
LISTS_EVERY = 10.0
"""Seconds between two lists of services and pods, which take more bytes than the pages."""

ServiceKey = tuple[str, str]
"""Namespace and name."""


class Metered(Transport):
    """Counts what is asked of the API server."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials, user_agent=USER_AGENT, login_timeout=LOGIN_TIMEOUT, observer=self._count)
        self.requests = self.bytes = 0

    def _count(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self.requests += 1

    async def read(self, verb: str, resource: Resource, path: str, **options: Any) -> bytes:
        """The same, with the answer's size counted."""
        answer = await super().read(verb, resource, path, **options)
        self.bytes += len(answer)
        return answer


@dataclass(frozen=True, slots=True)
class Sample:
    """What was read at one moment. Where a part could not be, there is the reason."""

    at: float
    services: Sequence[Json]
    pods: Mapping[ServiceKey, Sequence[PodFacts]] | str
    pages: Mapping[tuple[str, str], Reading | str]
    """Of ready pods, by namespace and name; a pod over the limit has none."""
    held: Pages | str
    requests: int
    bytes: int
    """Both since the start."""
    problem: str = ""
    """Why services and pods are those of an earlier read."""

    @property
    def left_out(self) -> int:
        """Ready pods that were not asked."""
        return 0 if isinstance(self.pods, str) else len(_ready(self.pods)) - len(self.pages)


def _ready(pods: Mapping[ServiceKey, Sequence[PodFacts]]) -> Sequence[PodFacts]:
    return [pod for each in pods.values() for pod in each if pod.ready and not pod.deleting]


@dataclass
class Sampler:
    """Reads one sample after the other."""

    transport: Metered
    namespace: str | None
    """None: all."""
    name: str | None
    clock: Callable[[], float] = time.monotonic
    _listed: tuple[float, Sequence[Json], Mapping[ServiceKey, Sequence[PodFacts]] | str] | None = None

    async def read(self) -> Sample:
        """CliError where the service is not there, or not any more. KubeError where services cannot be listed the first
        time; later the sample is of those that were, and says so."""
        kube, problem = Api(self.transport), ""
        if self._listed is None or self.clock() - self._listed[0] >= LISTS_EVERY:
            try:
                self._listed = (self.clock(), await self._services(kube), await self._pods(kube))
            except KubeError as error:
                if self._listed is None:
                    raise
                problem = f"services are those of {LISTS_EVERY:g} s ago or more: {line_of(error.message)}"
        _, found, pods = self._listed
        asked = [] if isinstance(pods, str) else _ready(pods)[:MOST_PODS]
        pages, held = await asyncio.gather(read_pages_of(kube, asked, self.clock), self._held(kube, found))
        return Sample(
            self.clock(),
            found,
            pods,
            pages,
            held,
            self.transport.requests,
            self.transport.bytes,
            problem,
        )

    async def _services(self, kube: Api) -> Sequence[Json]:
        if self.name is not None:
            return [await service(kube, self.namespace or "", self.name)]
        return await services(kube, self.namespace)

    async def _pods(self, kube: Api) -> Mapping[ServiceKey, Sequence[PodFacts]] | str:
        selector = SERVICE_LABEL if self.name is None else selector_text(self.name)
        try:
            objects = await kube.list_all(POD, self.namespace, label_selector=selector)
        except KubeError as error:
            return f"pods are not listed: {why(error, self.namespace)}"
        found: dict[ServiceKey, list[PodFacts]] = {}
        for pod in sorted(replicas(map(PodFacts.from_object, objects)), key=lambda pod: (pod.namespace, pod.name)):
            found.setdefault((pod.namespace, pod.service or ""), []).append(pod)
        return found

    async def _held(self, kube: Api, found: Sequence[Json]) -> Pages | str:
        """Nothing is asked where no service's requests are held."""
        holds = any(stored_port(each.get("status") or {}) is not None for each in found)
        return await read_pages(kube) if holds else {}


async def read_pages_of(
    kube: Api, pods: Sequence[PodFacts], clock: Callable[[], float], limit: asyncio.Semaphore | None = None
) -> Mapping[tuple[str, str], Reading | str]:
    """What the vLLM of each pod counts now, or why that is not known, by namespace and name: AT_ONCE of them at a time,
    or with others as many as `limit` lets through, each within PATIENCE seconds."""
    turns = asyncio.Semaphore(AT_ONCE) if limit is None else limit

    async def page(pod: PodFacts) -> Reading | str:
        async with turns:
            return await _page(kube, pod, clock)

    pages = await asyncio.gather(*map(page, pods))
    return {(pod.namespace, pod.name): found for pod, found in zip(pods, pages, strict=True)}


async def _page(kube: Api, pod: PodFacts, clock: Callable[[], float]) -> Reading | str:
    try:
        async with asyncio.timeout(PATIENCE):
            text = await page_of(kube, pod.namespace, pod.name)
        # A page may be made to take long; others go on meanwhile.
        return await asyncio.to_thread(reading, text, clock())
    except TimeoutError:
        return f"no answer within {PATIENCE:g} s"
    except KubeError as error:
        return why(error, pod.namespace)
    except ValueError as error:
        return line_of(f"not understood: {error}")
