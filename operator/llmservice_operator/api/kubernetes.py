"""Kubernetes' own schemas for fields of the spec that are passed on unchanged, cut by scripts/kubernetes_shapes.py."""

import json
from importlib.resources import files
from typing import Any

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
