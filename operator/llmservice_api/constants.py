"""Names in Kubernetes objects: the API's own, labels, annotations, field managers. Each has no other home.

What the pods and the operator share is in `llmservice_runtime.contract`. The chart's templates and the docs cannot
import these names: `tests/unit/test_shared_names.py` compares them.
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
"""Value of the label managed-by, field manager, source of Events, user agent and default name of the Lease."""

# Labels.
SERVICE_LABEL: Final = f"{GROUP}/service"
"""The service's name, on every child and every pod of it: what its Service and `kubectl -l` select."""
REVISION_LABEL: Final = f"{GROUP}/revision"
INSPECTS_LABEL: Final = f"{GROUP}/inspects"
"""On the pod that reads a service's model, instead of SERVICE_LABEL: it is none of the service's pods."""
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
TEMPLATE_HASH_LABEL: Final = "pod-template-hash"
"""On a Deployment's pods, Kubernetes' own: how their ReplicaSet's name ends."""

# Annotations.
UPDATE_REQUESTED_ANNOTATION: Final = f"{GROUP}/update-requested"
"""On an LLMService, by a user: any value."""
APPLIED_HASH_ANNOTATION: Final = f"{GROUP}/applied-hash"
"""On children: a hash of what was applied, so that drift is noticed in a field that is no longer applied, too."""
ADAPTERS_ANNOTATION: Final = f"{GROUP}/adapters"
"""On the Service: the digest of the list of adapters that was applied. The operator may not read ConfigMaps and knows
the list by it. Not on the Deployment, whose generation counts annotations: it would not be rolled out for a moment, and
its ReplicaSet would be written too."""
STRATEGY_ANNOTATION: Final = f"{GROUP}/rollout-strategy"
"""On the Deployment: what Auto was found to be when its template was applied, where that is not the usual strategy."""
DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
"""On a pod, Kubernetes' own: a ReplicaSet ends those with the lowest first."""
SPLIT_ANNOTATION: Final = f"{GROUP}/shards"
"""On the operator's Lease: over how many Leases earlier releases split the work; absent: one."""

# Field managers.
MANAGER: Final = OPERATOR
STATUS_MANAGER: Final = f"{OPERATOR}-status"
DRY_RUN_MANAGER: Final = f"{OPERATOR}-look"
"""Of dry runs; it owns no field."""

DEFAULT_ENDPOINT_PORT: Final = 80
DEFAULT_DRAIN_SECONDS: Final = 120
TYPICAL_REQUEST: Final = 2048
"""Tokens that a request has on average, prompt and answer: few are near the longest that is allowed."""


def selector_text(service: str) -> str:
    """What selects a service's pods and children, as `kubectl -l` and autoscalers write it."""
    return f"{SERVICE_LABEL}={service}"


def is_replica(metadata: Mapping[str, Any], service: str) -> bool:
    """Whether a pod with the label of this service is of its Deployment: of a ReplicaSet that this one named.

    A copy that somebody made to look into a pod (kubectl debug) has its labels and no controller, or another one. What
    other controllers name alike (an Argo Rollout of the service's name) they do not label alike.
    """
    suffix = (metadata.get("labels") or {}).get(TEMPLATE_HASH_LABEL)
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return (reference.get("kind"), reference.get("name")) == ("ReplicaSet", f"{service}-{suffix}")
    return False


def claim_names(service: str) -> dict[str, str]:
    """All claims that the operator may make for a service, with the field that asks for each."""
    return {cache_claim_name(service): "spec.model.cache", start_cache_claim_name(service): "spec.startCache"}


def start_cache_claim_name(service: str) -> str:
    """The PersistentVolumeClaim that the operator makes for spec.startCache."""
    return f"{service}-start-cache"


def cache_claim_name(service: str) -> str:
    """The PersistentVolumeClaim that the operator makes for spec.model.cache."""
    return f"{service}-cache"
