"""Replicas run by a Deployment; each is a pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from llmservice_api.constants import REVISION_LABEL, STRATEGY_ANNOTATION
from llmservice_api.service import LLMService

from llmservice_operator.facts import normalize
from llmservice_operator.facts.children import ChildFacts, common_of, own_annotations
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.meta import Manifest, metadata, selector
from llmservice_operator.manifests.pod_template import progress_deadline_seconds
from llmservice_operator.workload.port import DEFAULT_STRATEGY, Replica, Strategy, Workload, WorkloadFacts

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFacts(WorkloadFacts):
    kind: ClassVar[str] = "Deployment"

    @classmethod
    def from_object(cls, obj: Json, known: ChildFacts | None = None) -> Self:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        progressing, failing = conditions.get("Progressing", {}), conditions.get("ReplicaFailure", {})
        is_late = progressing.get("reason") == "ProgressDeadlineExceeded"
        template_labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
        return cls(
            **common_of(obj, cls.content, known),
            generation=int(obj["metadata"].get("generation") or 0),
            observed_generation=int(status.get("observedGeneration") or 0),
            revision=str(template_labels.get(REVISION_LABEL, "")),
            spec_replicas=int(spec.get("replicas", 1)),
            replicas=int(status.get("replicas") or 0),
            updated=int(status.get("updatedReplicas") or 0),
            ready=int(status.get("readyReplicas") or 0),
            available=int(status.get("availableReplicas") or 0),
            deadline_exceeded=is_late,
            deadline_seconds=float(spec.get("progressDeadlineSeconds") or 600),
            deadline_message=str(progressing.get("message") or "") if is_late else "",
            strategy=own_annotations(obj["metadata"]).get(STRATEGY_ANNOTATION),
            replica_failure=normalize.replica_failure(str(failing.get("message", "")))
            if failing.get("status") == "True"
            else None,
        )

    def strategy_in_force(self) -> Strategy:
        found = self.live()["spec"].get("strategy") or {}
        if found.get("type") == "Recreate":
            return "Recreate"
        return "Surge" if (found.get("rollingUpdate") or {}).get("maxSurge") else "Replace"


_STRATEGIES: dict[Strategy, Any] = {
    "Surge": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    "Replace": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    "Recreate": {"type": "Recreate"},
}


def manifest(llm: LLMService, template: Manifest, strategy: Strategy) -> Manifest:
    meta = metadata(llm, llm.name)
    if llm.spec.rollout.strategy == "Auto" and strategy != DEFAULT_STRATEGY:
        meta["annotations"] = {STRATEGY_ANNOTATION: strategy}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            "replicas": llm.spec.scaling.replicas,
            "selector": {"matchLabels": selector(llm)},
            "strategy": _STRATEGIES[strategy],
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": progress_deadline_seconds(llm),
            "template": template,
        },
    }


def replicas(pods: Iterable[PodFacts]) -> Iterator[Replica]:
    return (Replica((pod,)) for pod in pods if not pod.group)


DEPLOYMENT = Workload(DeploymentFacts, manifest, replicas)
