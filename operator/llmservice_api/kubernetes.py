"""Kubernetes' own schemas for fields of the spec passed on unchanged, cut by tools/scripts/kubernetes_shapes.py."""

import json
from importlib.resources import files
from typing import Annotated, Any

from pydantic import Field

from llmservice_api.base import Json

# Fields with Kubernetes' own schema in the CRD; in Python their values are plain JSON, passed on unchanged.


def _shape(name: str) -> Any:
    """Marks a leaf whose schema is looked up by this name when the CRD is generated."""
    return Field(json_schema_extra={"x-shape": name})


SHAPED_FIELDS = frozenset(
    {
        *("affinity", "securityContext", "resources", "env", "imagePullSecrets", "tolerations"),
        *("topologySpreadConstraints", "volumes", "volumeMounts", "initContainers", "from"),
    }
)
"""Names of the fields that have one of these shapes."""

JsonList = list[Json]

ResourceRequirements = Annotated[Json, _shape("ResourceRequirements")]
Affinity = Annotated[Json, _shape("Affinity")]
PodSecurityContext = Annotated[Json, _shape("PodSecurityContext")]
EnvVars = Annotated[JsonList, _shape("EnvVars")]
ImagePullSecrets = Annotated[JsonList, _shape("ImagePullSecrets")]
Tolerations = Annotated[JsonList, _shape("Tolerations")]
TopologySpreadConstraints = Annotated[JsonList, _shape("TopologySpreadConstraints")]
Volumes = Annotated[JsonList, _shape("Volumes")]
VolumeMounts = Annotated[JsonList, _shape("VolumeMounts")]
NetworkPolicyPeers = Annotated[JsonList, _shape("NetworkPolicyPeers")]
InitContainers = Annotated[JsonList, _shape("InitContainers")]


Schema = dict[str, Any]
VOLUME_SOURCES = (
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "hostPath", "image"),
    *("nfs", "persistentVolumeClaim", "projected", "secret"),
)


def shape(name: str) -> Schema:
    """The schema of one leaf, by the name that `shapes` gives it."""
    text = files(__package__).joinpath("kubernetes_shapes.json").read_text(encoding="utf-8")
    found: Schema = json.loads(text)[name]
    return found
