"""Reads one LLMService: the object, its pods, the figures of each ready vLLM, and what is held."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from llmservice_operator.build.meta import selector_text
from llmservice_operator.kube.errors import KubeError
from llmservice_operator.kube.resources import POD
from llmservice_operator.observe.projections.pods import PodFacts, replicas

from llmservice_cli.api import Api, Json
from llmservice_cli.metrics import page_of
from llmservice_cli.services import service
from llmservice_cli.unread import why

from .figures import Figures, read_figures
from .held import Held, held_of

NOT_READY = "the pod is not ready"
NOT_ASKED = "not asked"


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod; `figures` is what its vLLM says, or the reason why that is not known."""

    facts: PodFacts
    figures: Figures | str

    @property
    def state(self) -> str:
        """As `kubectl get pods` says it: what a container waits for or ended with says more than the phase."""
        if self.facts.deleting:
            return "Terminating"
        if self.facts.waiting is not None:
            return self.facts.waiting.reason
        if self.facts.terminated is not None:
            return self.facts.terminated.reason
        return self.facts.reason or self.facts.phase


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The object as the API server has it; `pods` and `held` are the reason where they could not be read."""

    service: Json
    pods: tuple[Pod, ...] | str
    held: Held | str | None
    """None: the service's requests are never held."""


async def snapshot(kube: Api, namespace: str, name: str, *, is_live: bool = True) -> Snapshot:
    """All of it; what may not be read is replaced by the reason. Not `is_live`: no pod is asked for anything."""
    found = await service(kube, namespace, name)
    held = held_of(kube, found) if is_live else _nothing()
    return Snapshot(found, *await asyncio.gather(_pods(kube, namespace, name, is_live=is_live), held))


async def _nothing() -> None:
    return None


async def _pods(kube: Api, namespace: str, name: str, *, is_live: bool) -> tuple[Pod, ...] | str:
    try:
        objects = await kube.list_all(POD, namespace, label_selector=selector_text(name))
    except KubeError as error:
        return f"not listed: {why(error, namespace)}"
    found = replicas(map(PodFacts.from_object, objects))
    pods = await asyncio.gather(*(_pod(kube, facts, is_live=is_live) for facts in found))
    return tuple(sorted(pods, key=lambda pod: pod.facts.name))


async def _pod(kube: Api, facts: PodFacts, *, is_live: bool) -> Pod:
    if not is_live:
        return Pod(facts, NOT_ASKED)
    return Pod(facts, await _figures(kube, facts.namespace, facts.name) if facts.ready else NOT_READY)


async def _figures(kube: Api, namespace: str, pod: str) -> Figures | str:
    try:
        text = await page_of(kube, namespace, pod)
    except KubeError as error:
        return f"not read: {why(error, namespace)}"
    try:
        return read_figures(text)
    except ValueError as error:
        return f"not understood: {error}"
