"""Projections that all kinds share: metadata, and messages of the cluster without parts that change by themselves
(counts of nodes, used quota, pod names, back-off).

A status with such parts would be written repeatedly while nothing happens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_api.constants import KIND

_LONGEST, _LONGEST_LIST = 2048, 16_384
"""Characters of a message that are read: registries, webhooks and quotas write them, and some expressions here take
time quadratic in the length. The scheduler's list of causes is read in one pass."""

_QUOTA = re.compile(r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.+?), used: .+?, limited: (?P<limit>.+)$")
_POD_NAMES = re.compile(r'\b[Pp]ods? "[^"]+"')
_BACK_OFF = re.compile(r"^back-off \S+ restarting failed container=(\S+).*$", re.DOTALL)
_COUNT = re.compile(r"^\d+ ")
_EVICTION_FIGURES = re.compile(
    r"\s*(?:Threshold quantity: \S+, available: \S+"
    r"|(?:Container|Pod) \S+ was using \S+, request is \S+, has larger consumption of \S+)\.(?=\s|$)"
)
_CONFLICT_TIME = re.compile(r"( using \S+) at [0-9TZ:.+-]+(?=:)")
_NO_CAUSES = re.compile(r" (?:no new claims to deallocate, )?preemption: ")
"""Text of the scheduler after the causes; newer versions mention claims first."""
_NODES = re.compile(r"^0/\d+ nodes are available: ")


def replica_failure(message: str) -> str:
    """Why the workload cannot create pods."""
    message = message[:_LONGEST]
    quota = _QUOTA.search(message)
    if quota:
        return f"quota {quota['name']} is used up: {quota['asked']} requested, {quota['limit']} allowed in all"
    return _POD_NAMES.sub("pods", message)


def conflict(message: str) -> str:
    """A conflict of field managers in one line, without times."""
    line = _CONFLICT_TIME.sub(r"\1", message[:_LONGEST]).replace(":\n- ", ": ").replace("\n- ", ", ")
    return line.replace("\n", "; ")


def unschedulable_causes(message: str) -> tuple[str, ...]:
    """The scheduler's distinct causes, without numbers of nodes."""
    causes = _NO_CAUSES.split(message[:_LONGEST_LIST], maxsplit=1)[0]
    text = _NODES.sub("", causes).strip().rstrip(".")
    return tuple(sorted({_COUNT.sub("", cause.strip()) for cause in _split_outside_braces(text) if cause.strip()}))


def waiting(message: str) -> str:
    """Why a container waits."""
    return _BACK_OFF.sub(r"container \1 keeps ending and is restarted with growing pauses", message[:_LONGEST].strip())


def _split_outside_braces(text: str) -> list[str]:
    """Split at commas, except inside braces: taints are written `{key: value, ...}`."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


def eviction(message: str) -> str:
    """Why a node evicted a pod, without figures of the moment."""
    return _EVICTION_FIGURES.sub("", message[:_LONGEST]).strip()


Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Controller:
    """The ownerReference with `controller: true`."""

    kind: str
    name: str
    uid: str

    def is_earlier(self, name: str, uid: str) -> bool:
        """Whether it is a deleted LLMService: names are unique, and this one has another uid."""
        return (self.kind, self.name) == (KIND, name) and self.uid != uid


def identity_of(metadata: Json) -> dict[str, Any]:
    """Namespace, name, uid and resource_version, for a projection."""
    names = {name: metadata[name] for name in ("namespace", "name", "uid")}
    return names | {"resource_version": metadata.get("resourceVersion", "")}


def is_deleting(metadata: Json) -> bool:
    return metadata.get("deletionTimestamp") is not None


def controller_of(metadata: Json) -> Controller | None:
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return Controller(reference["kind"], reference["name"], reference["uid"])
    return None
