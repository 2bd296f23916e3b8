"""Which folder the built programs go to, and how they are built."""

from __future__ import annotations

from dataclasses import replace

import pytest
from llmservice_api.docs import page

from localcluster import builds
from localcluster.programs import (
    KUBERNETES,
    OLDEST_KUBERNETES,
    PROGRAMS,
    Folder,
    Group,
    Program,
    builds_of,
    content_hash,
    of_group,
)

SOURCES = {"go.mod": b"module x\n", "go.sum": b"sum\n", "cmd/coredns/main.go": b"package main\n"}
RUNC = Program("runc", "github.com/opencontainers/runc", Group.IMAGES, cgo=True, tags=("seccomp",))


def test_the_hash_ignores_the_order_of_sources_and_nothing_else() -> None:
    known = content_hash(SOURCES, [RUNC], "x86_64")
    assert content_hash(dict(reversed(SOURCES.items())), [RUNC], "x86_64") == known
    others = [
        content_hash({**SOURCES, "go.sum": b"other\n"}, [RUNC], "x86_64"),
        content_hash({**SOURCES, "cmd/x/main.go": b""}, [RUNC], "x86_64"),
        content_hash({**SOURCES, "go.mod": b"module x\ns", "go.sum": b"um\n"}, [RUNC], "x86_64"),
        content_hash(SOURCES, [replace(RUNC, tags=())], "x86_64"),
        content_hash(SOURCES, [replace(RUNC, cgo=False)], "x86_64"),
        content_hash(SOURCES, [], "x86_64"),
        content_hash(SOURCES, [RUNC], "aarch64"),
    ]
    assert len({known, *others}) == 8


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
        ("go.etcd.io/etcd/server/v3", "server"),  # a major version is no name
        ("./cmd/coredns", "coredns"),
        ("example.com/vault", "vault"),
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
    apart = (Group.HELM, Group.OLDEST_KUBERNETES)
    names = [(program.folder, program.name) for program in PROGRAMS if program.group not in apart]
    assert len(names) == len(set(names))
    assert {program.group for program in PROGRAMS if program.folder is Folder.CNI} == {Group.CLUSTER}


def test_every_program_is_a_tool_of_go_mod() -> None:
    """A package that go.mod does not list as a tool loses its sums at the next `go mod tidy`."""
    tools = {group: (builds.go_folder(group) / "go.mod").read_text().split() for group in Group}
    named = [program for program in PROGRAMS if not program.package.startswith("./")]
    assert [program.package for program in named if program.package not in tools[program.group]] == []


def test_simulated_nodes_are_not_built_for_the_demo() -> None:
    assert [program.name for program in of_group(Group.SIMULATION)] == ["kwok"]


def test_the_page_names_the_versions_of_kubernetes_that_the_tests_run_on() -> None:
    assert all(f"\n| {version} |" in page() for version in (KUBERNETES, OLDEST_KUBERNETES))
