"""Volumes of this machine for claims that the operator makes; the local cluster has no provisioner."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.patience import KUBECTL_TIMEOUT


def volume_for(cluster: Cluster, namespace: str, claim: str, folder: Path) -> str:
    """A PersistentVolume that only this claim gets: an empty folder that any user may write to. Its name."""
    folder.mkdir(parents=True)
    folder.chmod(0o777)  # the kubelet leaves the owner of a host's folder as it is
    name = f"{namespace}-{claim}"
    # A volume stays bound to the claim of a namespace that is gone, even one of the same name.
    cluster.kubectl("delete", "pv", name, "--ignore-not-found", KUBECTL_TIMEOUT)
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "",
                "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(folder), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": claim},
            },
        },
        namespace,
    )
    return name
