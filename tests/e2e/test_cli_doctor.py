"""`llmservice doctor` on a real cluster: what it finds, what a team without rights is told, and a broken namespace."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.cluster import JSON, Cluster, eventually
from tests.support.kubeconfig import kubeconfig
from tests.support.patience import PATIENCE
from tests.support.services import idle

pytestmark = pytest.mark.parallel

COMMAND = (sys.executable, "-m", "llmservice_cli", "doctor")
CPU_QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "limits"},
    "spec": {"hard": {"limits.cpu": "4", "services": "9"}},
}
OF_OTHER_TESTS = {"GPUs", "nodes"}
"""Tests beside this one label nodes, and take one away."""


def doctor(cluster: Cluster, *words: str, environment: Mapping[str, str] | None = None) -> tuple[int, JSON, str]:
    """The code, the document and standard error."""
    done = subprocess.run(
        (*COMMAND, "-o", "json", *words),
        env=environment or cluster.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def of(found: JSON, check: str) -> list[JSON]:
    return [each for each in found["findings"] if each["check"] == check]


def team_kubeconfig(cluster: Cluster, namespace: str, folder: Path) -> dict[str, str]:
    """The environment of a team that has the role edit in its namespace, and nothing else."""
    cluster.kubectl("create", "serviceaccount", "team", "-n", namespace)
    binding = ("create", "rolebinding", "team", "-n", namespace, "--clusterrole=edit")
    cluster.kubectl(*binding, f"--serviceaccount={namespace}:team")
    token = cluster.kubectl("create", "token", "team", "-n", namespace, "--duration=1h").strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))["clusters"][0]["cluster"]
    authority = folder / "ca.crt"
    authority.write_bytes(base64.b64decode(config["certificate-authority-data"]))
    place = kubeconfig(
        folder,
        {"token": token},
        namespace=namespace,
        server=config["server"],
        **{"certificate-authority": str(authority)},
    )
    return {**cluster.environment, "KUBECONFIG": str(place)}


def test_the_cluster_of_the_tests_has_no_problem_of_its_own(cluster: Cluster, namespace: str) -> None:
    def healthy() -> JSON | None:
        """On a busy machine the operator may miss a probe, which is a problem while it lasts."""
        code, found, _ = doctor(cluster, "-n", namespace)
        problems = {each["check"] for each in found["findings"] if each["level"] == "problem"}
        assert code == (1 if problems else 0)
        return found if problems <= OF_OTHER_TESTS else None

    found = eventually("no problem of its own", healthy, 60)
    assert found["isInstalled"] is True
    for check in ("kubernetes", "CRD", "operator version", "settings", "default images", "pod security"):
        assert [each["level"] for each in of(found, check)] == ["ok"], of(found, check)
    assert "was renewed" in of(found, "lease")[0]["evidence"]
    assert not [each for each in found["findings"] if each["level"] == "not known"], "an administrator may read all"


def test_what_is_wrong_in_a_namespace_is_found_with_its_remedy(cluster: Cluster, namespace: str) -> None:
    cluster.apply(CPU_QUOTA, namespace)
    cluster.apply(idle("large", runtime={"extraArgs": ["--no-such-flag"]}), namespace)
    cluster.wait_condition(namespace, "large", "Ready", "False")
    code, found, _ = doctor(cluster, "-n", namespace)
    assert code == 0 or [each for each in found["findings"] if each["level"] == "problem"], "these are warnings"
    assert any("limits.cpu" in each["evidence"] for each in of(found, "quota"))
    broken = [each for each in of(found, "services") if "UnknownFlag" in each["evidence"]]
    assert "llmservice explain UnknownFlag" in broken[0]["remedy"]
    assert doctor(cluster, "-n", namespace, "--strict")[0] == 1


def test_a_team_without_rights_is_told_what_is_not_known(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    environment = team_kubeconfig(cluster, namespace, tmp_path)
    code, found, err = doctor(cluster, environment=environment)
    assert code == 0, (found, err)
    levels = {each["check"]: each["level"] for each in found["findings"]}
    assert levels["rights"] == "ok", of(found, "rights")
    assert {levels[check] for check in ("CRD", "operator", "nodes", "storage")} == {"not known"}
    assert {levels[check] for check in ("quota", "limit range")} == {"ok"}
    assert of(found, "nodes")[0]["evidence"] == "you have no right to list nodes"


def test_a_cluster_that_does_not_answer_has_a_code_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    place = kubeconfig(tmp_path, {"token": "x"}, server="http://127.0.0.1:9")
    code, found, err = doctor(cluster, environment={**cluster.environment, "KUBECONFIG": str(place)})
    assert (code, found) == (2, {})
    assert "what to do: check the server's address" in err
