"""Cut Kubernetes' own schemas for fields of the spec that are passed on unchanged, from a cluster's OpenAPI documents.

    for each in api/v1 apis/networking.k8s.io/v1; do kubectl get --raw /openapi/v3/$each; echo; done | \\
        python -m scripts.kubernetes_shapes > \\
        operator/llmservice_api/kubernetes_shapes.json

The documents, one a line, have what a CRD needs but for maxima.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from llmservice_api.kubernetes import VOLUME_SOURCES, Schema

_PREFIX = "#/components/schemas/"
_CORE = "io.k8s.api.core.v1."
_LISTS = {
    "EnvVars": ("EnvVar", ["name"], 128),
    "ImagePullSecrets": ("LocalObjectReference", ["name"], 16),
    "Tolerations": ("Toleration", None, 32),
    "TopologySpreadConstraints": ("TopologySpreadConstraint", ["topologyKey", "whenUnsatisfiable"], 16),
    "Volumes": ("Volume", ["name"], 32),
    "VolumeMounts": ("VolumeMount", ["mountPath"], 32),
    "InitContainers": ("Container", ["name"], 16),
    "NetworkPolicyPeers": ("NetworkPolicyPeer", None, 16),
}
_OUTSIDE_CORE = {"NetworkPolicyPeer": "io.k8s.api.networking.v1."}
_OBJECTS = ("Affinity", "PodSecurityContext", "ResourceRequirements")
# Deprecated, alpha, or without a meaning for these pods.
_LEFT_OUT = {
    "ResourceRequirements": {"claims"},
    "Container": {"restartPolicyRules", "resizePolicy", "stdin", "stdinOnce", "tty", "volumeDevices"},
    "PodSecurityContext": {"windowsOptions"},
    "SecurityContext": {"windowsOptions"},
    "EnvVarSource": {"fileKeyRef"},
    "VolumeProjection": {"clusterTrustBundle", "podCertificate"},
}
_OFTEN = ("LabelSelector", "NodeSelectorTerm", "PodAffinityTerm", "ExecAction")
"""Whose fields are known and occur a dozen times: `kubectl apply` keeps the whole CRD in an annotation, which is
limited."""
_KEPT = ("type", "format", "enum", "required", "x-kubernetes-list-type", "x-kubernetes-list-map-keys")
_QUANTITY = r"^(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]+))?$"
_INT_OR_STRING = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
_ENV_VALUE_LENGTH = 32_768


def shapes_from(openapi: Mapping[str, Any]) -> dict[str, Schema]:
    """Every leaf's schema, cut from a cluster's OpenAPI v3 documents for core/v1 and networking.k8s.io/v1."""
    cutter = _Cutter(openapi["components"]["schemas"])
    shapes = {name: cutter.named(f"{_CORE}{name}") for name in _OBJECTS}
    for name, (kind, keys, most) in _LISTS.items():
        items = cutter.named(f"{_OUTSIDE_CORE.get(kind, _CORE)}{kind}")
        if keys:
            items["required"] = sorted({*items.get("required", []), *keys})
        list_type = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys} if keys else {}
        shapes[name] = {
            "type": "array",
            "maxItems": most,
            "items": items,
            **(list_type or {"x-kubernetes-list-type": "atomic"}),
        }
    return shapes


class _Cutter:
    """Resolves references, leaves out what a CRD may not or need not say, and adds maxima."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self.schemas = schemas

    def named(self, name: str) -> Schema:
        kind = name.rsplit(".", 1)[-1]
        if kind == "Quantity":
            return {**_INT_OR_STRING, "maxLength": 32, "pattern": _QUANTITY}
        if kind == "IntOrString":
            return {**_INT_OR_STRING, "maxLength": 64}
        if kind == "ObjectMeta":
            text = {"type": "string", "maxLength": 1024}
            labels = {"type": "object", "maxProperties": 64, "additionalProperties": text}
            return {"type": "object", "properties": {"labels": labels, "annotations": labels}}
        cut = self.cut(self.schemas[name], "")
        dropped = _LEFT_OUT.get(kind, set())
        if kind == "Volume":
            dropped = set(cut["properties"]) - {"name", *VOLUME_SOURCES}
        for field in dropped:
            cut["properties"].pop(field, None)
        if kind in _OFTEN:
            cut["properties"] = {name: _undescribed(part) for name, part in cut["properties"].items()}
        if "name" in cut.get("properties", {}) and kind in ("Container", "Volume"):
            cut["properties"]["name"] |= {"maxLength": 63, "minLength": 1, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
        return cut

    def cut(self, schema: Mapping[str, Any], field: str) -> Schema:
        target = self._target(schema)
        if target:
            result = self.named(target)
        else:
            result = {key: schema[key] for key in _KEPT if key in schema}
            result |= self._children(schema)
            result |= _maximum(schema, field)
        if "description" in schema:
            result["description"] = _first_sentence(schema["description"])
        if field == "protocol":  # a key of the list-map of ports, which must be there or have a default
            result["default"] = "TCP"
        return result

    def _target(self, schema: Mapping[str, Any]) -> str | None:
        reference = schema.get("$ref") or next((part.get("$ref") for part in schema.get("allOf", ())), None)
        return reference.removeprefix(_PREFIX) if reference else None

    def _children(self, schema: Mapping[str, Any]) -> Schema:
        children: Schema = {}
        if "properties" in schema:
            children["properties"] = {name: self.cut(part, name) for name, part in schema["properties"].items()}
        if "items" in schema:
            children["items"] = self.cut(schema["items"], "")
        if isinstance(schema.get("additionalProperties"), Mapping):
            children["additionalProperties"] = self.cut(schema["additionalProperties"], "")
        return children


def _maximum(schema: Mapping[str, Any], field: str) -> Schema:
    match schema.get("type"):
        case "string" if "enum" not in schema:
            return {"maxLength": _ENV_VALUE_LENGTH if field == "value" else 1024}
        case "array":
            return {"maxItems": 64}
        case "object" if "additionalProperties" in schema:
            return {"maxProperties": 64}
    return {}


def _undescribed(schema: Schema) -> Schema:
    """Without descriptions at any depth. A field may have that name itself."""
    found = {key: part for key, part in schema.items() if key != "description"}
    if "items" in found:
        found["items"] = _undescribed(found["items"])
    if "properties" in found:
        found["properties"] = {name: _undescribed(part) for name, part in found["properties"].items()}
    return found


def _first_sentence(text: str) -> str:
    line = " ".join(text.split("\n\n")[0].split())
    end = line.find(". ")
    return line if end < 0 else line[: end + 1]


if __name__ == "__main__":
    found = [json.loads(line)["components"]["schemas"] for line in sys.stdin if line.strip()]
    merged = {"components": {"schemas": {name: part for each in found for name, part in each.items()}}}
    json.dump(shapes_from(merged), sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")
