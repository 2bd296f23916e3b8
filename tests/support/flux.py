"""Flux's source-controller and kustomize-controller on this machine, with rights in one namespace of the cluster."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from localcluster.builds import Store, build, module_folder
from localcluster.paths import cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from release.tools import Tools, answering
from tests.support.cluster import JSON, Cluster, condition, eventually
from tests.support.crds import await_established
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.ports import free_port

KINDS = ("kustomizations.kustomize.toolkit.fluxcd.io", "gitrepositories.source.toolkit.fluxcd.io",
         "ocirepositories.source.toolkit.fluxcd.io")  # fmt: skip
_OPTIONS: Mapping[str, Callable[[Path, str], Sequence[str]]] = {
    "source-controller": lambda folder, address: (
        f"--storage-path={folder / 'artifacts'}", f"--storage-addr={address}", f"--storage-adv-addr={address}"
    ),
    # Failures are retried soon: a test changes the source, and waits.
    "kustomize-controller": lambda *_: ("--max-retry-delay=5s",),
}  # fmt: skip
"""Of each controller's own, from a folder and the address of source-controller's artifacts."""
_REQUESTED = "reconcile.fluxcd.io/requestedAt"


@dataclass(frozen=True)
class Flux:
    """Both controllers run, and watch `namespace`."""

    cluster: Cluster
    namespace: str

    def apply(self, *manifests: JSON) -> None:
        self.cluster.apply_all(manifests, self.namespace)

    def get(self, kind: str, name: str) -> JSON:
        printed = self.cluster.kubectl("get", kind, name, "-n", self.namespace, "-o", "json")
        found: JSON = json.loads(printed)
        return found

    def reconcile(self, name: str, *, source: str = "gitrepository", timeout: float = 60) -> JSON:
        """Fetch the source of this name, then the Kustomization as it is once it has been reconciled from it."""
        for kind in (source, "kustomization"):
            self.request(kind, name, timeout)
        return self.get("kustomization", name)

    def request(self, kind: str, name: str, timeout: float = 60) -> None:
        """Have one object reconciled now, and wait until it is."""
        token = f"{time.time():.6f}"
        self.cluster.kubectl("annotate", "--overwrite", kind, name, f"{_REQUESTED}={token}", "-n", self.namespace)

        def handled() -> bool:
            return bool(self.get(kind, name).get("status", {}).get("lastHandledReconcileAt") == token)

        eventually(f"{kind} {name} is reconciled", handled, timeout)

    def await_ready(self, name: str, status: str, *, revision: str = "", timeout: float = 90) -> JSON:
        """The condition Ready of a Kustomization once it has this status, for the attempted revision."""

        def look() -> JSON | None:
            found = self.get("kustomization", name)
            ready = condition(found, "Ready")
            attempted = found.get("status", {}).get("lastAttemptedRevision", "")
            is_last = found["metadata"]["generation"] == (ready or {}).get("observedGeneration")
            return ready if ready and ready["status"] == status and is_last and revision in attempted else None

        try:
            return eventually(f"Kustomization {name} is Ready={status}", look, timeout)
        except AssertionError as slow:
            raise AssertionError(f"{slow}\n{yaml.safe_dump(self.get('kustomization', name)['status'])}") from slow


def administrator(name: str, namespace: str) -> list[JSON]:
    """An account for spec.serviceAccountName of a Kustomization that installs what the whole cluster uses."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        _binding("ClusterRoleBinding", f"{namespace}-{name}", "ClusterRole", "cluster-admin", subject),
    ]


def _binding(kind: str, name: str, role_kind: str, role: str, subject: JSON) -> JSON:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
        "metadata": {"name": name}, "roleRef": reference, "subjects": [subject],
    }  # fmt: skip


@contextmanager
def flux(cluster: Cluster, namespace: str, folder: Path) -> Iterator[Flux]:
    """Run both in an existing namespace; at the end, what they made there is deleted first, by them."""
    store, progress = Store(cache_root(os.environ, Path.home())), Progress()
    # The first call on a machine compiles them: a quarter of an hour on two busy cores.
    tools = Tools((build(store, Group.FLUX, os.environ, progress),))
    config = {
        name: module_folder(store, Group.FLUX, f"github.com/fluxcd/{name}", os.environ, progress) / "config"
        for name in _OPTIONS
    }
    crds = [str(config[name] / "crd" / "bases") for name in _OPTIONS]
    for path in crds:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", path)
    await_established(cluster, *KINDS)
    for name in _OPTIONS:
        cluster.apply_all(_rights(name, namespace, config[name]), namespace)
    running = Flux(cluster, namespace)
    storage = f"127.0.0.1:{free_port()}"
    with ExitStack() as processes:
        for name in _OPTIONS:
            processes.enter_context(_controller(running, name, tools, folder, _OPTIONS[name](folder, storage)))
        try:
            yield running
        finally:
            for kind in KINDS:
                cluster.kubectl("delete", kind, "--all", "-n", namespace, KUBECTL_TIMEOUT)
            for path in crds:
                cluster.kubectl("delete", "-f", path, KUBECTL_TIMEOUT)


def without_finalizers(cluster: Cluster, namespace: str) -> None:
    """An interrupted run left objects whose finalizers nobody removes, and a namespace that they keep."""
    for kind in KINDS:
        if not cluster.kubectl("get", "crd", kind, "--ignore-not-found", "-o", "name"):
            continue
        for name in cluster.kubectl("get", kind, "-n", namespace, "-o", "name").split():
            patch = json.dumps({"metadata": {"finalizers": None}})
            cluster.kubectl("patch", name, "-n", namespace, "--type=merge", "-p", patch)


def _rights(name: str, namespace: str, config: Path) -> list[JSON]:
    """The controller's own rules, in one namespace, and to act as the accounts that Kustomizations name."""
    rules = yaml.safe_load((config / "rbac" / "role.yaml").read_text())["rules"]
    impersonate = {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": name}, "rules": [*rules, impersonate],
    }  # fmt: skip
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return [account, role, _binding("RoleBinding", name, "Role", name, subject)]


@contextmanager
def _controller(running: Flux, name: str, tools: Tools, folder: Path, more: Sequence[str]) -> Iterator[None]:
    health = f"127.0.0.1:{free_port()}"
    environment = {
        **tools.environment,
        "KUBECONFIG": str(_kubeconfig(running, name, folder)),
        "RUNTIME_NAMESPACE": running.namespace,
        "TUF_ROOT": str(folder / "sigstore"),
    }
    (folder / "artifacts").mkdir(exist_ok=True)
    words = (name, "--watch-all-namespaces=false", "--metrics-addr=0", f"--health-addr={health}")

    def probe() -> bool:
        try:
            with urllib.request.urlopen(f"http://{health}/readyz", timeout=2):
                return True
        except OSError:
            return False

    own = Tools(tools.folders, environment)
    with answering(name, (*words, *more), own, probe, folder / f"{name}.log"):
        yield


def _kubeconfig(running: Flux, name: str, folder: Path) -> Path:
    """As the controller's service account."""
    cluster = running.cluster
    config = yaml.safe_load(cluster.paths.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", name, "-n", running.namespace, "--duration=2h").strip()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return path
