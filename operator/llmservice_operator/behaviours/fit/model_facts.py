"""Facts about a service's model before it starts: from the spec, from an earlier inspection, or from a Job that
inspects.

A Job is created only for a revision that is yet to be created. Its result is stored in status.model, then it is
deleted. A result of another service with the same model in the namespace is reused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from llmservice_api.model import scheme_of
from llmservice_api.service import LLMService
from llmservice_api.status import InspectedTensors
from llmservice_planner.model import spec_facts
from llmservice_runtime.contract import Failure
from llmservice_runtime.inspection.inspected import Inspection

from llmservice_operator.behaviours.fit.planning import is_enough, stated_memory_gib
from llmservice_operator.facts.children import JobFacts
from llmservice_operator.facts.inspections import InspectionFacts, InspectionState
from llmservice_operator.manifests.inspection import inspection_key, is_wanted, job_name
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.verdict import revision_of
from llmservice_operator.revisions import RevisionMatch

Json = Mapping[str, Any]

JOB_START_SECONDS = 30.0
"""Seconds in which the Job's pod must start: a full cluster, a quota or a missing image may last."""
JOB_SECONDS = 120.0
"""Seconds from the Job's creation to its result."""
_GIVE = "Give the model's facts in spec.model.architecture."
_OR_GIVE = "Or give the model's facts in spec.model.architecture."
JOB_KIND = "Job"
_TEXT_LIMIT = 1024
_WORD_LIMIT = 64
_NUMBER_LIMIT = 2**62
_PARTS = {field.alias or name for name, field in InspectedTensors.model_fields.items()}
_CONFIG_LIMIT = 8192


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the planner gets, what the status keeps, and what is still missing."""

    document: str | None = None
    """JSON text for config_json; None: nothing is known."""
    is_stated: bool = False
    """The document consists of bounded fields of the spec, and can be read without a separate process."""
    tensors: str | None = None
    record: Json | None = None
    """The value of status.model."""
    why_not: str = ""
    """Why nothing is known, and the remedy."""
    is_waiting: bool = False
    """Planning waits until the facts are known, or known not to come."""
    job: str | None = None
    """Name of the Job that inspects, or whose result is not in the status yet."""
    sibling_key: str | None = None
    """Inspection key under which another service may have inspected the model; None: none is to be read."""
    recheck_after: float | None = None

    @property
    def is_known(self) -> bool:
        return self.document is not None

    def digest(self, service: LLMService) -> str | None:
        """Digest of everything that a plan depends on beside the revision key; None: nothing is known."""
        if self.document is None:
            return None
        memory = stated_memory_gib(service) if service.spec.accelerator.type != "cpu" else None
        text = json.dumps([self.document, self.tensors, memory])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def facts_for(
    service: LLMService, match: RevisionMatch, observed: Observed, now: datetime, sibling_model: Json | None
) -> ModelFacts:
    """Facts for the revision that is to run; `sibling_model` as for `facts_of`."""
    is_reported = match.latest is not None and match.latest.label == revision_of(service.status)
    creates_job = match.chosen is None and not service.spec.paused
    return facts_of(service, observed, now, sibling_model, uses_sibling=not is_reported, creates_job=creates_job)


def facts_of(
    service: LLMService,
    observed: Observed,
    now: datetime,
    sibling_model: Json | None,
    *,
    uses_sibling: bool,
    creates_job: bool,
) -> ModelFacts:
    """The spec's own facts, else those of an inspection, with `uses_sibling` also of another service's.

    `sibling_model` is the other service's status.model, empty where there is none; None: not read yet. With
    `creates_job` a Job is requested where there is no inspection.
    """
    stated = spec_facts.from_spec(service.spec.model.architecture)
    if stated and is_enough(text := _text(stated)):
        return ModelFacts(text, is_stated=True)
    key, previous = inspection_key(service.spec), service.status.get("model") or {}
    # A failure counts for one edit: the next edit inspects again, since the cause may be gone.
    is_current = previous.get("inspection") == key
    if is_current and (previous.get("config") or not creates_job or _is_reported(service)):
        return _from_record(previous, stated)
    job = observed.inspection_job(job_name(service))
    if job is not None:
        return _from_job(job, observed.inspection(job), key, stated, now)
    if not is_wanted(service):
        return ModelFacts(why_not=f"{scheme_of(service.spec.model.uri).not_inspected} {_GIVE}")
    if uses_sibling and sibling_model is None:
        return ModelFacts(sibling_key=key, is_waiting=True)
    if uses_sibling and sibling_model:
        return _from_record(sibling_model, stated)
    if not creates_job:
        return ModelFacts(why_not=f"The model was not looked at before it started. {_GIVE}")
    return _from_new_job(service, observed)


def _from_new_job(service: LLMService, observed: Observed) -> ModelFacts:
    """Request a Job, unless the API server refuses it."""
    if JOB_KIND in observed.hidden:
        return ModelFacts(
            why_not="The model was not looked at: the operator has no right to list jobs (batch). Grant it and start "
            f"the operator again. {_OR_GIVE}"
        )
    name = job_name(service)
    refusal = observed.refused.get((JOB_KIND, name))
    if refusal is not None:
        return ModelFacts(why_not=f"The Job that would look at the model cannot be made: {refusal.message}. {_GIVE}")
    return ModelFacts(is_waiting=True, job=name, why_not=f"Job {name} is being made: it looks at the model.")


def _from_job(job: JobFacts, pod: InspectionFacts | None, key: str, stated: Json, now: datetime) -> ModelFacts:
    found = pod.inspection if pod is not None else None
    if found is not None:
        facts = _from_record(record_of(key, found), stated)
    elif ended := _end_of(job, pod):
        facts = _from_record({"inspection": key, "failure": ended}, stated)
    else:
        return _awaited(job, pod, now)
    # The Job may go once the status has its result.
    return replace(facts, job=job.name, recheck_after=1.0)


def _awaited(job: JobFacts, pod: InspectionFacts | None, now: datetime) -> ModelFacts:
    runs = pod is not None and pod.state is InspectionState.RUNNING
    age = (now - datetime.fromisoformat(job.created_at)).total_seconds()
    left = (JOB_SECONDS if runs else JOB_START_SECONDS) - age
    pod_says = pod.message if pod is not None else "its pod is not there yet"
    waits = f": {pod_says}" if pod_says and not runs else ""
    if left <= 0:
        return ModelFacts(
            why_not=f"Job {job.name}, which looks at the model, does not run{waits}. {_GIVE}", job=job.name
        )
    why = f"Waiting for Job {job.name}, which reads the model's config.json and the headers of its weights{waits}."
    return ModelFacts(is_waiting=True, job=job.name, why_not=why, recheck_after=left + 0.1)


def _end_of(job: JobFacts, pod: InspectionFacts | None) -> str | None:
    """Why there will be no result; None: it may still come."""
    if pod is not None and pod.state in (InspectionState.FAILED, InspectionState.GONE):
        how = pod.message or job.failed or "its pod was taken away"
    elif job.failed is not None:
        how = job.failed
    elif job.complete:
        how = "its pod is gone, and what it found with it"
    else:
        return None
    return f"The Job that looked at the model came to no conclusion ({how}). {_GIVE}"[:_TEXT_LIMIT]


def record_of(key: str, found: Inspection) -> dict[str, Any]:
    """The value of status.model."""
    record: dict[str, Any] = {"inspection": key}
    if found.revision is not None and found.revision.isascii():
        record["revision"] = found.revision[:_WORD_LIMIT]
    if found.failure is not None:
        return record | {"failure": _sentence(found.failure)}
    config = _text(found.config)
    if len(config) > _CONFIG_LIMIT:
        return record | {"failure": f"The model's config.json is larger than can be kept. {_GIVE}"}
    if why := _impossible(found):
        return record | {"failure": f"What was read of the model cannot be kept: {why}. {_GIVE}"}
    record["config"] = config
    if found.tensors is not None:
        record["tensors"] = dict(found.tensors)
    return record


def _impossible(found: Inspection) -> str | None:
    """Why the API server, which stores 64-bit numbers, would refuse the result and with it the whole status.

    The values come from a pod in a user's namespace.
    """
    for name, value in (found.tensors or {}).items():
        if name == "dtype":
            if not isinstance(value, str) or len(value) > _WORD_LIMIT or not value.isascii():
                return f"the type of its tensors is no text of at most {_WORD_LIMIT} characters"
        elif name not in _PARTS:
            return f"its tensors have no {name[:_WORD_LIMIT]!a}"
        elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _NUMBER_LIMIT:
            return f"its tensors' {name[:_WORD_LIMIT]} is no whole number from 0 to 2^62"
    return None


def _sentence(failure: Failure) -> str:
    text = f"The model could not be read: {failure.message} {failure.remedy}"
    return (text if "spec.model.architecture" in text else f"{text} Or give its facts in spec.model.architecture.")[
        :_TEXT_LIMIT
    ]


def _from_record(record: Json, stated: Json) -> ModelFacts:
    """Facts of an inspection, with the spec's own on top."""
    if not record.get("config"):
        return ModelFacts(record=record, why_not=str(record.get("failure") or _GIVE))
    tensors = record.get("tensors")
    try:
        document = _text(spec_facts.merge(json.loads(record["config"]), stated))
    except (AttributeError, RecursionError, TypeError, ValueError):
        return ModelFacts(record=record, why_not=f"What status.model keeps of the model cannot be read. {_GIVE}")
    return ModelFacts(document, tensors=None if tensors is None else _text(tensors), record=record)


def _is_reported(service: LLMService) -> bool:
    """Whether the status is about this spec."""
    return bool(service.status.get("observedGeneration") == service.generation)


def _text(document: Json) -> str:
    """Canonical JSON text."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
