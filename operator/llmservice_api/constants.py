"""Names in Kubernetes objects: the API's own, labels, annotations, field managers.

Names that operator and pods share are in `llmservice_runtime.contract`. The chart's templates and the docs cannot
import them: `tests/unit/project/test_shared_names.py` compares.
"""

from collections.abc import Mapping
from typing import Any, Final

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

# Annotations.
UPDATE_REQUESTED_ANNOTATION: Final = f"{GROUP}/update-requested"
"""On an LLMService, set by a user to any value."""
APPLIED_HASH_ANNOTATION: Final = f"{GROUP}/applied-hash"
"""On children: hash of the applied manifest. It also shows drift in a field that is no longer applied."""
ADAPTERS_ANNOTATION: Final = f"{GROUP}/adapters"
"""On the Service: digest of the applied list of adapters, since the operator may not read ConfigMaps. A change of the
Deployment's annotations would change its generation and its ReplicaSets."""
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


def is_replica(metadata: Mapping[str, Any], service: str) -> bool:
    """Whether a pod with this service's label belongs to its Deployment: its controller is a ReplicaSet of that
    Deployment.

    A debug copy (kubectl debug) has the labels but no such controller. Controllers with similar names (an Argo Rollout
    of the service's name) do not set these labels.
    """
    suffix = (metadata.get("labels") or {}).get(TEMPLATE_HASH_LABEL)
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return (reference.get("kind"), reference.get("name")) == ("ReplicaSet", f"{service}-{suffix}")
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
