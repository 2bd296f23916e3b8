"""Ready is an operator that acts or would on getting the Lease: `helm upgrade --wait` ends for it, and for no other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e._chart import CHART, IMAGES, OTHER, TEAM
from tests.e2e.conftest import release_namespaces
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import idle

RELEASE = "ready"
NAME = f"{RELEASE}-llmservice-operator"
ROLE = f"{TEAM}:{NAME}"
CLAIMS = """\
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
"""


@pytest.fixture(scope="module")
def namespaces(cluster: Cluster, operator_rests: None) -> Iterator[None]:
    """Of one release, which each test upgrades to what it needs."""
    with release_namespaces(cluster):
        yield


def upgrade(
    cluster: Cluster,
    *values: str,
    chart: Path = CHART,
    watched: str = TEAM,
    ends: bool = True,
    timeout: str = "120s",
    is_forced: bool = False,
) -> str:
    """Install or upgrade, and wait until its pods are ready, or in vain; `is_forced` takes over what others patched."""
    settings = [f"--set={one}" for one in (IMAGES, f"watch.namespaces={{{watched}}}", *values)]
    wait = ["--wait", "--timeout", timeout, *(["--force-conflicts"] if is_forced else [])]
    command = ["upgrade", "--install", RELEASE, str(chart), "-n", TEAM, *settings, *wait]
    return cluster.helm(*command, expect=0 if ends else 1)


def pods(cluster: Cluster) -> dict[str, JSON]:
    """The release's pods that are not about to go, by uid."""
    found = cluster.list("pods", TEAM, f"app.kubernetes.io/instance={RELEASE}")
    return {pod["metadata"]["uid"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}


def only_pod(cluster: Cluster) -> JSON:
    """Once those of before are gone."""
    (pod,) = eventually("one pod", lambda: there if len(there := pods(cluster)) == 1 else None, 30).values()
    return pod


def ask(pod: JSON, port: str, path: str, token: str = "") -> httpx.Response:
    number = next(p["containerPort"] for p in pod["spec"]["containers"][0]["ports"] if p["name"] == port)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.get(f"http://{pod['status']['podIP']}:{number}{path}", headers=headers, trust_env=False)


def readiness(pod: JSON) -> tuple[int, str]:
    """What the kubelet is answered; 0 where nothing listens yet."""
    try:
        answer = ask(pod, "health", "/readyz")
    except (httpx.TransportError, KeyError):
        return 0, ""
    return answer.status_code, answer.text


def stages(cluster: Cluster) -> list[str]:
    said = [readiness(pod)[1].splitlines() for pod in pods(cluster).values()]
    return sorted(line for lines in said for line in lines if line.startswith("stage: "))


@pytest.mark.parametrize(("replicas", "at"), [(1, ["acting"]), (2, ["acting", "synced"])])
def test_an_upgrade_that_waits_for_readiness_ends(
    cluster: Cluster, namespaces: None, replicas: int, at: list[str]
) -> None:
    """Though the pod before holds the Lease until the new one is ready, and one of two replicas never gets it."""
    upgrade(cluster, f"replicas={replicas}")
    before = set(pods(cluster))
    upgrade(cluster, f"replicas={replicas}", "podAnnotations.turn=second")
    eventually("the pods of before are gone", lambda: not before & set(pods(cluster)), 60)
    eventually("who acts", lambda: stages(cluster) == [f"stage: {stage}" for stage in at], 30)


def test_an_upgrade_without_a_right_does_not_end_until_the_right_is_back(
    cluster: Cluster, namespaces: None, tmp_path: Path
) -> None:
    def now(pod: JSON) -> JSON:
        return cluster.must_get("pods", TEAM, pod["metadata"]["name"])

    upgrade(cluster)
    before = only_pod(cluster)["metadata"]["uid"]
    poorer = tmp_path / "chart"
    shutil.copytree(CHART, poorer)
    rules = poorer / "templates" / "_rules.tpl"
    assert CLAIMS in rules.read_text()
    rules.write_text(rules.read_text().replace(CLAIMS, ""))
    upgrade(cluster, "podAnnotations.turn=second", chart=poorer, ends=False, timeout="8s")
    new = next(pod for uid, pod in pods(cluster).items() if uid != before)
    words = "missing right: list persistentvolumeclaims"
    eventually("500 with the missing right", lambda: (seen := readiness(now(new)))[0] == 500 and words in seen[1], 20)

    rule = {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["list", "watch"]}
    patch = json.dumps([{"op": "add", "path": "/rules/-", "value": rule}])
    cluster.kubectl("patch", "role", ROLE, "-n", TEAM, "--type=json", "-p", patch)
    eventually("it is ready", lambda: readiness(now(new))[0] == 200, 60)
    assert now(new)["status"]["containerStatuses"][0]["restartCount"] == 0
    upgrade(cluster, "podAnnotations.turn=second", is_forced=True)


def test_a_namespace_without_its_role_holds_up_no_other(cluster: Cluster, namespaces: None) -> None:
    both = f"{TEAM},{OTHER}"
    upgrade(cluster, watched=both)
    cluster.kubectl("delete", "rolebinding", ROLE, "-n", OTHER)
    cluster.kubectl("delete", "pod", "-n", TEAM, "-l", f"app.kubernetes.io/instance={RELEASE}", KUBECTL_TIMEOUT)
    for namespace in (TEAM, OTHER):
        cluster.apply(idle("served"), namespace)
    eventually("children where it may", lambda: cluster.get("deployments", TEAM, "served"), 60)
    pod = only_pod(cluster)
    eventually("it is ready", lambda: readiness(pod)[0] == 200, 30)
    assert f"warning: namespace {OTHER}: missing right: list llmservices.llmservice.dev" in readiness(pod)[1]
    forbidden = f'llmservice_watch_forbidden{{namespace="{OTHER}"}}'
    reported = next(line for line in ask(pod, "metrics", "/metrics").text.splitlines() if line.startswith(forbidden))
    assert float(reported.split()[1]) > 0
    assert cluster.get("deployments", OTHER, "served") is None

    upgrade(cluster, watched=both)
    eventually("children where it may again", lambda: cluster.get("deployments", OTHER, "served"), 60)
    assert set(pods(cluster)) == {pod["metadata"]["uid"]}, "by the same process"
    eventually("nothing is missing", lambda: "warning" not in readiness(pod)[1], 60)


def test_guarded_metrics_are_read_by_whoever_was_granted_them(cluster: Cluster, namespaces: None) -> None:
    upgrade(cluster, "metrics.authentication=tokenReview")
    pod = only_pod(cluster)
    token = cluster.kubectl("create", "token", "default", "-n", OTHER).strip()
    reader = f"{TEAM}:{NAME}:metrics-reader"
    assert ask(pod, "metrics", "/metrics").status_code == 401
    assert ask(pod, "metrics", "/metrics", "made-up").status_code == 401
    assert ask(pod, "metrics", "/metrics", token).status_code == 403
    binding = ["create", "clusterrolebinding", "ready-metrics", f"--clusterrole={reader}"]
    cluster.kubectl(*binding, f"--serviceaccount={OTHER}:default")
    try:
        eventually("the metrics", lambda: ask(pod, "metrics", "/metrics", token).status_code == 200, 30)
    finally:
        cluster.kubectl("delete", "clusterrolebinding", "ready-metrics")


def test_a_namespace_that_was_deleted_holds_up_no_other(cluster: Cluster, namespaces: None) -> None:
    upgrade(cluster, watched=f"{TEAM},{OTHER}")
    cluster.kubectl("delete", "namespace", OTHER, KUBECTL_TIMEOUT)
    cluster.kubectl("delete", "pod", "-n", TEAM, "-l", f"app.kubernetes.io/instance={RELEASE}", KUBECTL_TIMEOUT)
    cluster.apply(idle("alone"), TEAM)
    eventually("its children", lambda: cluster.get("deployments", TEAM, "alone"), 60)
