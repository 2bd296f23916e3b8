"""What of a second node can be known without one: its image layers, its processes, its control groups."""

from __future__ import annotations

import io
import json
import tarfile
from itertools import combinations
from pathlib import Path

import pytest

from localcluster import identity, place, traces
from localcluster.imagecopy import archive, chains, lower_folders, upper_folder
from localcluster.network import chains_of, removal
from localcluster.paths import ClusterPaths

PATHS = ClusterPaths(Path("/clone"))


def test_chain_ids_are_those_of_the_image_format() -> None:
    """The second is sha256("sha256:aa sha256:bb"), as containerd names the snapshot."""
    assert chains(["sha256:aa", "sha256:bb"]) == (
        "sha256:aa",
        "sha256:b68ad689d6d1ec110ea1c13617437ad6f3766d4b3b309f6a603a222e07a0164f",
    )


@pytest.mark.parametrize(
    ("mount", "lower", "upper"),
    [
        pytest.param(
            "mount -t overlay overlay /mnt -o index=off,workdir=/s/9/work,upperdir=/s/9/fs,lowerdir=/s/3/fs:/s/1/fs\n",
            ("/s/1/fs", "/s/3/fs"), "/s/9/fs", id="layers",
        ),
        pytest.param("mount -t bind /s/1/fs /mnt -o ro,rbind\n", ("/s/1/fs",), "/s/1/fs", id="one layer"),
    ],
)  # fmt: skip
def test_folders_of_a_mount_command(mount: str, lower: tuple[str, ...], upper: str) -> None:
    assert lower_folders(mount) == tuple(Path(folder) for folder in lower)
    assert upper_folder(mount) == Path(upper)


def test_an_archive_holds_the_manifest_and_the_configuration_and_no_layer() -> None:
    manifest = json.dumps({"mediaType": "m", "config": {"digest": "sha256:c"}, "layers": [{"digest": "sha256:l"}]})
    with tarfile.open(fileobj=io.BytesIO(archive("registry.local/x:1", "sha256:m", manifest.encode(), b"{}"))) as tar:
        assert set(tar.getnames()) == {"oci-layout", "index.json", "blobs/sha256/m", "blobs/sha256/c"}
        index = tar.extractfile("index.json")
        assert index is not None
        (entry,) = json.load(index)["manifests"]
    assert (entry["digest"], entry["size"]) == ("sha256:m", len(manifest))
    assert entry["annotations"] == {"io.containerd.image.name": "registry.local/x:1"}


def test_only_its_own_processes_end_with_a_second_node() -> None:
    """A power loss of the one must not touch the other's, nor another clone's node of the same name."""
    root, node = Path("/clone"), "node-b"
    ours, mark = b"LLMSERVICE_LOCALCLUSTER=/clone", b"LLMSERVICE_LOCALCLUSTER_NODE=node-b"
    assert identity.has_node_mark(b"\0".join((b"A=1", ours, mark)), root, node)
    assert not identity.has_node_mark(ours, root, node)
    assert not identity.has_node_mark(b"\0".join((b"LLMSERVICE_LOCALCLUSTER=/other", mark)), root, node)


def test_places_share_nothing_but_the_programs() -> None:
    folders = ("containerd", "containerd_state", "containerd_socket", "cni_config", "addresses", "kubelet", "pod_logs")
    names = (*folders, "config", "pods", "gateway", "cgroup_root", "kubelet_identity", "name", "interface", "link")
    places = (place.first(PATHS), *(place.added(PATHS, name) for name in place.ADDED))
    for one, two in combinations(places, 2):
        assert [name for name in names if getattr(one, name) == getattr(two, name)] == []
        assert one.component("kubelet") != two.component("kubelet")


def test_interfaces_have_names_that_the_kernel_takes() -> None:
    for name in place.ADDED:
        assert len(f"{place.added(PATHS, name).interface}-void") < 16


def test_its_control_group_may_use_every_processor(tmp_path: Path) -> None:
    for name in ("cpu", "cpuset"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-1")
    (tmp_path / "cpuset" / "cpuset.mems").write_text("0")
    traces.make_groups(place.added(PATHS), tmp_path)
    assert (tmp_path / "cpu" / "llmservice-node-b").is_dir()
    assert (tmp_path / "cpuset" / "llmservice-node-b" / "cpuset.cpus").read_text() == "0-1"


def test_the_pods_chain_is_found_by_down() -> None:
    """It is named so that the removal of what CNI plugins left takes it too, also when a crash left it."""
    saved = (
        "*nat\n:POSTROUTING ACCEPT [0:0]\n:CNI-POD-TO-POD - [0:0]\n-A POSTROUTING -j CNI-POD-TO-POD\n"
        "-A CNI-POD-TO-POD -s 10.244.0.0/16 -d 10.244.0.0/16 -j ACCEPT\nCOMMIT\n"
    )
    assert chains_of(saved) == {"CNI-POD-TO-POD"}
    assert "-X CNI-POD-TO-POD" in removal(saved, frozenset())
