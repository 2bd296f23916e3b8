"""The chart as tests see it: rendered without a cluster, or copied with another version and another CRD."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from localcluster.install import CPU_IMAGE, OPERATOR_IMAGE
from localcluster.paths import REPOSITORY, ClusterPaths

JSON = dict[str, Any]
EVERYTHING: JSON = {
    "replicas": 2,
    "image": {"repository": "example.org/operator", "digest": "sha256:" + "a" * 64, "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "watch": {"namespaces": ["blue", "green"]},
    "serviceAccount": {"name": "runner", "annotations": {"a": "b"}},
    "logging": {"format": "console", "level": "debug"},
    "podAnnotations": {"note": "x"},
    "podLabels": {"team": "ml"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
    "priorityClassName": "system-cluster-critical",
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "p"}}, "podMonitor": {"enabled": True}},
    "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}], "extraEgress": [{}]},
}

GUARDED: JSON = {
    "metrics": {"authentication": "tokenReview", "tls": {"secretName": "tls"}, "serviceMonitor": {"enabled": True}}
}

AUTOSCALED: JSON = {
    "autoscaling": {"enabled": True, "tls": {"secretName": "scaler-tls"}, "keda": {"clientSecretName": "scaler-client"}}
}

CHART = REPOSITORY / "charts" / "llmservice-operator"
PREVIOUS = REPOSITORY / "tests" / "data" / "llmservice-operator-0.0.9.tgz"
"""The chart of the release before, with that version. See the README beside it."""
PREVIOUS_COMMIT = "6424838a177b09b28eb3a4b8d4f320bfebd33c19"
TEAM, OTHER = "release-team", "release-other"
"""The namespaces of the fixture `two_namespaces`."""
_REPOSITORY, _, _TAG = OPERATOR_IMAGE.rpartition(":")
IMAGES = f"image.repository={_REPOSITORY},image.tag={_TAG},services.defaultCpuImage={CPU_IMAGE}"


class ChartRefused(Exception):
    """Helm did not render; its message is the exception's."""


def helm_binary() -> str:
    """The cluster's own Helm, else the one on the PATH."""
    own = ClusterPaths.of_this_clone().bin / "helm"
    found = str(own) if own.exists() else shutil.which("helm")
    assert found, "no helm: make cluster builds one"
    return found


def helm_offline(*args: str, values: Mapping[str, Any] | None = None) -> str:
    """What helm prints; no cluster is asked, whatever KUBECONFIG says."""
    done = subprocess.run(
        [helm_binary(), *args, "--values", "-"],
        input=json.dumps(values or {}),
        text=True,
        capture_output=True,
        check=False,
        env={"KUBECONFIG": "/dev/null", "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
    )
    if done.returncode:
        raise ChartRefused(done.stderr + done.stdout)
    return done.stdout


def render(
    values: Mapping[str, Any] | None = None, *args: str, chart: Path = CHART, namespace: str = "llm"
) -> Sequence[JSON]:
    """The objects of release `demo`."""
    printed = helm_offline("template", "demo", str(chart), "--namespace", namespace, *args, values=values)
    return [document for document in yaml.safe_load_all(printed) if document]


def of_kind(objects: Sequence[JSON], kind: str, suffix: str = "") -> list[JSON]:
    return [found for found in objects if found["kind"] == kind and found["metadata"]["name"].endswith(suffix)]


def only(objects: Sequence[JSON], kind: str, suffix: str = "") -> JSON:
    found = of_kind(objects, kind, suffix)
    assert len(found) == 1, [(each["kind"], each["metadata"]["name"]) for each in objects]
    return found[0]


RELEASED = {"kind": "ReleasedCopy", "plural": "releasedcopies", "singular": "releasedcopy"}


@dataclass(frozen=True)
class StandIn:
    """Copies of the chart that bring a CRD of a group of their own, so that no test changes the LLMService CRD."""

    folder: Path
    group: str

    @property
    def crd_name(self) -> str:
        return f"chartcopies.{self.group}"

    def version(self, version: str, *fields: str) -> str:
        """The folder of a chart of this version, whose CRD has these spec fields."""
        target = self.folder / version
        if not target.exists():
            shutil.copytree(CHART, target)
        about = yaml.safe_load((target / "Chart.yaml").read_text())
        (target / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": version}))
        (target / "files").mkdir(exist_ok=True)
        (target / "files" / "crd.yaml").write_text(yaml.safe_dump(self._crd(fields)))
        return str(target)

    def released(self, chart: Path, label: str) -> str:
        """The folder of a copy of a chart, packaged or not, with its own CRD in this group and under other names.

        Two kinds of one name would make `kubectl get llms` of other tests ambiguous.
        """
        target = self.folder / label
        if chart.is_dir():
            shutil.copytree(chart, target)
        else:
            target.mkdir()
            subprocess.run(("tar", "-xzf", str(chart), "--strip-components=1", "-C", str(target)), check=True)
        file = target / "files" / "crd.yaml"
        moved = yaml.safe_load(file.read_text())
        moved["metadata"]["name"] = self.released_crd
        moved["spec"] |= {"group": self.group, "names": RELEASED}
        file.write_text(yaml.safe_dump(moved))
        return str(target)

    @property
    def released_crd(self) -> str:
        """The name of the CRD of `released`."""
        return f"{RELEASED['plural']}.{self.group}"

    def _crd(self, fields: Sequence[str]) -> JSON:
        spec = {"type": "object", "properties": {field: {"type": "string"} for field in fields}}
        schema = {"type": "object", "properties": {"spec": spec}}
        names = {"kind": "ChartCopy", "plural": "chartcopies", "singular": "chartcopy"}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.crd_name},
            "spec": {
                "group": self.group,
                "names": names,
                "scope": "Namespaced",
                "versions": [
                    {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
                ],
            },
        }
