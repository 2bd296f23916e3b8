"""What a cluster has of one LLMService, read with the rights of the user: gets and lists, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubeloop import resources
from kubeloop.errors import Forbidden, NotFound
from llmservice_api.constants import INSPECTS_LABEL, SERVICE_LABEL, claim_names
from llmservice_api.errors import UnreadableObject
from llmservice_api.kinds import BY_KIND, CHILD_KINDS, LLMSERVICE
from llmservice_operator.observe.observed import PROJECTIONS, Observed
from llmservice_operator.readers.nodes import Nodes
from llmservice_operator.workload.kinds import WORKLOADS
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.room import Room

from llmservice_cli.api import Api
from llmservice_cli.manifests import Json
from llmservice_cli.render.decided import Source

ChildId = tuple[str, str]

_NAMED = (
    *(BY_KIND[workload.kind] for workload in WORKLOADS),
    resources.SERVICE,
    *(child.resource for child in CHILD_KINDS),
)
_LABELLED = (
    (resources.CONTROLLER_REVISION, SERVICE_LABEL),
    (resources.JOB, SERVICE_LABEL),
    (resources.ENDPOINT_SLICE, SERVICE_LABEL),
    (resources.POD, SERVICE_LABEL),
    (resources.POD, INSPECTS_LABEL),
)
_NO_RIGHT = "you have no right to list nodes, and pods of all namespaces"


@dataclass(frozen=True, slots=True)
class Live:
    """The objects of one service, as the API server sends them, and what the operator observes of them."""

    objects: Mapping[ChildId, Json]
    observed: Observed
    notes: tuple[str, ...] = ()


async def live(kube: Api, namespace: str, name: str) -> Live:
    """The children of its names, whoever owns them, and all that carries its label."""
    objects: dict[ChildId, dict[str, Any]] = {}
    not_served = await _not_served(kube, namespace)
    claims = ((resources.PVC, claim) for claim in claim_names(name))
    for resource, child in (*((each, name) for each in _NAMED), *claims):
        if resource.kind not in not_served and (found := await kube.get(resource, namespace, child)) is not None:
            objects[resource.kind, child] = found
    for resource, label in _LABELLED:
        for item in await kube.list_all(resource, namespace, label_selector=f"{label}={name}"):
            objects[resource.kind, item["metadata"]["name"]] = item
    projections: dict[str, dict[str, Any]] = {}
    notes = []
    for (kind, child), found in objects.items():
        try:
            projections.setdefault(kind, {})[child] = PROJECTIONS[kind](found, None)
        except UnreadableObject as unreadable:
            notes.append(f"left out: {unreadable}")
    return Live(objects, Observed.of(name, projections, not_served), tuple(notes))


async def _not_served(kube: Api, namespace: str) -> frozenset[str]:
    """Optional kinds whose CRD is not installed, or that the user may not list."""
    found = set()
    for child in CHILD_KINDS:
        if child.is_optional:
            try:
                await kube.list_all(BY_KIND[child.kind], namespace, label_selector=SERVICE_LABEL)
            except (Forbidden, NotFound):
                found.add(child.kind)
    return frozenset(found)


class Cluster(Source):
    """Read by the API server, when a decision needs it."""

    name = "the cluster"

    def __init__(self, kube: Api, namespace: str, name: str) -> None:
        self._kube, self._namespace, self._name = kube, namespace, name
        self._nodes = Nodes(kube)

    async def gpus(self, resource: str, node_selector: Mapping[str, str]) -> ClusterGPUs:
        found = await self._nodes.gpus(resource, node_selector)
        return ClusterGPUs(not_listed=_NO_RIGHT) if found.missing_right else found

    async def room(self, resource: str | None) -> Room:
        found = await self._nodes.room(resource)
        return Room(unknown=_NO_RIGHT) if found.unknown else found

    async def model(self, inspection: str) -> Json:
        for item in await self._kube.list_all(LLMSERVICE, self._namespace):
            model: Json = (item.get("status") or {}).get("model") or {}
            is_same = model.get("inspection") == inspection and model.get("config")
            if is_same and item["metadata"]["name"] != self._name:
                return model
        return {}
