"""Events about LLMServices, as the API server takes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from llmservice_operator.api.timestamps import rfc3339

from .resources import EVENT, LLMSERVICE

LONGEST_MESSAGE = 1024
"""Characters: the API server refuses more."""


@dataclass(frozen=True, slots=True)
class About:
    """The LLMService of an Event."""

    namespace: str
    name: str
    uid: str
    resource_version: str


def manifest(
    about: About, name: str, type_: str, reason: str, message: str, *, now: datetime, component: str, instance: str
) -> dict[str, Any]:
    """An Event named `name`, Normal or Warning, that happened once; the message is cut where it is too long."""
    stamp = rfc3339(now)
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": name, "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": LLMSERVICE.api_version,
            "kind": LLMSERVICE.kind,
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
            "resourceVersion": about.resource_version,
        },
        "type": type_,
        "reason": reason,
        "message": message[:LONGEST_MESSAGE],
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": instance,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
