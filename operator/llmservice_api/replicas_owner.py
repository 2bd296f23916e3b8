"""Which manifest states spec.scaling.replicas: if it is applied repeatedly, it resets the autoscaler's number each
time. The records that this is read from may have any content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmservice_runtime.bounded_json import Refused, clean, parse

Json = Mapping[str, Any]

LAST_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl apply"
STATED_BY = "replicasStatedBy"
"""Key of a projected LLMService for the result of `stated_by`."""

_MOST_ENTRIES = 256
_LONGEST_NAME = 64
_LARGEST = 256 * 1024
"""Bytes of the longest annotation that is read: the API server stores no larger one."""
_DEEPEST, _MOST_PARTS = 32, 16_384
_PATH = ("f:spec", "f:scaling", "f:replicas")


def stated_by(metadata: Json) -> str | None:
    """The field manager of a server-side apply, or `kubectl apply`; None: no manifest states the field.

    Updates also own fields that the API server set by default, so they prove nothing.
    """
    entries = metadata.get("managedFields")
    for entry in entries[:_MOST_ENTRIES] if isinstance(entries, list | tuple) else ():
        if isinstance(entry, Mapping) and _states(entry):
            return clean(str(entry.get("manager") or "a server-side apply"))[:_LONGEST_NAME]
    annotations = metadata.get("annotations")
    last = annotations.get(LAST_APPLIED_ANNOTATION) if isinstance(annotations, Mapping) else None
    return KUBECTL if isinstance(last, str) and _is_stated_in(last) else None


def _states(entry: Json) -> bool:
    if entry.get("operation") != "Apply" or entry.get("subresource"):
        return False
    found: Any = entry.get("fieldsV1")
    for name in _PATH:
        if not isinstance(found, Mapping) or name not in found:
            return False
        found = found[name]
    return True


def _is_stated_in(text: str) -> bool:
    try:
        found: Any = parse(text, _LARGEST, _DEEPEST, _MOST_PARTS, drops_numbers=True)
    except Refused:
        return False
    for name in ("spec", "scaling"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return isinstance(found, Mapping) and "replicas" in found
