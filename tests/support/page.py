"""The web page of the chart in a namespace of its own, and headless Chromium that looks at it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request

from localcluster.errors import ClusterError
from localcluster.install import OPERATOR_IMAGE, image_digest
from localcluster.paths import REPOSITORY
from localcluster.preflight import BROWSER, ensure_packages, missing_packages
from localcluster.progress import Progress
from tests.support.cluster import JSON, Cluster
from tests.support.patience import KUBECTL_TIMEOUT

CHART = REPOSITORY / "charts" / "llmservice-operator"
RELEASE = "llmservice-operator"
TEMPLATES = ("deployment", "service")


def install(cluster: Cluster, namespace: str, **values: Any) -> None:
    """The chart's page, and nothing else of the chart; ready."""
    repository, _, tag = OPERATOR_IMAGE.rpartition(":")
    chosen = {
        "image": {"repository": repository, "tag": tag},
        "podAnnotations": {"image-digest": image_digest(cluster.paths, OPERATOR_IMAGE)},
        "ui": {"enabled": True, **values},
    }
    shown = [word for name in TEMPLATES for word in ("--show-only", f"templates/ui/{name}.yaml")]
    helm = str(cluster.paths.bin / "helm")
    command = (helm, "template", RELEASE, str(CHART), "--namespace", namespace, *shown, "--values", "-")
    rendered = cluster.run(*command, stdin=json.dumps(chosen))
    cluster.apply_all([each for each in yaml.safe_load_all(rendered) if each], namespace)
    cluster.kubectl("rollout", "status", f"deployment/{RELEASE}-ui", "-n", namespace, KUBECTL_TIMEOUT)


@contextmanager
def opened(cluster: Cluster, page_namespace: str, account: str, *words: str) -> Iterator[str]:
    """The address that `llmservice ui` prints for a service account, while it carries the connections."""
    command = (sys.executable, "-m", "llmservice_cli", "ui", "--no-open", "--page-namespace", page_namespace)
    process = subprocess.Popen(
        (*command, "--service-account", account, *words),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise AssertionError(f"llmservice ui ended: {process.communicate()[1]}")
        yield address
    finally:
        process.kill()
        process.communicate()


def allow(cluster: Cluster, namespace: str, name: str, role: JSON | None = None) -> None:
    """A service account that may view its namespace; with `role`, what that says beside it."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    manifests: list[JSON] = [account, _binding(f"{name}-view", {"kind": "ClusterRole", "name": "view"}, subject)]
    if role is not None:
        made = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": name},
            "rules": [role],
        }
        manifests += [made, _binding(name, {"kind": "Role", "name": name}, subject)]
    cluster.apply_all(manifests, namespace)


def _binding(name: str, role: JSON, subject: JSON) -> JSON:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", **role},
        "subjects": [subject],
    }


def chromium(playwright: Playwright) -> Browser:
    """Debian's, without a window; installed where it is missing, as the cluster's tools are. Skips where that fails."""
    try:
        ensure_packages(missing_packages(BROWSER), Progress())
    except ClusterError as error:
        pytest.skip(f"needs Chromium: {error}")
    found = shutil.which("chromium")
    assert found is not None
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    return playwright.chromium.launch(executable_path=found, args=arguments)


@dataclass
class Watched:
    """A page, and what a browser complains about in it."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Console errors and warnings (violations of the policy are among them), and exceptions."""
    hosts: set[str] = field(default_factory=set)
    """Of every request."""

    @classmethod
    def of(cls, page: Page) -> Watched:
        made = cls(page)

        def said(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                made.complaints.append(message.text)

        def asked(request: Request) -> None:
            made.hosts.add(request.url.split("/")[2])

        page.on("console", said)
        page.on("pageerror", lambda error: made.complaints.append(str(error)))
        page.on("request", asked)
        return made


def violations(response: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """What axe found: the rule, and the first elements that break it."""
    return [(each["id"], [node["html"][:160] for node in each["nodes"]][:3]) for each in response["violations"]]
