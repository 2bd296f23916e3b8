"""`llmservice report` on a real cluster: a whole bundle, in which secrets that were planted everywhere are not."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from localcluster.install import STAND_IN_IMAGE
from tests.e2e.test_cli_doctor import team_kubeconfig
from tests.support.cluster import Cluster
from tests.support.patience import PATIENCE
from tests.support.services import stand_in

pytestmark = pytest.mark.parallel

HF, KEY, PASSWORD = "hf_PlantedByATest1234567", "sk-pl4nted-by-a-test", "pl4nted-password"
LOGGED, BEARER = "pl4nted-in-a-log-1234", "pl4nted.bearer.of.a.test"
PLANTED = (HF, KEY, PASSWORD, LOGGED, BEARER)
TELLS = f"print('loading with token={LOGGED}'); print('Authorization: Bearer {BEARER}'); print('plain words')"
INIT: dict[str, Any] = {
    "name": "tells",
    "image": STAND_IN_IMAGE,
    "command": ["python3", "-c", TELLS],
    "args": ["--api-key", KEY],
    "env": [{"name": "HUB_TOKEN", "value": HF}],
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
ENV = [{"name": "MIRROR_TOKEN", "value": HF}, {"name": "MIRROR", "value": f"https://me:{PASSWORD}@mirror.invalid/x"}]


def report(cluster: Cluster, *words: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    command = (sys.executable, "-m", "llmservice_cli", "report", *words)
    environment = environment or cluster.environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout, done.stderr


def bundle_of(path: Path) -> dict[str, str]:
    """Texts by their paths in the bundle's folder."""
    found = {}
    with tarfile.open(path) as bundle:
        for member in bundle.getmembers():
            file = bundle.extractfile(member)
            assert file is not None
            found[member.name.partition("/")[2]] = file.read().decode()
    return found


def test_a_bundle_of_a_service_holds_everything_but_its_secrets(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    manifest = stand_in("chat", runtime={"env": ENV}, podTemplate={"spec": {"initContainers": [INIT]}})
    cluster.apply(manifest, namespace)
    cluster.wait_condition(namespace, "chat", "Ready", "True")
    stored = cluster.kubectl("get", "llms,pods,deployments,controllerrevisions", "-n", namespace, "-o", "yaml")
    pod = cluster.pod(namespace, "chat")["metadata"]["name"]
    logs = cluster.kubectl("logs", pod, "-c", "tells", "-n", namespace)
    assert all(secret in stored + logs for secret in PLANTED), "they are where the command reads"
    out = tmp_path / "chat.tar.gz"
    code, printed, err = report(cluster, "chat", "-n", namespace, "--out", str(out))
    assert code == 0, err
    found = bundle_of(out)
    expected = {"llmservice-chat", f"pod-{pod}", "deployment-chat", "service-chat"}
    assert {f"objects/{name}.yaml" for name in expected} <= {*found}
    assert {f"logs/{pod}/server.log", f"logs/{pod}/tells.log", f"pages/{pod}.metrics.txt", "events.txt"} <= {*found}
    assert any(name.startswith("objects/controllerrevision-") for name in found)
    assert any(name.endswith("about-chat.log") and "RolledOut" in text for name, text in found.items())
    assert "plain words" in found[f"logs/{pod}/tells.log"]
    assert "level: ok" in found["doctor.yaml"]
    for name, text in {**found, "standard output": printed, "standard error": err}.items():
        assert not [secret for secret in PLANTED if secret in text], name
    of_team(cluster, namespace, pod, tmp_path)


def of_team(cluster: Cluster, namespace: str, pod: str, folder: Path) -> None:
    """With the role edit the service's own part is whole, and what is the operator's is named."""
    out = folder / "team.tar.gz"
    environment = team_kubeconfig(cluster, namespace, folder)
    code, printed, err = report(cluster, "chat", "--out", str(out), environment=environment)
    assert code == 0, err
    found = bundle_of(out)
    assert {f"logs/{pod}/server.log", f"pages/{pod}.metrics.txt", "events.txt", f"objects/pod-{pod}.yaml"} <= {*found}
    assert "the operator's log: you have no right to list pods" in printed
    assert "nodes: you have no right to list nodes" in found["README.md"]
    assert not [name for name, text in found.items() for secret in PLANTED if secret in text]


def test_a_bundle_of_the_operator(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "operator.tar.gz"
    code, _, err = report(cluster, "--out", str(out))
    assert code == 0, err
    found = bundle_of(out)
    system = "objects/llmservice-system"
    assert {f"{system}/deployment-llmservice-operator.yaml", f"{system}/configmap-llmservice-operator.yaml"} <= {*found}
    assert "holderIdentity" in found[f"{system}/lease-llmservice-operator.yaml"]
    assert any(name.startswith("logs/") and text for name, text in found.items())


def test_errors_write_nothing(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    out = tmp_path / "no.tar.gz"
    code, _, err = report(cluster, "nobody", "-n", namespace, "--out", str(out))
    assert (code, out.exists()) == (1, False)
    assert "there is no LLMService 'nobody'" in err
    out.write_bytes(b"mine")
    code, _, err = report(cluster, "nobody", "-n", namespace, "--out", str(out))
    assert (code, out.read_bytes()) == (2, b"mine")
    assert "exists already" in err
