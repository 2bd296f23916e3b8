"""Replicas run by a LeaderWorkerSet; each is a group of pods on several nodes (LeaderWorkerSet 0.9).

Its controller makes the pods, gives them their ranks and names, and replaces a whole group when its leader is deleted.
It restarts nothing: the supervisors do. One template is that of all pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from llmservice_api.constants import (
    DEADLINE_ANNOTATION,
    GROUP_GATE,
    GROUP_INDEX_LABEL,
    MANAGER,
    REVISION_LABEL,
    STRATEGY_ANNOTATION,
)
from llmservice_api.service import LLMService

from llmservice_operator.facts.children import ChildFacts, common_of, own_annotations
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.meta import Manifest, metadata, nodes_of, selector
from llmservice_operator.manifests.pod_template import progress_deadline_seconds
from llmservice_operator.workload.port import DEFAULT_STRATEGY, Replica, Strategy, Workload, WorkloadFacts

Json = Mapping[str, Any]

_DEADLINE_SECONDS = 600.0
"""Where the annotation is no number."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_STRATEGIES: dict[Strategy, Any] = {
    "Surge": {"maxSurge": 1, "maxUnavailable": 0},
    "Replace": {"maxSurge": 0, "maxUnavailable": 1},
    "Recreate": {"maxSurge": 0, "maxUnavailable": "100%"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderWorkerSetFacts(WorkloadFacts):
    kind: ClassVar[str] = "LeaderWorkerSet"

    @classmethod
    def from_object(cls, obj: Json, known: ChildFacts | None = None) -> Self:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        labels = (_template(spec).get("metadata") or {}).get("labels") or {}
        return cls(
            **common_of(obj, cls.content, known),
            generation=int(obj["metadata"].get("generation") or 0),
            observed_generation=_observed(obj),
            revision=str(labels.get(REVISION_LABEL, "")),
            nodes=int((spec.get("leaderWorkerTemplate") or {}).get("size") or 1),
            spec_replicas=int(spec.get("replicas", 1)),
            replicas=int(status.get("replicas") or 0),
            updated=int(status.get("updatedReplicas") or 0),
            ready=int(status.get("readyReplicas") or 0),
            available=int(status.get("readyReplicas") or 0),
            deadline_exceeded=False,
            deadline_seconds=_deadline(own_annotations(obj["metadata"])),
            keeps_deadline=False,
            changed_at=_changed(obj["metadata"]),
            deadline_message="",
            strategy=own_annotations(obj["metadata"]).get(STRATEGY_ANNOTATION),
            replica_failure=None,
        )

    def strategy_in_force(self) -> Strategy:
        configured = (self.live()["spec"].get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
        if configured.get("maxSurge"):
            return "Surge"
        return "Recreate" if configured.get("maxUnavailable") == "100%" else "Replace"

    def template(self) -> Manifest:
        found: Manifest = _template(self.live()["spec"])
        return found


def _deadline(annotations: Mapping[str, Any]) -> float:
    text = str(annotations.get(DEADLINE_ANNOTATION, ""))
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 9 else _DEADLINE_SECONDS


def _template(spec: Json) -> Any:
    return (spec.get("leaderWorkerTemplate") or {}).get("workerTemplate") or {}


def _observed(obj: Json) -> int:
    """Its conditions say which generation they are about."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return max((int(each.get("observedGeneration") or 0) for each in conditions), default=0)


def _changed(metadata: Json) -> str:
    """When this operator last changed it, or it was made; its controller may not have looked at it since."""
    applied = (each.get("time") for each in metadata.get("managedFields") or () if each.get("manager") == MANAGER)
    return max((str(each) for each in (*applied, metadata.get("creationTimestamp")) if each), default="")


def manifest(llm: LLMService, template: Manifest, strategy: Strategy) -> Manifest:
    meta = metadata(llm, llm.name)
    meta["annotations"] = {DEADLINE_ANNOTATION: str(progress_deadline_seconds(llm))}
    if llm.spec.rollout.strategy == "Auto" and strategy != DEFAULT_STRATEGY:
        meta["annotations"] |= {STRATEGY_ANNOTATION: strategy}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": meta,
        "spec": {
            "replicas": llm.spec.scaling.replicas,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": _STRATEGIES[strategy]},
            "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
            "leaderWorkerTemplate": {
                "size": nodes_of(template),
                "restartPolicy": "None",
                "workerTemplate": template | {"spec": _of_group(llm, template["spec"])},
            },
        },
    }


def _of_group(llm: LLMService, spec: Json) -> Json:
    """What is not part of the recorded template: the pods wait for each other, and have a node each."""
    affinity = spec.get("affinity") or {}
    rules = affinity.get("podAntiAffinity") or {}
    apart = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": selector(llm)},
        "matchLabelKeys": [GROUP_INDEX_LABEL],
    }
    rules = {**rules, _REQUIRED: [*rules.get(_REQUIRED, ()), apart]}
    gates = [*spec.get("schedulingGates", ()), {"name": GROUP_GATE}]
    return {**spec, "affinity": {**affinity, "podAntiAffinity": rules}, "schedulingGates": gates}


def replicas(pods: Iterable[PodFacts]) -> Iterator[Replica]:
    """By group, the leader first; a group whose leader is not there has no first pod that serves, but is one."""
    groups = defaultdict[str, list[PodFacts]](list)
    for pod in pods:
        if pod.group:
            groups[pod.group].append(pod)
    return (Replica(tuple(sorted(members, key=lambda pod: pod.rank))) for _, members in sorted(groups.items()))


LEADER_WORKER_SET = Workload(LeaderWorkerSetFacts, manifest, replicas)
