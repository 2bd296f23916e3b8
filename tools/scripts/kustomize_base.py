"""Write deploy/kustomize's base and its component `autoscaling`, as the chart renders them.

python -m scripts.kustomize_base                               write them (needs Helm: make cluster, or one on the PATH)
python -m scripts.kustomize_base --check                       exit status 1 where the chart has changed since
python -m scripts.kustomize_base --namespace N --output FOLDER the same for another namespace, with the CRD
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from localcluster.paths import REPOSITORY, ClusterPaths

JSON = dict[str, Any]
CHART = Path("charts/llmservice-operator")
FOLDER = Path("deploy/kustomize")
BASE, COMPONENT = "base", "components/autoscaling"
NAME, NAMESPACE = "llmservice-operator", "llmservice-system"
# Not the chart's name of it: kustomize adds a hash wherever a generated name occurs, and the Lease has the chart's.
SETTINGS = f"{NAME}-settings"
# A variable wins over the settings file, and the image transformer reaches it: see image-fields.yaml.
IMAGE_VARIABLE = "LLMSERVICE_OPERATOR_IMAGE"
AUTOSCALED = {
    "autoscaling": {
        "enabled": True,
        "tls": {"secretName": "scaler-tls"},
        "keda": {"clientSecretName": "llmservice-scaler-client"},
    }
}
_ABOUT = "# Generated from the chart by `python -m scripts.kustomize_base`: do not edit."
_SEPARATOR = re.compile(r"^---\n# Source: \S+/templates/(\S+)\n", re.M)
_OF_HELM = re.compile(r"^ +(?:app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)\n", re.M)
# The ConfigMap's name has a hash of its content, so a change replaces the pods anyway.
_CHECKSUM = re.compile(r"^ +annotations:\n(?: +#.*\n)* +checksum/settings: .*\n", re.M)

# Tools that delete what is no longer in the source, or with the whole application, would delete every LLMService.
_CRD_ANNOTATIONS = {
    "kustomize.toolkit.fluxcd.io/prune": "disabled",
    "argocd.argoproj.io/sync-options": "Prune=false,Delete=false,ServerSideApply=true",
}


def inputs_hash(root: Path) -> str:
    """Of everything that the generated files are made of, this program included."""
    digest = hashlib.sha256()
    files = [
        path for path in (root / CHART).rglob("*") if path.is_file() and path.name not in ("crd.yaml", "NOTES.txt")
    ]
    for path in (*sorted(files), root / "tools" / "scripts" / "kustomize_base.py"):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def recorded_hash(root: Path) -> str:
    """What `inputs_hash` was when the files were written; empty where there are none."""
    path = root / FOLDER / BASE / "kustomization.yaml"
    found = re.search(r"^# Chart: ([0-9a-f]+)$", path.read_text(), re.M) if path.exists() else None
    return found[1] if found else ""


def rendered(root: Path, values: Mapping[str, Any], namespace: str = NAMESPACE) -> dict[str, str]:
    """The chart's manifests by template, without what only Helm needs; asks no cluster."""
    own = ClusterPaths(root).bin / "helm"
    helm = str(own) if own.exists() else shutil.which("helm")
    if helm is None:
        raise SystemExit("no helm: make cluster builds one")
    variable = {"name": IMAGE_VARIABLE, "value": _image(root)}
    command = (helm, "template", NAME, str(root / CHART), "--namespace", namespace, "--values", "-")
    done = subprocess.run(
        command,
        input=yaml.safe_dump({**values, "crds": {"install": False}, "extraEnv": [variable]}),
        env={"KUBECONFIG": "/dev/null", "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"helm template failed: {done.stderr.strip()}")
    _, *parts = _SEPARATOR.split(done.stdout)
    found: dict[str, str] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        file = name.replace("/", "-")
        document = _CHECKSUM.sub("", _OF_HELM.sub("", text)).strip()
        document = document.replace(f"configMap: {{name: {NAME}}}", f"configMap: {{name: {SETTINGS}}}")
        found[file] = f"{found[file]}\n---\n{document}" if file in found else document
    return found


def _image(root: Path) -> str:
    about = yaml.safe_load((root / CHART / "Chart.yaml").read_text())
    return f"{NAME}:{about['appVersion']}"


def settings(manifests: dict[str, str]) -> str:
    """The settings file of the ConfigMap, which is taken out of the manifests."""
    found: str = yaml.safe_load(manifests.pop("settings.yaml"))["data"]["settings.yaml"]
    # The variable has it.
    return re.sub(r"^  operatorImage: .*\n", "", found, count=1, flags=re.M)


def base(root: Path, manifests: Mapping[str, str], namespace: str, crds: str) -> dict[str, str]:
    """The files of the base by name; `crds` is the path from it to the CRD's folder."""
    resources = dict(manifests)
    configuration = settings(resources)
    files = {name: f"{_ABOUT}\n{text}\n" for name, text in resources.items()}
    own = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    files["namespace.yaml"] = f"{_ABOUT}\n{yaml.safe_dump(own)}"
    files["settings.yaml"] = configuration
    fields = {"images": [{"path": "spec/template/spec/containers/env/value", "kind": "Deployment"}]}
    files["image-fields.yaml"] = (
        f"{_ABOUT}\n# The operator also names its own image to model pods.\n{yaml.safe_dump(fields)}"
    )
    kept = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "llmservices.llmservice.dev", "annotations": _CRD_ANNOTATIONS},
    }  # fmt: skip
    files["crd-kept.yaml"] = f"{_ABOUT}\n# Who removes the operator keeps the services.\n{yaml.safe_dump(kept)}"
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["namespace.yaml", crds, *sorted(resources)],
        "configMapGenerator": [{"name": SETTINGS, "namespace": namespace, "files": ["settings.yaml"]}],
        "configurations": ["image-fields.yaml"],
        "patches": [{"path": "crd-kept.yaml"}],
    }
    files["kustomization.yaml"] = f"{_ABOUT}\n# Chart: {inputs_hash(root)}\n{_dump(kustomization)}"
    return files


def component(before: Mapping[str, str], after: Mapping[str, str], namespace: str) -> dict[str, str]:
    """What makes the manifests `before` those of `after`: new objects, and patches of those that differ."""
    resources, manifests = dict(after), dict(before)
    changed = settings(resources) != settings(manifests)
    configuration = settings(dict(after))
    known = {_identity(found): found for found in _objects(manifests)}
    added, patches, files = [], [], {"settings.yaml": configuration} if changed else {}
    for found in _objects(resources):
        old = known.pop(_identity(found), None)
        if old is None:
            added.append(found)
            continue
        operations = [
            {"op": "replace" if key in old else "add", "path": f"/{key}", "value": found[key]}
            for key in found
            if key != "metadata" and old.get(key) != found[key]
        ]
        if operations:
            kind, name = found["kind"], found["metadata"]["name"]
            file = f"{kind}-{name.rpartition(':')[2].rpartition('.')[2]}.yaml".lower()
            files[file] = f"{_ABOUT}\n{_dump(operations)}"
            patches.append({"path": file, "target": {"kind": kind, "name": name.replace(".", r"\.")}})
    if known:
        raise SystemExit(f"no patch takes objects away: {sorted(known)}")
    files["added.yaml"] = f"{_ABOUT}\n{yaml.safe_dump_all(added, sort_keys=False, width=120)}"
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        "resources": ["added.yaml"],
        "configMapGenerator": [
            {"name": SETTINGS, "namespace": namespace, "behavior": "replace", "files": ["settings.yaml"]}
        ],
        "patches": patches,
    }
    files["kustomization.yaml"] = f"{_ABOUT}\n{_dump(kustomization)}"
    return files


def _dump(content: object) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=120)


def _objects(manifests: Mapping[str, str]) -> Iterator[JSON]:
    for text in manifests.values():
        yield from (found for found in yaml.safe_load_all(text) if found)


def _identity(found: JSON) -> tuple[str, str]:
    return found["kind"], found["metadata"]["name"]


def generated(root: Path, namespace: str = NAMESPACE, crds: str = "../../../crds") -> dict[str, str]:
    """Every generated file by its path below deploy/kustomize."""
    plain, autoscaled = rendered(root, {}, namespace), rendered(root, AUTOSCALED, namespace)
    return {
        **{f"{BASE}/{name}": text for name, text in base(root, plain, namespace, crds).items()},
        **{f"{COMPONENT}/{name}": text for name, text in component(plain, autoscaled, namespace).items()},
    }


def with_crd(root: Path, namespace: str) -> dict[str, str]:
    """The same for another namespace, with the folder of the CRD beside the base, which needs no clone."""
    crds = {f"crds/{path.name}": path.read_text() for path in (root / "crds").glob("*.yaml")}
    return {**generated(root, namespace, "../crds"), **crds}


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Replace the generated folders."""
    for name in (BASE, COMPONENT):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def main(words: Sequence[str], root: Path = REPOSITORY) -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.kustomize_base",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="compare with the chart and write nothing; needs no Helm")
    parser.add_argument("--namespace", default=NAMESPACE, metavar="NAME", help="of the operator, with --output")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write there, not into the repository")
    given = parser.parse_args(words)
    if given.check:
        if recorded_hash(root) == inputs_hash(root):
            return 0
        print(f"{FOLDER} is older than the chart: run `python -m scripts.kustomize_base`", file=sys.stderr)
        return 1
    if given.output:
        write(given.output, with_crd(root, given.namespace))
    elif given.namespace != NAMESPACE:
        parser.error("--namespace needs --output: the repository has the base of one namespace")
    else:
        write(root / FOLDER, generated(root))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
