"""Names in Kubernetes objects: the API's own, labels, annotations, field managers; and the kinds that the operator
handles.

Names that operator and pods share are in `llmservice_runtime.contract`. The chart's templates and the docs cannot
import them: `tests/unit/project/test_shared_names.py` compares.

A kind in `CHILD_KINDS` needs no code except a builder: it is watched, projected, applied, corrected, adopted, pruned,
checked for other owners, and shown by `llmservice diff`. `templates/_rules.tpl` of the chart grants `VERBS` on it.
Kinds whose state decisions depend on (Deployment, Service, ControllerRevision, PersistentVolumeClaim, Job) have code
instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubeloop import resources
from kubeloop.resources import Resource

GROUP: Final = "llmservice.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "LLMService"
LIST_KIND: Final = "LLMServiceList"
PLURAL: Final = "llmservices"
SINGULAR: Final = "llmservice"
SHORT_NAMES: Final = ("llms",)
CATEGORIES: Final = ("all",)
CRD_NAME: Final = f"{PLURAL}.{GROUP}"

OPERATOR: Final = "llmservice-operator"
"""Value of the managed-by label, field manager, source of Events, user agent, and default name of the Lease."""

# Labels.
SERVICE_LABEL: Final = f"{GROUP}/service"
"""The service's name, on its children and pods: the selector of its Service, and for `kubectl -l`."""
REVISION_LABEL: Final = f"{GROUP}/revision"
INSPECTS_LABEL: Final = f"{GROUP}/inspects"
"""On the pod that inspects a model, instead of SERVICE_LABEL: it is not a replica."""
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
TEMPLATE_HASH_LABEL: Final = "pod-template-hash"
"""Set by Kubernetes on a Deployment's pods: the suffix of their ReplicaSet's name."""
GROUP_INDEX_LABEL: Final = "leaderworkerset.sigs.k8s.io/group-index"
"""Set by LeaderWorkerSet on its pods: which group of the set. With the next one it names a pod."""
RANK_LABEL: Final = "leaderworkerset.sigs.k8s.io/worker-index"
"""Which member of the group: 0 for the leader, which answers requests."""
API_SERVER_LABEL: Final = f"{GROUP}/api-server"
"""On all pods of a group of which each answers requests; without it the leader alone does."""
ROUTER_LABEL: Final = f"{GROUP}/router"
"""On the pods of a service's router, instead of SERVICE_LABEL: they are no replicas."""
GROUP_GATE: Final = f"{GROUP}/group"
"""A scheduling gate of pods of a replica over several nodes: gone once all of them may look for nodes."""

# Annotations.
UPDATE_REQUESTED_ANNOTATION: Final = f"{GROUP}/update-requested"
"""On an LLMService, set by a user to any value."""
APPLIED_HASH_ANNOTATION: Final = f"{GROUP}/applied-hash"
"""On children: hash of the applied manifest. It also shows drift in a field that is no longer applied."""
ADAPTERS_ANNOTATION: Final = f"{GROUP}/adapters"
"""On the Service: digest of the applied list of adapters, since the operator may not read ConfigMaps. A change of the
Deployment's annotations would change its generation and its ReplicaSets."""
DEADLINE_ANNOTATION: Final = f"{GROUP}/progress-deadline-seconds"
"""On a LeaderWorkerSet, which has no field for it."""
STRATEGY_ANNOTATION: Final = f"{GROUP}/rollout-strategy"
"""On the Deployment: the strategy that Auto resolved to when the template was applied, unless it is the usual one."""
DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
"""On a pod, Kubernetes' own: a ReplicaSet deletes pods with the lowest cost first."""
SPLIT_ANNOTATION: Final = f"{GROUP}/shards"
"""On the operator's Lease: number of Leases over which earlier releases split the work; absent: one."""

# Field managers.
MANAGER: Final = OPERATOR
STATUS_MANAGER: Final = f"{OPERATOR}-status"
DRY_RUN_MANAGER: Final = f"{OPERATOR}-look"
"""For dry runs; it owns no field."""

DEFAULT_ENDPOINT_PORT: Final = 80
DEFAULT_DRAIN_SECONDS: Final = 120
TYPICAL_REQUEST: Final = 2048
"""Tokens of an average request, prompt and answer together: few requests are near the maximum length."""


def selector_text(service: str) -> str:
    """Label selector of a service's pods and children, for `kubectl -l` and autoscalers."""
    return f"{SERVICE_LABEL}={service}"


def has_api(labels: Mapping[str, Any]) -> bool:
    """Whether the pod with these labels answers requests."""
    return labels.get(RANK_LABEL, "0") == "0" or API_SERVER_LABEL in labels


def is_replica(metadata: Mapping[str, Any], service: str) -> bool:
    """Whether a pod with this service's label belongs to its workload: its controller is a ReplicaSet of the
    Deployment, or a StatefulSet of the LeaderWorkerSet.

    A debug copy (kubectl debug) has the labels but no such controller. Controllers with similar names (an Argo Rollout
    of the service's name) do not set these labels.
    """
    labels = metadata.get("labels") or {}
    suffix, group = labels.get(TEMPLATE_HASH_LABEL), labels.get(GROUP_INDEX_LABEL)
    # The leaders of all groups are one StatefulSet's, the workers of each group another one's.
    of_groups = (("StatefulSet", service), ("StatefulSet", f"{service}-{group}")) if group else ()
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            owner = (reference.get("kind"), reference.get("name"))
            return owner in (("ReplicaSet", f"{service}-{suffix}"), *of_groups)
    return False


def claim_names(service: str) -> dict[str, str]:
    """All claims that the operator may create for a service, with the field that requests each."""
    return {cache_claim_name(service): "spec.model.cache", start_cache_claim_name(service): "spec.startCache"}


def start_cache_claim_name(service: str) -> str:
    """The PersistentVolumeClaim for spec.startCache."""
    return f"{service}-start-cache"


def cache_claim_name(service: str) -> str:
    """The PersistentVolumeClaim for spec.model.cache."""
    return f"{service}-cache"


SHARED_ENDINGS: Final = ("-direct", "-router")
"""Ends of names that a child of the service NAME and the children of a service with that very name both have."""


def direct_name(service: str) -> str:
    """The headless Service whose endpoints are the replicas: those of NAME are the router's pods, with one."""
    return f"{service}-direct"


def endpoint_picker_name(service: str) -> str:
    """The Service of the endpoint picker, where the spec does not name one."""
    return f"{service}-epp"


ENDPOINT_PICKER_PORT = 9002


def router_name(service: str) -> str:
    """The Deployment and the PodDisruptionBudget of the router."""
    return f"{service}-router"


VERBS = ("get", "list", "watch", "create", "patch", "delete")


@dataclass(frozen=True, slots=True)
class ChildKind:
    """A kind of which a service has one object with its own name, or none."""

    resource: Resource
    prune_reason: str
    """Why one that is no longer desired is deleted, for the log."""
    is_optional: bool = False
    """The CRD, or the permission to list it, may be missing. Services without such a child are not affected; the status
    of others names what is missing."""
    setting: str | None = None
    """A setting without which no service has such a child. The kind is then not watched and needs no permission."""
    has_own_condition: bool = False
    """A condition of its own reports problems with it: nothing else waits for it, and Ready does not change."""

    @property
    def kind(self) -> str:
        return self.resource.kind


NETWORK_POLICY = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
HTTP_ROUTE = Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
INFERENCE_POOL = Resource("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool")

CHILD_KINDS: tuple[ChildKind, ...] = (
    ChildKind(
        Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
        prune_reason="one replica needs no budget",
    ),
    ChildKind(
        NETWORK_POLICY,
        prune_reason="a replica is one pod",
        is_optional=True,
        setting="has_groups",
    ),
    ChildKind(
        Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject"),
        prune_reason="KEDA is not to scale this service",
        is_optional=True,
        setting="scaler_address",
        has_own_condition=True,
    ),
    ChildKind(
        INFERENCE_POOL,
        prune_reason="spec.routing no longer asks for a pool",
        is_optional=True,
        setting="has_gateways",
        has_own_condition=True,
    ),
    ChildKind(
        HTTP_ROUTE,
        prune_reason="spec.endpoint no longer names a Gateway",
        is_optional=True,
        setting="has_gateways",
        has_own_condition=True,
    ),
)

HAS_OWN_CONDITION = frozenset(child.kind for child in CHILD_KINDS if child.has_own_condition) | {"EndpointSlice"}
"""Kinds with a condition of their own."""

LEADER_WORKER_SET = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")

RESOURCE_CLAIM_TEMPLATE = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
"""Of Kubernetes 1.34 and later. Where it can be listed, pods may have claims."""
OPTIONAL = (LEADER_WORKER_SET, RESOURCE_CLAIM_TEMPLATE, *(child.resource for child in CHILD_KINDS if child.is_optional))
"""Without permission or CRD, services without such a child run."""

LLMSERVICE = Resource(GROUP, VERSION, PLURAL, KIND)
BY_KIND: Mapping[str, Resource] = {
    resource.kind: resource
    for resource in (
        *(LLMSERVICE, *resources.STANDARD, LEADER_WORKER_SET, RESOURCE_CLAIM_TEMPLATE),
        *(child.resource for child in CHILD_KINDS),
    )
}


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """The resource of a manifest; KeyError for an unknown kind."""
    resource = BY_KIND[manifest["kind"]]
    if resource.api_version != manifest["apiVersion"]:
        raise KeyError(f"{manifest['apiVersion']}/{manifest['kind']}")
    return resource
