"""Tiny models as claims: what a test asks for by name is taught once, and pods read it from the user's cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from localcluster.tinymodel.cache import model_folder
from localcluster.tinymodel.variants import VARIANTS
from tests.support.cluster import Cluster
from tests.support.patience import KUBECTL_TIMEOUT

CLAIM = "tiny-models"


def model_uri(cluster: Cluster, namespace: str, variant: str) -> str:
    """The URI of a variant, `pvc://tiny-models/...`; every variant that a namespace asks for lies in the same claim."""
    folder = model_folder(VARIANTS[variant])
    if not folder.is_dir():
        # In a process of its own: PyTorch's memory is given back when it ends, and so are the switches that it sets.
        subprocess.run([sys.executable, "-m", "localcluster.tinymodel", "--variant", variant], check=True)
    if cluster.get("persistentvolumeclaims", namespace, CLAIM) is None:
        claim_folder(cluster, namespace, CLAIM, folder.parent)
    return f"pvc://{CLAIM}/{folder.name}"


def claim_folder(cluster: Cluster, namespace: str, claim: str, folder: Path, *, access: str = "ReadOnlyMany") -> None:
    """A claim of `namespace` that shows a folder of this machine to pods."""
    volume = f"{namespace}-{claim}"
    # A volume stays bound to the claim of a namespace that is gone, even one of the same name.
    cluster.kubectl("delete", "pv", volume, "--ignore-not-found", KUBECTL_TIMEOUT)
    size = {"storage": "1Gi"}
    common = {"accessModes": [access], "storageClassName": ""}
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **common,
                "capacity": size,
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(folder), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": claim},
            },
        },
        namespace,
    )
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim},
            "spec": {**common, "volumeName": volume, "resources": {"requests": size}},
        },
        namespace,
    )


def release_folder(cluster: Cluster, namespace: str, claim: str) -> None:
    """Take back what `claim_folder` made; its pods may still be ending."""
    cluster.kubectl("delete", "pvc", claim, "-n", namespace, "--wait=false")
    cluster.kubectl("delete", "pv", f"{namespace}-{claim}", "--wait=false")
