"""Argo CD's application controller and repository server on this machine, for some namespaces of the cluster."""

from __future__ import annotations

import json
import os
import shutil
import socket
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.builds import Store, build, module_folder
from localcluster.paths import cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from release.tools import Tools, answering
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.crds import await_established
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.ports import free_port

MODULE = "github.com/argoproj/argo-cd/v3"
APPLICATION = "applications.argoproj.io"
_REFRESH = "argocd.argoproj.io/refresh"


@dataclass(frozen=True)
class ArgoCD:
    """Both run; `namespace` has the Applications."""

    cluster: Cluster
    namespace: str

    def apply(self, *manifests: JSON) -> None:
        self.cluster.apply_all(manifests, self.namespace)

    def application(self, name: str) -> JSON:
        found: JSON = json.loads(self.cluster.kubectl("get", APPLICATION, name, "-n", self.namespace, "-o", "json"))
        return found

    def refresh(self, name: str) -> None:
        """Have the source fetched and compared with the cluster now, and wait until it is."""
        words = ("annotate", "--overwrite", APPLICATION, name, f"{_REFRESH}=hard", "-n", self.namespace)
        self.cluster.kubectl(*words)

        def compared() -> bool:
            return _REFRESH not in self.application(name)["metadata"].get("annotations", {})

        eventually(f"{name} is compared", compared, 60)

    def await_state(self, name: str, sync: str, health: str, revision: str, timeout: float = 120) -> JSON:
        """The Application's status once it has both states at the revision, and no operation runs."""

        def look() -> JSON | None:
            status: JSON = self.application(name).get("status", {})
            compared = status.get("sync", {})
            states = (compared.get("status"), status.get("health", {}).get("status"))
            is_done = status.get("operationState", {}).get("phase") != "Running"
            return status if states == (sync, health) and compared.get("revision") == revision and is_done else None

        try:
            return eventually(f"Application {name} is {sync} and {health}", look, timeout)
        except AssertionError as slow:
            raise AssertionError(f"{slow}\n{yaml.safe_dump(self.application(name).get('status'))}") from slow


def _core(kind: str, name: str, labels: Mapping[str, str] | None = None, **fields: Any) -> JSON:
    named = {"name": name, "labels": {"app.kubernetes.io/part-of": "argocd", **(labels or {})}}
    return {"apiVersion": "v1", "kind": kind, "metadata": named, **fields}


def _settings(namespace: str, config: JSON, deploys_to: Sequence[str]) -> list[JSON]:
    """What it reads at its start, the project `default`, and the cluster: `namespace` alone, or all of it.

    A cluster of some namespaces may have no objects beside them, such as a CRD.
    """
    files = ("argocd-rbac-cm", "argocd-gpg-keys-cm", "argocd-ssh-known-hosts-cm", "argocd-tls-certs-cm")
    cluster = {
        "name": "in-cluster", "server": "https://kubernetes.default.svc", "config": "{}",
        **({} if deploys_to else {"namespaces": namespace, "clusterResources": "false"}),
    }  # fmt: skip
    destinations = [{"server": "*", "namespace": name} for name in deploys_to or (namespace,)]
    beside = [{"group": "*", "kind": "*"}] if deploys_to else []
    project = {"sourceRepos": ["*"], "destinations": destinations, "clusterResourceWhitelist": beside}
    return [
        _core("ConfigMap", "argocd-cm", data=config["data"]),
        *(_core("ConfigMap", name) for name in files),
        _core("Secret", "argocd-secret", stringData={"server.secretkey": "of-the-tests"}),
        _core("Secret", "in-cluster", {"argocd.argoproj.io/secret-type": "cluster"}, stringData=cluster),
        {"apiVersion": "argoproj.io/v1alpha1", "kind": "AppProject", "metadata": {"name": "default"}, "spec": project},
    ]


def _answers(port: int) -> Callable[[], bool]:
    def probe() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2):
                return True
        except OSError:
            return False

    return probe


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        asking.settimeout(1)
        return asking.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def argocd(
    cluster: Cluster, namespace: str, folder: Path, config: JSON, deploys_to: Sequence[str] = ()
) -> Iterator[ArgoCD]:
    """Run both, with `config` as argocd-cm, in an existing namespace; at the end its Applications are deleted.

    Without `deploys_to` they deploy to this namespace alone, else to those and to what is in no namespace.
    """
    redis = shutil.which("redis-server")
    if redis is None:
        pytest.skip("needs redis-server, Argo CD's cache: apt-get install redis-server")
    store, progress = Store(cache_root(os.environ, Path.home())), Progress()
    # The first call on a machine compiles them: a quarter of an hour and more on two busy cores.
    programs = build(store, Group.ARGOCD_CONTROLLERS, os.environ, progress)
    source = module_folder(store, Group.ARGOCD_CONTROLLERS, MODULE, os.environ, progress)
    # Its image has it on the PATH; a module's files cannot be executed.
    verifier = folder / "bin" / "git-verify-wrapper.sh"
    verifier.parent.mkdir()
    shutil.copy(source / "hack" / verifier.name, verifier)
    verifier.chmod(0o755)
    crds = ("-k", str(source / "manifests" / "crds"))
    cluster.kubectl("apply", "--server-side", "--force-conflicts", *crds)
    await_established(cluster, APPLICATION, "appprojects.argoproj.io")
    running = ArgoCD(cluster, namespace)
    running.apply(*_settings(namespace, config, deploys_to))
    cache, repository, figures, more_figures = (free_port() for _ in range(4))
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.paths.kubeconfig), "HOME": str(folder), "TMPDIR": str(folder),
        # The cluster of the kubeconfig is the one of its Applications.
        "ARGOCD_FAKE_IN_CLUSTER": "true",
        "ARGOCD_GPG_ENABLED": "false", "ARGOCD_CONTROLLER_SHARD": "0", "ARGOCD_CONTROLLER_REPLICAS": "1",
    }  # fmt: skip
    at_cache = ("--redis", f"127.0.0.1:{cache}")
    servers: list[tuple[str, tuple[str, ...], Callable[[], bool]]] = [
        ("redis", (redis, "--port", str(cache), "--save", "", "--dir", str(folder)), lambda: _listens(cache)),
        (
            "argocd-repo-server",
            (
                "argocd", "--address", "127.0.0.1", "--port", str(repository), "--disable-tls", "--client-ca-path", "",
                "--metrics-address", "127.0.0.1", "--metrics-port", str(figures), *at_cache,
            ),
            _answers(figures),
        ),
        (
            "argocd-application-controller",
            (
                "argocd", "--namespace", namespace, "--kubeconfig", str(cluster.paths.kubeconfig),
                "--repo-server", f"127.0.0.1:{repository}", "--repo-server-plaintext",
                "--metrics-port", str(more_figures), *at_cache,
            ),
            _answers(more_figures),
        ),
    ]  # fmt: skip
    with ExitStack() as processes:
        for name, command, probe in servers:
            tools = Tools((programs, verifier.parent), {**environment, "ARGOCD_BINARY_NAME": name})
            processes.enter_context(answering(name, command, tools, probe, folder / f"{name}.log"))
        try:
            yield running
        finally:
            cluster.kubectl("delete", APPLICATION, "--all", "-n", namespace, KUBECTL_TIMEOUT)
            cluster.kubectl("delete", "appprojects.argoproj.io", "--all", "-n", namespace, KUBECTL_TIMEOUT)
            cluster.kubectl("delete", *crds, KUBECTL_TIMEOUT)
