"""`llmservice diff`: what the operator would change in a cluster for a manifest, and which pods would restart.

The cluster is read with the rights of the user: gets and lists, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from kubeloop import resources
from kubeloop.errors import Forbidden, NotFound
from kubeloop.resources import CONTROLLER_REVISION
from llmservice_api.constants import (
    BY_KIND,
    CHILD_KINDS,
    INSPECTS_LABEL,
    LLMSERVICE,
    OPTIONAL,
    RESOURCE_CLAIM_TEMPLATE,
    SERVICE_LABEL,
    claim_names,
)
from llmservice_api.errors import UnreadableObject
from llmservice_operator.decision import Apply
from llmservice_operator.observe.observed import PROJECTIONS, AppliedRecord, Observed
from llmservice_operator.readers.nodes import Nodes
from llmservice_operator.workload.kinds import WORKLOADS
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.devices import ClusterDevices
from llmservice_planner.room import Room

from llmservice_cli import settings
from llmservice_cli.api import Api
from llmservice_cli.cluster import Connection, connect
from llmservice_cli.diff import Options
from llmservice_cli.errors import CliError, ExitCode, print_problems
from llmservice_cli.manifests import Json, admit, services
from llmservice_cli.render.decided import ClusterReader, changed, decided, namespace_of, new, previews, with_config
from llmservice_cli.render.difference import fields, is_rewritten, restricted, unified
from llmservice_cli.render.preview import ChildId, Preview, changes, restart_of, show
from llmservice_cli.settings import settings_of


async def run(options: Options) -> ExitCode:
    """Print what would change; the exit code says whether anything would."""
    file = services(options.file)  # before a cluster is asked, which may not be there
    try:
        async with connect(options) as connection:
            made, problems, notes = await previews(file, lambda each: _preview(each, connection, options))
    except CliError as error:
        error.exit_code = ExitCode.NOT_ASKED  # 1 would say that there is a difference
        raise
    show(made, options.output)
    print_problems(problems, notes)
    if problems or not all(each.is_accepted for each in made):
        return ExitCode.BAD_INPUT
    return ExitCode.DIFFERS if any(each.differs or each.is_held for each in made) else ExitCode.DONE


async def _preview(manifest: Json, connection: Connection, options: Options) -> Preview:
    admit(manifest)
    kube, name = connection.kube, manifest["metadata"]["name"]
    namespace = namespace_of(manifest, options.namespace, connection.namespace)
    service = await kube.get(LLMSERVICE, namespace, name)
    obj: Json
    if service is None:
        await kube.list_all(LLMSERVICE, namespace)  # NotFound, where the kind is not installed
        obj, notes = new(manifest, namespace), [f"LLMService {name} does not exist yet"]
    else:
        admit(manifest, service)
        obj, kept = changed(manifest, service)
        notes = list(kept)
    if options.settings is not None:
        given = settings.of_file(options.settings)
    else:
        given, note = await settings_of(kube, namespace)
        notes.append(note)
    there = await live(kube, namespace, name)
    obj = with_config(obj, options.config)
    cluster, now, observed = Cluster(kube, namespace, name), datetime.now(UTC), there.observed
    decision, status = await decided(obj, observed, given, now, cluster)
    if rewritten := [each for each in decision.apply if _is_rewritten(each, there.objects)]:
        observed = _remembering(rewritten, observed)
        decision, status = await decided(obj, observed, given, now, cluster)
        notes += [_by_webhook(each, there.objects[each.kind, each.name]) for each in rewritten]
    objects, unread = await _with_adapters(decision.apply, there.objects, kube)
    made = changes(decision, observed, obj["metadata"]["uid"], objects, unread)
    diffs = {  # a record repeats the Deployment's template
        change.id: unified(change.before, change.manifest, f"{change.kind}/{change.name}")
        for change in made
        if change.manifest is not None and change.kind != CONTROLLER_REVISION.kind and change.id not in unread
    }
    if "deletionTimestamp" in obj["metadata"]:
        notes += decision.notes
    restart = restart_of(made, decision.restart, observed.workload, status)
    notes += [*there.notes, *(f"{kind} {child} is not compared: you may not read it" for kind, child in unread)]
    return Preview.of(obj, made, status, restart, notes, diffs)


def _is_rewritten(apply: Apply, objects: Mapping[ChildId, Json]) -> bool:
    """Whether only a webhook made the child differ. The operator remembers what came of its own applies, and applies
    nothing again for that; a field that others added it takes out."""
    live = objects.get((apply.kind, apply.name))
    return live is not None and not apply.remove_foreign_fields and is_rewritten(apply.manifest, live)


def _remembering(applies: Sequence[Apply], observed: Observed) -> Observed:
    """What the operator observes that has these applies in memory."""
    records = {
        (apply.kind, apply.name): AppliedRecord(apply.input_hash, child.managed_hash)
        for apply in applies
        if (child := observed.child(apply.kind, apply.name)) is not None
    }
    return replace(observed, applied=records)


def _by_webhook(apply: Apply, live: Json) -> str:
    differing = fields(restricted(apply.manifest, live), apply.manifest)
    return f"{apply.kind} {apply.name} stays: a webhook made it differ from what the operator applied ({differing})"


async def _with_adapters(
    applies: Sequence[Apply], objects: Mapping[ChildId, Json], kube: Api
) -> tuple[Mapping[ChildId, Json], tuple[ChildId, ...]]:
    """The live objects with the list of adapters, which the operator applies without reading it; what is not read."""
    for apply in applies:
        if apply.is_unreadable:
            try:
                found = await kube.get(BY_KIND[apply.kind], apply.manifest["metadata"]["namespace"], apply.name)
            except Forbidden:
                return objects, ((apply.kind, apply.name),)
            return objects if found is None else {**objects, (apply.kind, apply.name): found}, ()
    return objects, ()


# What the cluster has of one LLMService.

_NAMED = (
    *(BY_KIND[workload.kind] for workload in WORKLOADS),
    resources.SERVICE,
    *(child.resource for child in CHILD_KINDS),
)
_LABELLED = (
    (resources.CONTROLLER_REVISION, SERVICE_LABEL),
    (resources.JOB, SERVICE_LABEL),
    (resources.ENDPOINT_SLICE, SERVICE_LABEL),
    (RESOURCE_CLAIM_TEMPLATE, SERVICE_LABEL),
    (resources.POD, SERVICE_LABEL),
    (resources.POD, INSPECTS_LABEL),
)
_NO_SLICES = "you have no right to list nodes and resourceslices"
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
        if resource.kind in not_served:
            continue
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
    for resource in OPTIONAL:
        try:
            await kube.list_all(resource, namespace, label_selector=SERVICE_LABEL)
        except (Forbidden, NotFound):
            found.add(resource.kind)
    return frozenset(found)


class Cluster(ClusterReader):
    """Read by the API server, when a decision needs it."""

    name = "the cluster"

    def __init__(self, kube: Api, namespace: str, name: str) -> None:
        self._kube, self._namespace, self._name = kube, namespace, name
        self._nodes = Nodes(kube)

    async def gpus(self, resource: str, node_selector: Mapping[str, str]) -> ClusterGPUs:
        found = await self._nodes.gpus(resource, node_selector)
        return ClusterGPUs(not_listed=_NO_RIGHT) if found.missing_right else found

    async def devices(self, driver: str, device_class: str, node_selector: Mapping[str, str]) -> ClusterDevices:
        found = await self._nodes.devices(driver, device_class, node_selector)
        return ClusterDevices(unread=_NO_SLICES) if found.unread else found

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
