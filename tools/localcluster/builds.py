"""Build the programs once for each content of their sources, and link them where PATH finds them."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from localcluster.commands import run, run_logged
from localcluster.paths import ClusterPaths
from localcluster.programs import PROGRAMS, Build, Folder, Group, builds_of, content_hash, of_group
from localcluster.progress import Progress, Step
from localcluster.toolchain import go_command

GO_FOLDER = Path(__file__).resolve().parent / "go"
_OWN_FOLDERS = {
    Group.OLDEST_KUBERNETES: GO_FOLDER.with_name("go-oldest-kubernetes"),
    Group.OBJECT_STORE: GO_FOLDER.with_name("go-s3"),
    Group.GOOGLE_STORE: GO_FOLDER.with_name("go-gcs"),
    Group.HEALTH: GO_FOLDER.with_name("go-health"),
    **dict.fromkeys((Group.ARGOCD, Group.ARGOCD_CONTROLLERS), GO_FOLDER.with_name("go-argocd")),
    **dict.fromkeys((Group.RELEASE, Group.CRANE, Group.REGISTRY, Group.WORKFLOWS), GO_FOLDER.with_name("go-release")),
    Group.FETCH: GO_FOLDER.with_name("go-fetch"),
    Group.KEDA: GO_FOLDER.with_name("go-keda"),
    Group.LWS: GO_FOLDER.with_name("go-lws"),
    Group.FLUX: GO_FOLDER.with_name("go-flux"),
    Group.ENDPOINT_PICKER: GO_FOLDER.with_name("go-gateway"),
    Group.ENVOY_GATEWAY: GO_FOLDER.with_name("go-envoy-gateway"),
    Group.PROMETHEUS: GO_FOLDER.with_name("go-prometheus"),
    Group.PROMETHEUS_OPERATOR: GO_FOLDER.with_name("go-prometheus-operator"),
    Group.NETWORK_POLICIES: GO_FOLDER.with_name("go-network-policies"),
}


def go_folder(group: Group) -> Path:
    """Where the go.mod of a group lies."""
    return _OWN_FOLDERS.get(group, GO_FOLDER)


def sources(folder: Path = GO_FOLDER) -> dict[str, bytes]:
    """What is compiled: go.mod, go.sum and our own main packages."""
    wanted = [folder / "go.mod", folder / "go.sum", *folder.glob("cmd/**/*.go")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in wanted}


@dataclass(frozen=True)
class Store:
    """The built programs in the user's cache, shared by all clones."""

    cache: Path

    def folder(self, group: Group) -> Path:
        # Each group has a hash of its own rows, so that a new row rebuilds one group and not all.
        name = content_hash(sources(go_folder(group)), of_group(group), platform.machine())
        return self.cache / "bin" / name

    def has(self, group: Group) -> bool:
        return self.folder(group).is_dir()

    @contextmanager
    def lock(self, group: Group) -> Iterator[None]:
        """Two clones that build the same thing: the second waits and finds it done."""
        folder = self.folder(group)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _go_environment(environment: Mapping[str, str], **more: str) -> dict[str, str]:
    # A workspace or flags of the user's own would change what is built under the same hash; and where a distribution
    # sets GOTOOLCHAIN to `local`, a go.mod that names a newer Go would be refused.
    clean = {key: value for key, value in environment.items() if key not in {"GOFLAGS", "GOOS", "GOARCH"}}
    return {**clean, "GOWORK": "off", "GOTOOLCHAIN": "auto", **more}


def _compile(build: Build, go: str, folder: Path, output: Path, environment: Mapping[str, str], step: Step) -> None:
    log, compiled = output.with_name(f"{output.name}.log"), count(1)
    run_logged(
        build.command(go, f"{output}/"),
        log,
        step,
        lambda line: f"{next(compiled)} packages, now {line.strip()[:70]}",
        failure="go build failed",
        environment=_go_environment(environment, CGO_ENABLED="1" if build.cgo else "0"),
        cwd=folder,
    )
    log.unlink()


def build(store: Store, group: Group, environment: Mapping[str, str], progress: Progress) -> Path:
    """The folder with the group's programs, built now if it is not there."""
    folder = store.folder(group)
    with store.lock(group):
        if folder.is_dir():
            return folder
        go = go_command(store.cache, progress)
        partial = folder.with_name(f".{folder.name}.partial")
        # Left by a build that was killed; ours alone, since we hold the lock.
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        members = of_group(group)
        with progress.step(f"building {len(members)} programs ({group})") as step:
            for part in builds_of(members):
                _compile(part, go, go_folder(group), partial, environment, step)
        for program in members:
            (partial / program.built_name).rename(partial / program.name)
        partial.rename(folder)
    return folder


def module_folder(store: Store, group: Group, module: str, environment: Mapping[str, str], progress: Progress) -> Path:
    """The source of a module that the group's go.mod requires, in Go's module cache; downloaded if it is not there."""
    go = go_command(store.cache, progress)
    download = (go, "mod", "download", "-json", module)
    said = run(*download, cwd=go_folder(group), environment=_go_environment(environment))
    return Path(json.loads(said)["Dir"])


def link(store: Store, group: Group, paths: ClusterPaths) -> None:
    """Points .cluster/bin and the plugin folder at the built programs."""
    targets = {Folder.BIN: paths.bin, Folder.CNI: paths.cni_bin}
    folder = store.folder(group)
    for program in of_group(group, PROGRAMS):
        place = targets[program.folder]
        place.mkdir(parents=True, exist_ok=True)
        partial = place / f".{program.name}.{os.getpid()}"
        partial.unlink(missing_ok=True)
        partial.symlink_to(folder / program.name)
        partial.replace(place / program.name)


def ensure(store: Store, group: Group, paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> None:
    build(store, group, environment, progress)
    link(store, group, paths)
