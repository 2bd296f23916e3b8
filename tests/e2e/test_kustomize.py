"""deploy/kustomize renders what the chart does, and the API server takes it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from localcluster.paths import REPOSITORY
from scripts.kustomize_base import (
    AUTOSCALED,
    BASE,
    COMPONENT,
    FOLDER,
    IMAGE_VARIABLE,
    NAME,
    NAMESPACE,
    SETTINGS,
    generated,
    with_crd,
    write,
)
from tests.e2e._chart import CHART, JSON, helm_offline, of_kind, only
from tests.support.cluster import Cluster

pytestmark = pytest.mark.parallel

OVERLAYS = ("cpu", "autoscaling")
IMAGE = "REGISTRY/llmservice-operator:0.1.0"


def kustomized(cluster: Cluster, folder: Path) -> list[JSON]:
    return list(yaml.load_all(cluster.kubectl("kustomize", str(folder)), Loader=yaml.CSafeLoader))


def overlay(name: str) -> Path:
    return REPOSITORY / FOLDER / "overlays" / name


def of_chart(values: JSON, namespace: str = NAMESPACE) -> list[JSON]:
    printed = helm_offline("template", NAME, str(CHART), "--namespace", namespace, values=values)
    return [found for found in yaml.load_all(printed, Loader=yaml.CSafeLoader) if found]


def compared(objects: Iterable[JSON]) -> dict[tuple[str, str], JSON]:
    """By kind and name, without what Helm and kustomize write each in its own way."""
    found = {}
    for each in map(copy.deepcopy, objects):
        kind, metadata = each["kind"], each["metadata"]
        if kind == "Namespace":
            continue
        metadata.pop("annotations", None)
        _unlabel(metadata)
        if kind == "ConfigMap":
            metadata["name"] = SETTINGS
            metadata.pop("labels", None)
            # Compared as it is parsed: the image is in a variable of the operator's.
            each["data"] = yaml.safe_load(each["data"]["settings.yaml"])
            each["data"]["services"].pop("operatorImage", None)
        if kind == "Deployment":
            _unlabel(each["spec"]["template"]["metadata"])
            each["spec"]["template"]["metadata"].pop("annotations", None)
            pod = each["spec"]["template"]["spec"]
            for container in pod["containers"]:
                container["env"] = [e for e in container.get("env", []) if e["name"] != IMAGE_VARIABLE]
            for volume in pod["volumes"]:
                if volume["name"] == "settings":
                    volume["configMap"] = {}
        found[kind, metadata["name"]] = each
    return found


def _unlabel(metadata: JSON) -> None:
    for label in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
        metadata.get("labels", {}).pop(label, None)


def test_the_files_are_those_that_the_chart_renders_now() -> None:
    files, folder = generated(REPOSITORY), REPOSITORY / FOLDER
    present = {str(path.relative_to(folder)) for name in (BASE, COMPONENT) for path in (folder / name).iterdir()}
    assert present == set(files)
    stale = [path for path, text in files.items() if (folder / path).read_text() != text]
    assert stale == [], "run `python -m scripts.kustomize_base`"


@pytest.mark.parametrize(
    ("folder", "values"), [("base", {}), ("overlays/autoscaling", AUTOSCALED)], ids=["base", "autoscaling"]
)
def test_kustomize_renders_what_helm_does(cluster: Cluster, folder: str, values: JSON) -> None:
    """Also where kustomize would put a generated name into a Role or a policy."""
    repository, _, tag = IMAGE.rpartition(":")
    image = {} if folder == "base" else {"image": {"repository": repository, "tag": tag}}
    expected = compared(of_chart({**values, **image}))
    found = compared(kustomized(cluster, REPOSITORY / FOLDER / folder))
    assert found.keys() == expected.keys()
    for identity, each in found.items():
        assert each == expected[identity], identity


def test_another_namespace_has_a_base_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    """Names of cluster-scoped objects, a policy and the settings have it too: no transformer reaches these."""
    write(tmp_path, with_crd(REPOSITORY, "elsewhere"))
    found = kustomized(cluster, tmp_path / "base")
    assert compared(found) == compared(of_chart({}, "elsewhere"))
    assert only(found, "Namespace")["metadata"]["name"] == "elsewhere"


@pytest.mark.parametrize("name", OVERLAYS)
def test_one_line_names_the_image_everywhere(cluster: Cluster, name: str) -> None:
    objects = kustomized(cluster, overlay(name))
    containers = [c for d in of_kind(objects, "Deployment") for c in d["spec"]["template"]["spec"]["containers"]]
    assert {container["image"] for container in containers} == {IMAGE}
    named = [e["value"] for c in containers for e in c["env"] if e["name"] == IMAGE_VARIABLE]
    assert named == [IMAGE], "model pods take the supervisor from it"


def test_the_cpu_image_keeps_its_tag(cluster: Cluster) -> None:
    """vLLM's version is read from it."""
    (container,) = only(kustomized(cluster, overlay("cpu")), "Deployment")["spec"]["template"]["spec"]["containers"]
    variables = {e["name"]: e.get("value") for e in container["env"]}
    assert variables["LLMSERVICE_DEFAULT_CPU_IMAGE"] == "REGISTRY/vllm-cpu:v0.32.0"


def test_changed_settings_replace_the_pods(cluster: Cluster, tmp_path: Path) -> None:
    """The operator reads them once: the ConfigMap's name, and with it the template, follows its content."""
    shutil.copytree(REPOSITORY / FOLDER, tmp_path / FOLDER)
    shutil.copytree(REPOSITORY / "crds", tmp_path / "crds")
    before = _settings_of(kustomized(cluster, tmp_path / FOLDER / "base"))
    changed = tmp_path / FOLDER / "base" / "settings.yaml"
    changed.write_text(changed.read_text().replace("level: info", "level: debug"))
    after = _settings_of(kustomized(cluster, tmp_path / FOLDER / "base"))
    assert before.startswith(f"{SETTINGS}-")
    assert after.startswith(f"{SETTINGS}-")
    assert before != after


def _settings_of(objects: list[JSON]) -> str:
    volumes = only(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    (name,) = (volume["configMap"]["name"] for volume in volumes if volume["name"] == "settings")
    assert name == only(objects, "ConfigMap")["metadata"]["name"]
    return str(name)


def test_the_crd_outlives_the_application(cluster: Cluster) -> None:
    """Whoever prunes it deletes every LLMService of the cluster."""
    annotations = only(kustomized(cluster, overlay("cpu")), "CustomResourceDefinition")["metadata"]["annotations"]
    assert annotations["kustomize.toolkit.fluxcd.io/prune"] == "disabled"
    assert {"Prune=false", "Delete=false"} <= set(annotations["argocd.argoproj.io/sync-options"].split(","))


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_api_server_takes_it(cluster: Cluster, name: str) -> None:
    """A dry run: the objects have the names of the installed release."""
    objects = [found for found in kustomized(cluster, overlay(name)) if found["kind"] != "ClusterTriggerAuthentication"]
    words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
    printed = cluster.kubectl(*words, stdin=yaml.dump_all(objects, Dumper=yaml.CSafeDumper))
    assert len(printed.splitlines()) == len(objects)
