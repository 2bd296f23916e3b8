"""The operator's decision about a manifest, by its own code.

First the LLMService that a cluster would store once the manifest is applied, then what is decided about it; what only
some decisions need is read by a Source.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from llmservice_api import untrusted
from llmservice_api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_api.errors import Problem
from llmservice_api.service import STATED_BY, LLMService, stated_by
from llmservice_operator.behaviours.fit.model_facts import record_of
from llmservice_operator.decision import (
    Decision,
    GroupTurn,
    Inputs,
    Part,
    Requirements,
    UpdatePermission,
)
from llmservice_operator.manifests.inspection import inspection_key
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_operator.observe.observed import Observed
from llmservice_operator.service.decide import decide
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.devices import ClusterDevices
from llmservice_planner.model.reading import ConfigReading, Stopped, read, stopped
from llmservice_planner.room import Room

from llmservice_cli.admission.check import stored
from llmservice_cli.errors import BadInput
from llmservice_cli.manifests import File, Json
from llmservice_cli.models import SECONDS, TakesTooLong, limited, with_place

from .preview import Preview

NEW_UID = "assigned-by-the-api-server"
"""Of an LLMService that does not exist yet."""
_REPLICAS = "spec.scaling.replicas"


def namespace_of(manifest: Json, given: str | None, default: str) -> str:
    """The manifest's namespace, else the one given by -n, else the default. BadInput where the first two differ."""
    named = manifest["metadata"].get("namespace")
    if named and given and named != given:
        message = f"the manifest is of namespace {named}, and -n says {given}."
        raise BadInput.of("-n", message, "Leave one of them out.")
    return str(named or given or default)


def _stated_by(manifest: Json, live: Json) -> str | None:
    """Who would state spec.scaling.replicas once the manifest is applied."""
    if "replicas" in (manifest["spec"].get("scaling") or {}):
        return "this manifest"
    return stated_by(live)


def new(manifest: Json, namespace: str) -> dict[str, Any]:
    """As it would be stored first: with the CRD's defaults and without a status."""
    metadata = manifest["metadata"]
    return stored(manifest) | {
        STATED_BY: _stated_by(manifest, {}),
        "metadata": {
            "name": metadata["name"],
            "namespace": namespace,
            "uid": NEW_UID,
            "generation": 1,
            "annotations": dict(metadata.get("annotations") or {}),
        },
    }


def changed(manifest: Json, live: Json) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The live object with the manifest's spec, as far as the operator reads it, and notes on what stays of the live.

    Annotations that the manifest does not name stay, as with `kubectl apply`. So does the number of replicas: it may
    be an autoscaler's or `kubectl scale`'s. Every other field that the manifest leaves out gets its default.
    """
    made, notes = stored(manifest), []
    before = live.get("spec") or {}
    replicas = (before.get("scaling") or {}).get("replicas")
    if replicas is not None and "replicas" not in (manifest["spec"].get("scaling") or {}):
        made["spec"] = made["spec"] | {"scaling": made["spec"].get("scaling", {}) | {"replicas": replicas}}
        notes.append(f"{_REPLICAS} stays {replicas} as in the cluster: the manifest does not name it")
    metadata = dict(live["metadata"])
    annotations = {**(metadata.get("annotations") or {}), **(manifest["metadata"].get("annotations") or {})}
    requested = untrusted.annotation(annotations.get(UPDATE_REQUESTED_ANNOTATION))
    metadata["annotations"] = {} if requested is None else {UPDATE_REQUESTED_ANNOTATION: requested}
    if made["spec"] != before:
        metadata["generation"] = int(metadata.get("generation") or 0) + 1
    return made | {
        STATED_BY: _stated_by(manifest, live["metadata"]),
        "metadata": metadata,
        "status": untrusted.stored_status(live.get("status")),
    }, tuple(notes)


async def previews(
    file: File, preview: Callable[[Json], Awaitable[Preview]]
) -> tuple[list[Preview], list[Problem], tuple[str, ...]]:
    """One for each LLMService of a file; what is wrong with the others; notes about other objects."""
    made: list[Preview] = []
    problems: list[Problem] = []
    for each in file.services:
        with each.collecting(problems):
            made.append(await preview(each.manifest))
    return made, problems, file.notes


def with_config(obj: Json, place: str | None) -> Json:
    """The stored LLMService with status.model as an inspection of this model would leave it."""
    if place is None:
        return obj
    from llmservice_fetch.inspection import inspect

    found = inspect(place, {})
    if found.failure is not None:
        raise BadInput.of(
            "--config", with_place(place, found.failure.message), "Give the model's config.json, or the folder with it."
        )
    model = record_of(inspection_key(LLMService.from_object(obj).spec), found)
    return {**obj, "status": {**(obj.get("status") or {}), "model": model}}


_PASSES = 4
"""What the operator reports before it acts on it takes a second pass; a rollback a third."""


class ClusterReader:
    """Where the parts of a decision come from that only some decisions need. Of this one nothing is known."""

    name = "no cluster"
    """For people: what was read."""
    _WHY = "no cluster is asked"

    async def gpus(self, resource: str, node_selector: Mapping[str, str]) -> ClusterGPUs:
        return ClusterGPUs(not_listed=self._WHY)

    async def devices(self, driver: str, device_class: str, node_selector: Mapping[str, str]) -> ClusterDevices:
        return ClusterDevices(unread=self._WHY)

    async def room(self, resource: str | None) -> Room:
        return Room(unknown=self._WHY)

    async def model(self, inspection: str) -> Json:
        """status.model of another LLMService of the same model; empty where there is none."""
        return {}


async def decided(
    obj: Json, observed: Observed, settings: Settings, now: datetime, source: ClusterReader
) -> tuple[Decision, Json]:
    """The decision about a stored LLMService, and its status once that is carried out.

    Where the operator first only reports what it is about to do, this is what it does then.
    """
    status: Json = obj.get("status") or {}
    for _ in range(_PASSES):
        decision = await _decided(Inputs.of({**obj, "status": status}, observed, settings, now), source)
        before, status = status, decision.status or status
        if decision.requeue_after != 0.0 or status == before:
            break
    return decision, status


async def _decided(inputs: Inputs, source: ClusterReader) -> Decision:
    while isinstance(found := decide(inputs), Requirements):
        inputs = inputs.with_parts(await _read(found, source))
    return found


async def _read(needed: Requirements, source: ClusterReader) -> dict[str, Any]:
    """The parts that are needed next, by their names in `Inputs`."""
    values: dict[str, Any] = {}
    if needed.group_turn:
        values["group_turn"] = GroupTurn(is_own=True)
    if needed.update_permission:  # whose turn it is only the operator knows
        values["update_permission"] = UpdatePermission(is_granted=True)
    if needed.sibling_model is not None:
        values["sibling_model"] = await source.model(needed.sibling_model)
    if needed.reading is not None:
        values["reading"] = ConfigReading(needed.reading, _config(needed.reading))
    if needed.gpus is not None:
        values["gpus"] = await source.gpus(needed.gpus.resource, dict(needed.gpus.node_selector))
    if (asked := needed.devices) is not None:
        values["devices"] = await source.devices(asked.driver, asked.device_class, dict(asked.node_selector))
    if needed.room is not None:
        values["room"] = await source.room(needed.room.resource)
    if needed.pod_events:  # they explain a failure, and change no object
        values["pod_events"] = PodEvents()
    if needed.quotas:
        values["quotas"] = None
    if needed.in_flight:  # they choose which pods a scale-down ends, and change no object
        values["in_flight"] = {}
    assert values, f"what is required is read, or asked for without end: {needed}"
    return {name: Part(value, source.name) for name, value in values.items()}


def _config(document: str) -> bytes:
    """What is read of a config.json, which may be anybody's."""
    try:
        with limited(SECONDS):
            return read(document)
    except TakesTooLong:
        return stopped(Stopped.CPU)
