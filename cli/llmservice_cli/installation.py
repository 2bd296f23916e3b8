"""Where the operator is installed, by the chart's labels. Anybody may set these on objects of their own namespace."""

from __future__ import annotations

from llmservice_operator.api.constants import OPERATOR
from llmservice_operator.kube.errors import Forbidden
from llmservice_operator.kube.resources import Resource

from .api import Api

NAMESPACE = "llmservice-system"
"""As docs/install.md installs the chart."""
SELECTOR = f"app.kubernetes.io/name={OPERATOR}"
ACTIVATORS = f"{SELECTOR}-activator"
_CLUSTER_ROLE_BINDING = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding")


async def installed_in(kube: Api) -> frozenset[str]:
    """Namespaces to which a ClusterRoleBinding of the chart gives rights; empty: there is none, or they may not be
    listed."""
    try:
        bindings = await kube.list_all(_CLUSTER_ROLE_BINDING, None, label_selector=SELECTOR)
    except Forbidden:
        return frozenset()
    subjects = (subject for binding in bindings for subject in binding.get("subjects") or ())
    return frozenset(subject["namespace"] for subject in subjects if subject.get("namespace"))
