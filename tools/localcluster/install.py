"""The operator's chart, installed as its users install it: with Helm."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmservice_vllm.versions import default_version

from localcluster import scaler
from localcluster.commands import run
from localcluster.errors import ClusterError
from localcluster.imagecopy import ImageStore
from localcluster.paths import ClusterPaths
from localcluster.place import ADDED, ctr_command, first
from localcluster.progress import Progress

RELEASE = "llmservice-operator"
NAMESPACE = "llmservice-system"
OPERATOR_IMAGE = "registry.local/llmservice-operator:dev"
SURGE_DEADLINE_SECONDS = 10
"""Shorter than the chart's, for tests that wait for it."""
CPU_IMAGE = f"registry.local/vllm-cpu:v{default_version()}"
ROUTER_IMAGE = "registry.local/llmservice-router:dev"
STAND_IN_IMAGE = "registry.local/vllm-stand-in:v0.32.0"
"""The version that tests/support/stand_in was recorded from, which need not be the newest."""


@dataclass(frozen=True)
class Target:
    """The cluster to install into: programs, environment and, for a cluster of the user's own, its context."""

    paths: ClusterPaths
    environment: Mapping[str, str]
    context: str | None = None

    def kubectl(self, *args: str, stdin: str | None = None, timeout: float = 120) -> str:
        chosen = ("--context", self.context) if self.context else ()
        return run("kubectl", *chosen, *args, stdin=stdin, environment=self.environment, timeout=timeout)

    def helm(self, *args: str, timeout: float = 600) -> str:
        chosen = ("--kube-context", self.context) if self.context else ()
        return run("helm", *chosen, *args, environment=self.environment, timeout=timeout)


def local_target(paths: ClusterPaths, environment: Mapping[str, str]) -> Target:
    """This clone's cluster, with its own kubectl and helm."""
    inside = {"KUBECONFIG": str(paths.kubeconfig), "PATH": f"{paths.bin}:{environment['PATH']}"}
    return Target(paths, {**environment, **inside})


def image_digest(paths: ClusterPaths, name: str) -> str:
    """The digest of an image in the local cluster's store, so that a rebuilt image of the same tag is rolled out."""
    digest = ImageStore(ctr_command(paths, first(paths))).digests().get(name)
    if digest is None:
        raise ClusterError(f"{name} is not in the cluster's image store", "Build it: python -m localcluster images")
    return digest


def install(
    target: Target,
    progress: Progress,
    *,
    operator_image: str = OPERATOR_IMAGE,
    cpu_image: str = CPU_IMAGE,
    autoscaling: bool = False,
    groups: bool = False,
    dynamic_resources: bool = False,
    routing: bool = False,
    gateway: bool = False,
    more: Mapping[str, str] = {},
) -> None:
    """Installs or upgrades the release and waits until its pods are ready. `more`: of the chart's values, by path.

    `autoscaling` makes the scaler's certificates and adds the scaler; KEDA must be there. An installation without it
    removes the scaler.
    """
    repository, _, tag = operator_image.rpartition(":")
    values = {"image.repository": repository, "image.tag": tag, "services.defaultCpuImage": cpu_image}
    values["routing.image"] = ROUTER_IMAGE
    typed = {
        "services.surgeDeadlineSeconds": str(SURGE_DEADLINE_SECONDS),
        "autoscaling.enabled": str(autoscaling).lower(),
        "groups.enabled": str(groups).lower(),
        "dynamicResources.enabled": str(dynamic_resources).lower(),
        "routing.enabled": str(routing).lower(),
        "gateway.enabled": str(gateway).lower(),
        # Models share the machine with it: with the chart's request one model may starve it.
        "resources.requests.cpu": "300m",
        **more,
    }
    if target.context is None:
        values["podAnnotations.image-digest"] = image_digest(target.paths, operator_image)
    if autoscaling:
        values |= scaler.provide(target.kubectl, target.paths.state / "scaler-pki", NAMESPACE, f"{RELEASE}-activator")
    chart = str(target.paths.root / "charts" / "llmservice-operator")
    settings = [word for name, value in values.items() for word in ("--set-string", f"{name}={value}")]
    settings += [word for name, value in typed.items() for word in ("--set", f"{name}={value}")]
    with progress.step(f"helm: release {RELEASE} in namespace {NAMESPACE}"):
        if target.context is None:
            _end_interrupted(target)
        target.helm(
            "upgrade", "--install", RELEASE, chart, "--namespace", NAMESPACE, "--create-namespace",
            "--wait", "--timeout", "180s", *settings,
        )  # fmt: skip


def _end_interrupted(target: Target) -> None:
    """An upgrade whose process was killed stays pending, and Helm refuses the next one until somebody goes back."""
    where = ("--namespace", NAMESPACE)
    pending = json.loads(target.helm("list", *where, "--pending", "--output", "json"))
    for release in pending:
        is_first = int(release["revision"]) == 1
        target.helm("uninstall" if is_first else "rollback", release["name"], *where)


def main(argv: Sequence[str], paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m localcluster install",
        description="Install or upgrade the operator's chart in this clone's running cluster.",
        epilog="example: python -m localcluster images --only operator && python -m localcluster install\n"
        "with KEDA: python -m localcluster keda && python -m localcluster install --autoscaling",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--autoscaling",
        action="store_true",
        help="with the scaler that KEDA asks, and certificates for both; without this option it is removed again",
    )
    parser.add_argument("--groups", action="store_true", help="with replicas over several nodes, by LeaderWorkerSet")
    chosen = parser.parse_args(argv)
    from localcluster import addednode  # only here: it knows the images by their names in this module

    for name in ADDED:
        if addednode.is_added(paths, name):
            addednode.copy_images(paths, name)
    install(local_target(paths, environment), progress, autoscaling=chosen.autoscaling, groups=chosen.groups)
    return 0
