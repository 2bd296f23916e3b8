"""Labels, annotations, gates and field managers have one home, constants.py; texts that cannot import it agree."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest
from llmservice_api import constants

ROOT = Path(__file__).resolve().parents[3]
KEYS = {
    value
    for name, value in vars(constants).items()
    if isinstance(value, str) and name.endswith(("_LABEL", "_ANNOTATION", "_GATE"))
}
NAMES = KEYS | {constants.MANAGER, constants.STATUS_MANAGER, constants.DRY_RUN_MANAGER}
OTHER_KEYS = {
    constants.API_VERSION,
    f"{constants.GROUP}/crd-version",  # the chart's own, on the CRD: templates/crd.yaml
    f"{constants.GROUP}/{constants.KIND}",  # Argo CD's name of the kind
    f"{constants.GROUP}/inputs",  # on images that localcluster builds
    f"{constants.GROUP}/never-set",  # kopf wants the name of a finalizer, and never sets it
    f"{constants.GROUP}/release",  # in-toto build types
    f"{constants.GROUP}/localcluster",  # Go modules
}
ELSEWHERE = {
    "operator/llmservice_api/constants.py",
    "tools/localcluster/install.py",  # the name of the chart's release
    "tools/localcluster/paths.py",  # a folder of the user's cache
    "operator/llmservice_operator/options.py",  # the name of the distribution
    "tools/monitoring/dashboards/operator.py",  # a word by which dashboards are found
    "tools/release/plan.py",  # the names of the chart and of the image
    "tools/scripts/chart_values.py",  # the chart's folder
    "tools/scripts/kustomize_base.py",  # the name of the release that is rendered
}


def _files(folder: str, suffix: str = "") -> list[str]:
    return [path for path in _tracked() if path.startswith(folder) and path.endswith(suffix) and "/tests/" not in path]


@functools.cache
def _tracked() -> list[str]:
    return subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()


def _strings(source: str) -> list[str]:
    if not any(name in source for name in NAMES):
        return []
    return [
        node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant) and type(node.value) is str
    ]


@pytest.mark.parametrize("folder", ["operator", "cli", "runtime", "tools"])
def test_code_imports_the_names(folder: str) -> None:
    again = [
        f"{path}: {text}"
        for path in _files(f"{folder}/", ".py")
        if path not in ELSEWHERE
        for text in _strings((ROOT / path).read_text())
        if text.split("=")[0] in NAMES or text.endswith(f"={constants.OPERATOR}")
    ]
    assert not again, "import them from llmservice_api/constants.py"


@pytest.mark.parametrize("folder", ["charts", "docs", "examples", "crds", "operator", "cli", "tools", "README.md"])
def test_text_uses_keys_that_exist(folder: str) -> None:
    unknown = [
        f"{path}: {key}"
        for path in _files(folder)
        if not path.endswith((".sum", ".png", ".svg"))
        for key in re.findall(
            rf"(?<![\w.-]){re.escape(constants.GROUP)}/[a-zA-Z0-9]+(?:-[a-z]+)*", (ROOT / path).read_text()
        )
        if key not in KEYS | OTHER_KEYS
    ]
    assert not unknown


def test_the_charts_policy_knows_the_operators_objects() -> None:
    policy = (ROOT / "charts/llmservice-operator/templates/policy-operator.yaml").read_text()
    pairs = re.findall(r"labels\['([^']+managed-by)'\]\.orValue\(''\) == '([^']+)'", policy)
    assert set(pairs) == {(constants.MANAGED_BY_LABEL, constants.OPERATOR)}
    assert f"{constants.MANAGED_BY_LABEL}={constants.OPERATOR}" in policy


def test_names_that_are_in_clusters_stay() -> None:
    """Children keep their labels and field owners over an upgrade of the operator."""
    assert {constants.SERVICE_LABEL, constants.REVISION_LABEL} == {"llmservice.dev/service", "llmservice.dev/revision"}
    assert (constants.MANAGER, constants.STATUS_MANAGER) == ("llmservice-operator", "llmservice-operator-status")
