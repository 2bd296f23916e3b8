"""The operator's decision about one LLMService, by its own code; what only some decisions need is read by a Source."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from llmservice_api.errors import Problem
from llmservice_api.service import LLMService
from llmservice_operator.behaviours.fit.model_facts import record_of
from llmservice_operator.decision import Decision
from llmservice_operator.inputs import Inputs, Part, Requirements, UpdatePermission
from llmservice_operator.manifests.inspection import inspection_key
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_operator.observe.observed import Observed
from llmservice_operator.service.decide import decide
from llmservice_planner.cluster import ClusterGPUs
from llmservice_planner.model.reading import ConfigReading, Stopped, read, stopped
from llmservice_planner.room import Room

from llmservice_cli.errors import BadInput
from llmservice_cli.manifests import File, Json
from llmservice_cli.plan.models import SECONDS, TakesTooLong, limited

from .preview import Preview

# What `render` and `diff` make of a file of LLMServices, with the facts of their model.


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

    from llmservice_cli.plan.models import with_place

    found = inspect(place, {})
    if found.failure is not None:
        raise BadInput.of(
            "--config", with_place(place, found.failure.message), "Give the model's config.json, or the folder with it."
        )
    model = record_of(inspection_key(LLMService.from_object(obj).spec), found)
    return {**obj, "status": {**(obj.get("status") or {}), "model": model}}


_PASSES = 4
"""What the operator reports before it acts on it takes a second pass; a rollback a third."""


class Source:
    """Where the parts of a decision come from that only some decisions need. Of this one nothing is known."""

    name = "no cluster"
    """For people: what was read."""
    _WHY = "no cluster is asked"

    async def gpus(self, resource: str, node_selector: Mapping[str, str]) -> ClusterGPUs:
        return ClusterGPUs(not_listed=self._WHY)

    async def room(self, resource: str | None) -> Room:
        return Room(unknown=self._WHY)

    async def model(self, inspection: str) -> Json:
        """status.model of another LLMService of the same model; empty where there is none."""
        return {}


async def decided(
    obj: Json, observed: Observed, settings: Settings, now: datetime, source: Source
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


async def _decided(inputs: Inputs, source: Source) -> Decision:
    while isinstance(found := decide(inputs), Requirements):
        inputs = inputs.with_parts(await _read(found, source))
    return found


async def _read(needed: Requirements, source: Source) -> dict[str, Any]:
    """The parts that are needed next, by their names in `Inputs`."""
    values: dict[str, Any] = {}
    if needed.update_permission:  # whose turn it is only the operator knows
        values["update_permission"] = UpdatePermission(is_granted=True)
    if needed.sibling_model is not None:
        values["sibling_model"] = await source.model(needed.sibling_model)
    if needed.reading is not None:
        values["reading"] = ConfigReading(needed.reading, _config(needed.reading))
    if needed.gpus is not None:
        values["gpus"] = await source.gpus(needed.gpus.resource, dict(needed.gpus.node_selector))
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
