"""Which folder the built programs go to, and how they are built."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localcluster import builds
from localcluster.programs import PROGRAMS, Folder, Group, Program, builds_of, content_hash, of_group

SOURCES = {"go.mod": b"module x\n", "go.sum": b"sum\n", "cmd/coredns/main.go": b"package main\n"}
RUNC = Program("runc", "github.com/opencontainers/runc", Group.IMAGES, cgo=True, tags=("seccomp",))


def test_the_hash_is_stable_and_ignores_order() -> None:
    shuffled = dict(reversed(SOURCES.items()))
    assert content_hash(SOURCES, [RUNC], "x86_64") == content_hash(shuffled, [RUNC], "x86_64")


@pytest.mark.parametrize(
    ("sources", "programs", "architecture"),
    [
        pytest.param({**SOURCES, "go.sum": b"other\n"}, [RUNC], "x86_64", id="a changed file"),
        pytest.param({**SOURCES, "cmd/x/main.go": b""}, [RUNC], "x86_64", id="a new file"),
        pytest.param({**SOURCES, "go.mod": b"module x\ns", "go.sum": b"um\n"}, [RUNC], "x86_64", id="a moved boundary"),
        pytest.param(SOURCES, [replace(RUNC, tags=())], "x86_64", id="a build tag"),
        pytest.param(SOURCES, [replace(RUNC, cgo=False)], "x86_64", id="cgo"),
        pytest.param(SOURCES, [], "x86_64", id="the programs"),
        pytest.param(SOURCES, [RUNC], "aarch64", id="the architecture"),
    ],
)
def test_the_hash_changes_with(sources: dict[str, bytes], programs: list[Program], architecture: str) -> None:
    assert content_hash(sources, programs, architecture) != content_hash(SOURCES, [RUNC], "x86_64")


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        pytest.param("k8s.io/kubernetes/cmd/kubelet", "kubelet", id="last part"),
        pytest.param("go.etcd.io/etcd/server/v3", "server", id="a major version is no name"),
        pytest.param("./cmd/coredns", "coredns", id="our own"),
        pytest.param("example.com/vault", "vault", id="a name with a v"),
    ],
)
def test_the_name_that_go_gives(package: str, expected: str) -> None:
    assert Program("any", package, Group.CLUSTER).built_name == expected


def test_programs_with_equal_settings_are_built_at_once() -> None:
    parts = builds_of(of_group(Group.IMAGES))
    assert [(part.cgo, part.tags) for part in parts] == [
        (False, ("no_btrfs", "no_devmapper", "no_zfs")),
        (True, ("seccomp",)),
    ]
    assert parts[1].command("go", "/out/")[-3:] == ("-o", "/out/", "github.com/opencontainers/runc")


def test_each_name_is_built_once() -> None:
    names = [(program.folder, program.name) for program in PROGRAMS if program.group is not Group.HELM]
    assert len(names) == len(set(names))
    assert {program.group for program in PROGRAMS if program.folder is Folder.CNI} == {Group.CLUSTER}


def test_every_program_is_a_tool_of_go_mod() -> None:
    """A package that go.mod does not list as a tool loses its sums at the next `go mod tidy`."""
    tools = {group: (builds.go_folder(group) / "go.mod").read_text().split() for group in Group}
    named = [program for program in PROGRAMS if not program.package.startswith("./")]
    assert [program.package for program in named if program.package not in tools[program.group]] == []


def test_simulated_nodes_are_not_built_for_the_demo() -> None:
    assert [program.name for program in of_group(Group.SIMULATION)] == ["kwok"]
