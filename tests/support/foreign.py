"""An object of somebody else for each kind that the operator makes, each with a value that the operator's lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON = dict[str, Any]
_LABELS = {"app": "theirs"}
_POD: JSON = {"containers": [{"name": "theirs", "image": "registry.local/pause:1"}]}
THEIRS: Mapping[str, JSON] = {
    "configmaps": {"apiVersion": "v1", "kind": "ConfigMap", "data": {"theirs": "1"}},
    "services": {"apiVersion": "v1", "kind": "Service", "spec": {"selector": _LABELS, "ports": [{"port": 80}]}},
    "persistentvolumeclaims": {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "2Gi"}}},
    },
    "controllerrevisions": {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "revision": 7,
        "data": {"theirs": True},
    },
    "deployments": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": _LABELS},
            "template": {"metadata": {"labels": _LABELS}, "spec": _POD},
        },
    },
    "poddisruptionbudgets": {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "spec": {"minAvailable": 0, "selector": {"matchLabels": _LABELS}},
    },
    "jobs": {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"suspend": True, "backoffLimit": 3, "template": {"spec": {**_POD, "restartPolicy": "Never"}}},
    },
}
"""By plural, in the order in which the operator applies its children."""


def theirs(plural: str, name: str) -> JSON:
    """A manifest of that name."""
    return {**THEIRS[plural], "metadata": {"name": name}}
