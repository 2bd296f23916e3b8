"""kubectl and Helm understand every command of the pages: options, kinds, values of the chart.

kubectl sends them to the cluster as a user without rights; Helm renders the chart of this tree.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from localcluster.paths import REPOSITORY
from tests.e2e._chart import CHART, ChartRefused, helm_binary, helm_offline
from tests.support.documents import PAGES, blocks_of, manifests_of, name_of, shell_blocks, simple_commands
from tests.support.patience import PATIENCE
from tests.support.services import llmservice
from tests.support.shell import files_of, kubectl_refuses, statements

pytestmark = pytest.mark.cluster

CHART_OF_THE_TREE = "charts/llmservice-operator"
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}(_[A-Z]+)*\b")
REGISTRY = "oci://"
"""Begins the name of a chart in a registry: the tree's is taken instead."""


OTHER_OPERATORS = {"cert-manager", "flux", "argocd", "keda", "prometheus"}
"""Marks of blocks whose kinds the local cluster may lack."""


def commands(program: str) -> Iterator[tuple[Path, list[str], str]]:
    """(page, words, input) of each command of a program in a page's shell blocks."""
    for page in PAGES:
        blocks = [block for block, needs in shell_blocks(page) if not OTHER_OPERATORS & set(needs)]
        for block in (*blocks, *(prompted(block) for block in blocks_of(page, "console"))):
            for line, given in statements(block):
                for words in simple_commands(line):
                    if words[0] == program and words[1:2] != ["llmservice"]:
                        yield page, words, given


def prompted(block: str) -> str:
    """What a person types in a picture of a terminal."""
    return "\n".join(line[2:] for line in block.splitlines() if line.startswith("$ "))


KUBECTL, HELM = list(commands("kubectl")), list(commands("helm"))


def named(rows: Sequence[tuple[Path, list[str], str]]) -> list[str]:
    return [f"{name_of(page)}: {' '.join(words)}"[:150] for page, words, _ in rows]


SMALLEST = llmservice("written-elsewhere")
"""For a file that another command makes."""
FOLDERS = ("charts", "crds", "deploy", "examples")


def link_folders(folder: Path) -> None:
    """Those of a checkout, in which pages have their commands run."""
    for name in FOLDERS:
        (folder / name).symlink_to(REPOSITORY / name)


def write_files(page: Path, words: Sequence[str], folder: Path) -> None:
    """What the page has its reader write: a manifest of the page, or anything."""
    for name in files_of(words):
        target = folder / name
        if name.startswith(tuple(f"{folder}/" for folder in FOLDERS)):
            assert target.exists(), name
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        is_manifest = "apply" in words or "create" in words
        target.write_text(json.dumps([*manifests_of(page), SMALLEST][0]) if is_manifest else "{}")


@pytest.mark.parametrize(("page", "words", "given"), KUBECTL, ids=named(KUBECTL))
def test_kubectl_understands(
    page: Path, words: list[str], given: str, kubeconfig: Path, kubectl_program: str, tmp_path: Path
) -> None:
    link_folders(tmp_path)
    write_files(page, words, tmp_path)
    program = (kubectl_program, f"--kubeconfig={kubeconfig}")
    assert kubectl_refuses(program, words, tmp_path, dict(os.environ), given or json.dumps(SMALLEST)) == ""


@pytest.mark.parametrize(
    "words", [["kubectl", "get", "llmsx"], ["kubectl", "get", "llms", "--no-such"], ["kubectl", "gat"]]
)
def test_what_kubectl_does_not_understand_is_found(
    words: list[str], kubeconfig: Path, kubectl_program: str, tmp_path: Path
) -> None:
    program = (kubectl_program, f"--kubeconfig={kubeconfig}")
    assert kubectl_refuses(program, words, tmp_path, dict(os.environ)) != ""


def helm_refuses(words: Sequence[str], folder: Path) -> str:
    """What Helm does not understand of a command; no cluster is asked."""
    environment = {"KUBECONFIG": "/dev/null", "HOME": str(folder), "PATH": os.environ["PATH"]}
    chart = [CHART_OF_THE_TREE if word.startswith(REGISTRY) else word for word in words[1:]]
    command = (helm_binary(), *without(chart, "--version"))
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    said = f"{done.stderr}{done.stdout}"
    return "" if done.returncode == 0 or "cluster unreachable" in said.lower() else said


def without(words: Sequence[str], *options: str) -> list[str]:
    """The words without these options and their values."""
    dropped = {place + offset for place, word in enumerate(words) if word in options for offset in (0, 1)}
    return [word for place, word in enumerate(words) if place not in dropped]


def rendered(words: Sequence[str], given: str = "") -> str:
    """The chart with the values that a command of `helm install` or `upgrade` sets or is given; ChartRefused for an
    unknown one.

    A word in capitals stands for a name that the reader has.
    """
    settings = [
        word
        for option, value in pairwise([*words, ""])
        if option in ("--set", "--set-string", "--set-json")
        for word in (option, PLACEHOLDER.sub(lambda found: found[0].lower().replace("_", "-"), value))
    ]
    return helm_offline("template", "demo", str(CHART), *settings, values=yaml.safe_load(given or "{}"))


@pytest.mark.parametrize(("page", "words", "given"), HELM, ids=named(HELM))
def test_helm_understands(page: Path, words: list[str], given: str, tmp_path: Path) -> None:
    link_folders(tmp_path)
    write_files(page, words, tmp_path)
    assert helm_refuses(words, tmp_path) == ""
    if words[1] in ("install", "upgrade"):
        assert "kind: Deployment" in rendered(words, given)


def test_what_helm_does_not_understand_is_found(tmp_path: Path) -> None:
    link_folders(tmp_path)
    assert "unknown flag" in helm_refuses(["helm", "install", "a", CHART_OF_THE_TREE, "--no-such"], tmp_path)
    assert helm_refuses(["helm", "instal"], tmp_path) != ""
    with pytest.raises(ChartRefused, match="no-such"):
        rendered(["helm", "install", "a", CHART_OF_THE_TREE, "--set", "no-such=1"])
    with pytest.raises(ChartRefused, match="no-such"):
        rendered(["helm", "install", "a", CHART_OF_THE_TREE, "-f", "-"], "no-such: 1")


def test_commands_are_found() -> None:
    assert len(KUBECTL) > 30
    assert len(HELM) > 9
