"""What `helm install` prints: its commands name what the chart made, and work after a real installation."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import pytest
import yaml
from llmservice_cli.app import options_of

from localcluster.install import NAMESPACE, RELEASE
from localcluster.paths import ClusterPaths
from tests.e2e._chart import AUTOSCALED, CHART, EVERYTHING, GUARDED, JSON, helm_offline, render
from tests.support.cluster import Cluster, eventually
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.services import stand_in
from tests.support.shell import kubectl_refuses, statements

pytestmark = pytest.mark.parallel

MONITORED = ("serviceMonitor", "podMonitor", "prometheusRule", "dashboards")
MONITORS: JSON = {"metrics": {name: {"enabled": True} for name in MONITORED}}
TABLE: Mapping[str, tuple[JSON, tuple[str, ...], tuple[str, ...]]] = {
    # values, what the notes say, and what they do not say
    "defaults": ({}, ("in all namespaces", "No CPU image is set", "-n default"), ("{type: cpu}", "Autoscaling")),
    "a CPU image": ({"services": {"defaultCpuImage": "cpu:v1"}}, ("accelerator: {type: cpu}",), ("No CPU image",)),
    "some namespaces": ({"watch": {"namespaces": ["blue", "green"]}}, ("in blue, green.", "-n blue"), ("-n default",)),
    "no nodes": (
        {"watch": {"namespaces": ["blue"]}, "rbac": {"nodes": False}},
        ("spec.accelerator.products",),
        (),
    ),
    "no roles": ({"rbac": {"create": False}}, ("rbac.create is false", "service account demo-llmservice-operator"), ()),
    "no policy": (
        {"admissionPolicies": {"operator": {"enabled": False}}},
        ("admissionPolicies.operator.enabled is false",),
        (),
    ),
    "nothing runs": ({"replicas": 0}, ("replicas is 0",), ()),
    "autoscaling": (AUTOSCALED, ("KEDA in namespace keda", "demo-llmservice-operator-activator"), ()),
    "monitors": (MONITORS, ("serviceMonitorSelector", "podMonitorSelector", "ruleSelector"), ("-reader",)),
    "the web page": ({"ui": {"enabled": True}}, ("llmservice ui --page-namespace llm\n", "-operator-ui "), ()),
    "guarded metrics": (GUARDED, ("llm:demo-llmservice-operator:metrics-reader",), ()),
    "no CRD": ({"crds": {"install": False}}, ("crds.install is false",), ()),
    "a name of its own": ({"fullnameOverride": "llms"}, ("deployment/llms ",), ("demo",)),
    "everything": (EVERYTHING | AUTOSCALED, ("in blue, green.",), ()),
}
ASKED_OF_OTHERS = {("llms", "qwen"), ("service", "qwen"), ("crd", "llmservices.llmservice.dev")}
"""What the notes have their reader make."""
KINDS = {("llms.spec", ""), ("deployments", "")}
_OTHER_KINDS = ("servicemonitor", "podmonitor", "prometheusrule")


def notes(values: JSON, chart: Path = CHART, release: str = "demo", namespace: str = "llm") -> str:
    return _notes(json.dumps(values), chart, release, namespace)


@cache
def _notes(values: str, chart: Path, release: str, namespace: str) -> str:
    words = ("install", release, str(chart), "--namespace", namespace, "--dry-run=client")
    return helm_offline(*words, values=json.loads(values)).partition("\nNOTES:\n")[2]


def commands(text: str) -> list[str]:
    """The shell commands of the notes, which begin a line, with what continues them; as one pastes them."""
    found: list[list[str]] = []
    is_begun = False
    for line in text.splitlines():
        if is_begun:
            found[-1].append(line)
        elif line.startswith(("kubectl ", "helm ", "curl ", "llmservice ")):
            found.append([line])
        else:
            continue
        is_begun = line.endswith("\\") or ("<<EOF" in found[-1][0] and line != "EOF")
    return ["\n".join(lines) for lines in found]


def words_of(values: JSON) -> Iterator[tuple[list[str], str]]:
    """Words and input of each kubectl command, without pipes."""
    for line, given in statements("\n".join(commands(notes(values)))):
        words = shlex.split(line.rpartition("| ")[2].removesuffix("&").partition("<<")[0])
        if words[0] == "kubectl":
            yield words, given


def objects_of(words: Sequence[str]) -> tuple[str, str]:
    """(kind, name) that a command names; an empty name is all of them."""
    rest = [word for word in words[1:] if not word.startswith("-")]
    if "-n" in words:
        rest.remove(words[words.index("-n") + 1])
    verb, *rest = rest
    rest = rest[1:] if verb == "rollout" else rest
    kind, _, name = (rest or [""])[0].partition("/")
    return kind, name or (rest[1] if len(rest) > 1 and not rest[1].isdigit() else "")


@pytest.mark.parametrize(("values", "says", "says_not"), TABLE.values(), ids=TABLE)
def test_notes_follow_the_values(values: JSON, says: Sequence[str], says_not: Sequence[str]) -> None:
    text = notes(values)
    assert [words for words in says if words not in text] == []
    assert [words for words in says_not if words in text] == []
    assert "<no value>" not in text
    assert "\n\n\n" not in text


@pytest.mark.parametrize("values", [row[0] for row in TABLE.values()], ids=TABLE)
def test_commands_name_what_the_chart_makes(values: JSON) -> None:
    made = {(found["kind"].lower(), found["metadata"]["name"]) for found in render(values)}
    made |= {("secret", name) for name in ("scaler-tls", "scaler-client")}
    named = [objects_of(words) for words, _ in words_of(values) if words[1] != "apply" and "apply" not in words]
    assert len(named) >= 4
    assert [pair for pair in named if pair not in made | ASKED_OF_OTHERS | KINDS] == []


@pytest.mark.parametrize("row", ["everything", "no CRD", "no roles", "guarded metrics"])
def test_kubectl_understands_the_commands(cluster: Cluster, row: str, tmp_path: Path) -> None:
    program = (str(ClusterPaths.of_this_clone().bin / "kubectl"),)
    manifest = yaml.safe_dump(stand_in("qwen"))
    refused = [
        (words, said)
        for words, given in words_of(TABLE[row][0])
        if objects_of(words)[0] not in _OTHER_KINDS
        and (said := kubectl_refuses(program, words, tmp_path, cluster.environment, given or manifest))
    ]
    assert refused == []


def test_the_command_line_understands_its_command() -> None:
    (line,) = [line for line in commands(notes({"ui": {"enabled": True}})) if line.startswith("llmservice ")]
    assert options_of(shlex.split(line)[1:]).page_namespace == "llm"


def test_the_documentation_is_named_where_a_release_has_one(tmp_path: Path) -> None:
    assert "Documentation:" not in notes({})
    copy = tmp_path / "chart"
    subprocess.run(["cp", "-r", str(CHART), str(copy)], check=True)
    with (copy / "Chart.yaml").open("a") as about:
        about.write("home: https://code.example.com/team/operator\n")
    assert "Documentation: https://code.example.com/team/operator\n" in notes({}, copy)


def test_without_its_crd_the_chart_gives_it_by_the_command_of_the_notes() -> None:
    (line,) = [line for line in notes({"crds": {"install": False}}).splitlines() if "helm template" in line]
    words = shlex.split(line.partition("|")[0].replace("CHART", str(CHART)))
    (crd,) = [document for document in yaml.safe_load_all(helm_offline(*words[1:])) if document]
    assert (crd["kind"], crd["metadata"]["name"]) == ("CustomResourceDefinition", "llmservices.llmservice.dev")


def test_the_commands_of_a_real_installation_lead_to_an_answer(cluster: Cluster, namespace: str) -> None:
    """Of the cluster's release, word for word but for the namespace, the port of this machine, and the model: no hub
    is reached."""
    values = json.loads(cluster.helm("get", "values", RELEASE, "-n", NAMESPACE, "-o", "json"))
    printed = notes(values, release=RELEASE, namespace=NAMESPACE)
    assert "-n default" in printed
    port = free_port()
    spec = yaml.safe_dump(stand_in("qwen")["spec"], default_flow_style=True, width=10_000).strip()
    changed = printed.replace("-n default", f"-n {namespace}").replace("8000", str(port))
    changed, replaced = re.subn(r"spec:\n  model: .*", lambda _: f"spec: {spec}", changed)
    assert replaced == 1
    forwarding = None
    try:
        for command in commands(changed):
            if "port-forward" in command:
                cluster.wait_condition(namespace, "qwen", "Ready", "True")
                forwarding = subprocess.Popen(
                    ["bash", "-c", f"exec {command.removesuffix('&')}"], env=environment(cluster)
                )
            elif command.startswith("curl "):
                answer = eventually("an answer", partial(run, cluster, f"{command} -sS", check=False), 30)
                assert json.loads(answer)["object"] == "chat.completion"
            elif not command.startswith("llmservice ui"):  # runs until Ctrl-C
                run(cluster, command)
    finally:
        if forwarding is not None:
            forwarding.terminate()
            forwarding.wait()
    assert forwarding is not None


def environment(cluster: Cluster) -> Mapping[str, str]:
    return {**os.environ, **cluster.environment}


def run(cluster: Cluster, command: str, *, check: bool = True) -> str:
    """What a command prints, given to bash as it stands; empty where it failed and may."""
    done = subprocess.run(
        ["bash", "-c", command], env=environment(cluster), capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0 or not check, (command, done.stderr)
    return done.stdout if done.returncode == 0 else ""
