"""Kubernetes' own schemas for fields of the spec, extracted by tools/scripts/kubernetes_shapes.py."""

import json
from importlib.resources import files
from typing import Annotated, Any

from pydantic import Field

from llmservice_api.base import Json

# The CRD has Kubernetes' schema for these fields; in Python their values are plain JSON.


def _shape(name: str) -> Any:
    """Marks a field whose schema is looked up by this name when the CRD is generated."""
    return Field(json_schema_extra={"x-shape": name})


SHAPED_FIELDS = frozenset(
    {
        *("affinity", "securityContext", "resources", "env", "imagePullSecrets", "tolerations"),
        *("topologySpreadConstraints", "volumes", "volumeMounts", "initContainers", "from"),
    }
)
"""Names of the fields with one of these schemas."""

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
    """The schema that `_shape` refers to by this name."""
    text = files(__package__).joinpath("kubernetes_shapes.json").read_text(encoding="utf-8")
    found: Schema = json.loads(text)[name]
    return found
