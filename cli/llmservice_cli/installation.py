"""Where the operator is installed, by the chart's labels. Anybody may set these on objects of their own namespace."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kubeloop.errors import Forbidden
from kubeloop.resources import POD, Resource
from llmservice_api.constants import OPERATOR

from .api import Api, Json, labels_of, status_of

NAMESPACE = "llmservice-system"
"""As docs/install.md installs the chart."""
NAME_LABEL, CHART_LABEL, VERSION_LABEL = "app.kubernetes.io/name", "helm.sh/chart", "app.kubernetes.io/version"
PAGES = f"{NAME_LABEL}={OPERATOR}-ui"
"""Pods of the web page."""
ACTIVATORS = f"app.kubernetes.io/component=activator,{CHART_LABEL}"
"""Of any chart: `is_of_chart` says which are this one's."""
_CHART = re.compile(rf"{OPERATOR}-\d")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_MOST_NAMES = 20
_CLUSTER_ROLE_BINDING = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding")


@dataclass(frozen=True, slots=True)
class Releases:
    """What the ClusterRoleBindings of the chart say."""

    namespaces: frozenset[str] = frozenset()
    """To which they give rights; empty: there is none, or they may not be listed."""
    names: frozenset[str] = frozenset({OPERATOR})
    """What releases give their objects as a name: the chart's, or a `nameOverride`."""

    @property
    def selector(self) -> str:
        """Of the operators' objects."""
        return selector_of(self.names)


def selector_of(names: Iterable[str]) -> str:
    """Of objects with one of these names as the chart's label."""
    found = sorted(names)
    return f"{NAME_LABEL}={found[0]}" if len(found) == 1 else f"{NAME_LABEL} in ({','.join(found)})"


def is_of_chart(found: Json) -> bool:
    """Whether its labels say so, whatever the release is named."""
    return bool(_CHART.match(_label(found, CHART_LABEL)))


async def releases(kube: Api) -> Releases:
    """Of the chart, also under a `nameOverride` or `fullnameOverride`."""
    try:
        bindings = await kube.list_all(_CLUSTER_ROLE_BINDING, None, label_selector=CHART_LABEL)
    except Forbidden:
        return Releases()
    own = [binding for binding in bindings if is_of_chart(binding)]
    subjects = (subject for binding in own for subject in binding.get("subjects") or ())
    named = {_label(binding, NAME_LABEL) for binding in own if "app.kubernetes.io/component" not in labels_of(binding)}
    return Releases(
        frozenset(subject["namespace"] for subject in subjects if subject.get("namespace")),
        frozenset({OPERATOR, *sorted(filter(_NAME.fullmatch, named))[:_MOST_NAMES]}),
    )


async def activators(kube: Api) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Where was looked; namespace and name of each pod that may hold requests: one that is ending does until its end.

    Anybody may give a pod of theirs the chart's labels, so one counts only where an operator is known to be installed,
    if that is known of any namespace.
    """
    try:
        pods = await kube.list_all(POD, None, label_selector=ACTIVATORS)
    except Forbidden:
        where, installed = f"namespace {NAMESPACE}; listing pods elsewhere is not allowed", frozenset({NAMESPACE})
        pods = await kube.list_all(POD, NAMESPACE, label_selector=ACTIVATORS)
    else:
        where, installed = "any namespace", (await releases(kube)).namespaces
    own = filter(is_of_chart, pods)
    running = [pod["metadata"] for pod in own if status_of(pod).get("phase") == "Running"]
    names = {(each["namespace"], each["name"]) for each in running if not installed or each["namespace"] in installed}
    # Where the chart is usually installed first: anybody may have many pods with its labels.
    return where, tuple(sorted(names, key=lambda name: (name[0] != NAMESPACE, name)))


def _label(found: Json, name: str) -> str:
    return str(labels_of(found).get(name) or "")
