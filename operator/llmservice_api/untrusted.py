"""Readers of fields that others may write in Kubernetes objects: stored statuses, recorded revisions, an annotation.

They return values of the declared types, with finite numbers below 2**53 and bounded texts, omit everything else, and
do not raise. The operator recomputes what was omitted. Tenants with access to `llmservices/status` or
ControllerRevisions may store anything that the schema allows. Reports of pods and Jobs are read by
`llmservice_runtime.bounded_json`, responses of the API server by `kubeloop.transport`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

from llmservice_runtime.bounded_json import LARGEST, Refused, bounded, clean, parse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from llmservice_api.status import LLMServiceStatus, PlanStatus, StatusCondition

Json = Mapping[str, Any]

_STATUS_PARTS, _STATUS_DEPTH, _STATUS_TEXT = 4096, 12, 32_768
_RECORD_PARTS, _RECORD_DEPTH, _RECORD_TEXT = 65_536, 60, 1_048_576
_CONFIG_BYTES, _CONFIG_DEPTH = 32_768, 12
"""For status.model.config, which has at most 8,192 characters."""
LONGEST_ANNOTATION = 256
"""Characters; a longer value is replaced by its hash."""

_SECTIONS = {field.alias or name: name for name, field in LLMServiceStatus.model_fields.items()}
_CONDITION = TypeAdapter(StatusCondition)


def stored_status(status: object) -> Json:
    """The status without invalid sections and conditions."""
    if not isinstance(status, Mapping) or not status:
        return {}
    if _is_readable(status):
        return status
    sections = {name: status[name] for name in _SECTIONS if status.get(name) is not None}
    if isinstance(sections.get("conditions"), list | tuple):
        sections["conditions"] = [each for each in sections["conditions"][:16] if _is_condition(each)]
    return {name: section for name, section in sections.items() if _is_readable({name: section})}


def stored_record(data: object) -> Json | None:
    """`data` of a ControllerRevision, unchanged; None where no release of this operator can have written it."""
    try:
        value: Json = bounded(data, _RECORD_DEPTH, _RECORD_PARTS, _RECORD_TEXT, is_prose=True)
        _Record.model_validate(value)
    except (Refused, ValidationError):
        return None
    return value


def annotation(value: object) -> str | None:
    """An annotation's value, or a hash of a value longer than LONGEST_ANNOTATION; None if it is not text."""
    if not isinstance(value, str):
        return None
    if len(value) <= LONGEST_ANNOTATION:
        return clean(value)
    return "sha256:" + hashlib.sha256(value.encode(errors="replace")).hexdigest()


def _is_readable(status: Json) -> bool:
    try:
        bounded(status, _STATUS_DEPTH, _STATUS_PARTS, _STATUS_TEXT, LARGEST, is_prose=True)
        LLMServiceStatus.model_validate(status)
    except (Refused, ValidationError):
        return False
    config = (status.get("model") or {}).get("config")
    return (config is None or _is_config(config)) and None not in status.values()


def _is_condition(value: object) -> bool:
    try:
        bounded(value, 2, 16, _STATUS_TEXT, LARGEST, is_prose=True)
        _CONDITION.validate_python(value)
    except (Refused, ValidationError):
        return False
    return True


@functools.lru_cache(maxsize=512)
def _is_config(text: str) -> bool:
    try:
        return isinstance(parse(text, _CONFIG_BYTES, _CONFIG_DEPTH), dict)
    except Refused:
        return False


class _Part(BaseModel):
    """A part of a record. Unknown fields are ignored: later releases write more."""

    model_config = ConfigDict(extra="ignore", alias_generator=to_camel, validate_by_name=True, strict=True)


Word = Annotated[str, Field(max_length=1024)]
_Seconds = Annotated[float, Field(ge=0, le=LARGEST)]


class _Start(_Part):
    budget_seconds: _Seconds | None = None
    usual_seconds: _Seconds | None = None


class _Claim(_Part):
    name: Word
    spec: dict[str, Any]


class _Chosen(_Part):
    gpu: Word | None = None
    excluded_gpus: Annotated[list[Word], Field(max_length=1024)] | None = None
    excluded_architectures: Annotated[list[Word], Field(max_length=1024)] | None = None
    max_model_len: Annotated[int, Field(ge=1, le=LARGEST)] | None = None
    plan: PlanStatus | None = None
    start: _Start | None = None
    update_requested: str | None = None
    spec: dict[str, Any] | None = None
    claim: _Claim | None = None


class _Metadata(_Part):
    labels: dict[str, str] = {}
    annotations: dict[str, str] | None = None


class _Resources(_Part):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class _Container(_Part):
    name: str
    resources: _Resources | None = None


class _PodSpec(_Part):
    containers: Annotated[list[_Container], Field(min_length=1)]
    init_containers: list[_Container] | None = None


class _Template(_Part):
    metadata: _Metadata = _Metadata()
    spec: _PodSpec


class _Record(_Part):
    key: Word = ""
    template: _Template
    chosen: _Chosen | None = None
