"""Where the operator is installed, by the chart's labels. Anybody may set these on objects of their own namespace."""

from __future__ import annotations

from llmservice_operator.api.constants import OPERATOR
from llmservice_operator.kube.errors import Forbidden
from llmservice_operator.kube.resources import POD, Resource

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


async def activators(kube: Api) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Where was looked; namespace and name of each pod that may hold requests: one that is ending does until its end.

    Anybody may give a pod of theirs the chart's label, so one counts only where an operator is known to be installed,
    if that is known of any namespace.
    """
    try:
        pods = await kube.list_all(POD, None, label_selector=ACTIVATORS)
    except Forbidden:
        where, installed = f"namespace {NAMESPACE}; listing pods elsewhere is not allowed", frozenset({NAMESPACE})
        pods = await kube.list_all(POD, NAMESPACE, label_selector=ACTIVATORS)
    else:
        where, installed = "any namespace", await installed_in(kube)
    running = [pod["metadata"] for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
    names = {(each["namespace"], each["name"]) for each in running if not installed or each["namespace"] in installed}
    # Where the chart is usually installed first: anybody may have many pods with its label.
    return where, tuple(sorted(names, key=lambda name: (name[0] != NAMESPACE, name)))
