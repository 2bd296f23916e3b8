"""Facts of a model that only the cluster can read, such as one on a claim: from the status of the LLMService there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from llmservice_operator.api.errors import InvalidSpec
from llmservice_operator.api.service import LLMService
from llmservice_operator.api.untrusted import stored_status
from llmservice_operator.build.inspection import inspection_key
from llmservice_operator.kube.errors import Forbidden, NotFound
from llmservice_operator.kube.resources import LLMSERVICE
from llmservice_operator.planner.model import spec_facts
from llmservice_operator.planner.model.tensors import Tensors
from llmservice_operator.planner.requests import extended

from llmservice_cli.api import Api
from llmservice_cli.errors import BadInput

from .models import from_document
from .questions import Question, split_problems
from .values import Refused

LABEL = "status.model of the cluster's LLMService"


async def with_facts(question: Question, service: LLMService, namespace: str, kube: Api) -> Question:
    """The question with what the operator's inspection found of the same model; as it is where there is nothing."""
    if question.request.architecture is not None or question.name is None:
        return question
    try:
        stored = await kube.get(LLMSERVICE, namespace, question.name)
    except (Forbidden, NotFound):
        return question
    status = stored_status((stored or {}).get("status"))
    return with_record(question, service, status.get("model"))


def with_record(question: Question, service: LLMService, record: object) -> Question:
    """What cannot be read of a record is left out: anybody who may write the status chooses what it says."""
    if not isinstance(record, Mapping) or record.get("inspection") != inspection_key(service.spec):
        return question
    config, tensors = record.get("config"), record.get("tensors")
    try:
        stated = spec_facts.from_spec(service.spec.model.architecture)
        document = spec_facts.merge(json.loads(config), stated) if isinstance(config, str) else None
        known = None if tensors is None else Tensors.from_document(tensors)
        found = from_document(document, LABEL, known)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Refused, InvalidSpec, BadInput):
        return question
    if found.architecture is None:
        return question
    request = replace(
        question.request,
        architecture=extended(found.architecture, service.spec.context_extension),
        tensors=found.tensors,
    )
    if problems := list(split_problems(request, lambda name: name)):
        raise BadInput(problems)
    notes = (*question.notes, f"the model's facts are from {LABEL}")
    return replace(question, request=request, missing=(), why_missing=None, notes=notes)
