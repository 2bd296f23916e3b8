"""An image's layers are read off the running containerd while its garbage collector is at work."""

from __future__ import annotations

import json

import pytest

from localcluster.imagecopy import ImageStore, chains
from localcluster.install import STAND_IN_IMAGE
from localcluster.place import ctr_command, first
from tests.support.cluster import Cluster

pytestmark = pytest.mark.beside_keda


class Collected(ImageStore):
    """Its garbage is collected after every command, as a node's that goes at that moment may be."""

    def ctr(self, *words: str, stdin: bytes | None = None) -> bytes:
        said = super().ctr(*words, stdin=stdin)
        super().ctr("leases", "create", "--id", "collect")
        super().ctr("leases", "delete", "--sync", "collect")
        return said


def test_layers_are_read_while_garbage_is_collected(cluster: Cluster) -> None:
    store = Collected(ctr_command(cluster.paths, first(cluster.paths)))
    manifest = json.loads(store.content(store.digests()[STAND_IN_IMAGE]))
    names = chains(json.loads(store.content(manifest["config"]["digest"]))["rootfs"]["diff_ids"])
    folders = store.layers(names[-1])
    assert len(folders) == len(names)
    assert all(folder.is_dir() for folder in folders)
    # Not all of them: those of containers come and go with the pods of other tests.
    there = store.snapshots()
    assert there.issuperset(names)
    assert [key for key in there if key.startswith("looked-at-")] == []
