"""Install, upgrade, rollback and uninstall by a real Helm: what becomes of the CRD that all releases share.

The charts here are copies that bring a CRD of a group of their own and start no operator: an interrupted run
leaves the LLMService CRD and whoever is served by it as they were.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e._chart import CHART, JSON, PREVIOUS, RELEASED, StandIn
from tests.support.cluster import Cluster, eventually
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import stand_in

pytestmark = pytest.mark.parallel

BLUE, GREEN = "chart-blue", "chart-green"


@pytest.fixture(scope="module")
def namespaces(cluster: Cluster) -> Iterator[None]:
    """Two namespaces to install into, empty also after an interrupted run."""
    _delete_namespaces(cluster)
    for name in (BLUE, GREEN):
        cluster.kubectl("create", "namespace", name)
    yield
    _delete_namespaces(cluster)


@pytest.fixture
def charts(cluster: Cluster, namespaces: None, tmp_path: Path) -> Iterator[StandIn]:
    """Chart copies of any version; no release and no CRD of theirs before and after."""
    stand_in = StandIn(tmp_path, "chart-lifecycle.example")
    _clear(cluster, stand_in)
    yield stand_in
    _clear(cluster, stand_in)


def _delete_namespaces(cluster: Cluster) -> None:
    cluster.kubectl("delete", "namespace", BLUE, GREEN, "--ignore-not-found", KUBECTL_TIMEOUT)


def _clear(cluster: Cluster, charts: StandIn) -> None:
    for release in json.loads(cluster.helm("list", "--all-namespaces", "-o", "json")):
        if release["namespace"] in (BLUE, GREEN):
            cluster.helm("uninstall", release["name"], "-n", release["namespace"])
    cluster.kubectl("delete", "crd", charts.crd_name, charts.released_crd, "--ignore-not-found", KUBECTL_TIMEOUT)


def install(cluster: Cluster, release: str, namespace: str, chart: str, *more: str) -> str:
    return cluster.helm("upgrade", "--install", release, chart, "-n", namespace, "--set", "replicas=0", *more)


def crd(cluster: Cluster, charts: StandIn) -> JSON:
    found: JSON = json.loads(cluster.kubectl("get", "crd", charts.crd_name, "-o", "json"))
    return found


def fields(cluster: Cluster, charts: StandIn) -> set[str]:
    """The spec fields that the live CRD knows."""
    return set(schema(crd(cluster, charts))["spec"]["properties"])


def schema(definition: JSON) -> JSON:
    (version,) = definition["spec"]["versions"]
    found: JSON = version["schema"]["openAPIV3Schema"]["properties"]
    return found


def paths(node: JSON, above: str = "") -> set[str]:
    """Every field below a node of a schema."""
    below = {f"{above}.{name}": child for name, child in node.get("properties", {}).items()}
    if "items" in node:
        below[f"{above}[]"] = node["items"]
    return set(below).union(*(paths(child, name) for name, child in below.items()))


def make_object(cluster: Cluster, charts: StandIn, namespace: str, **spec: str) -> None:
    manifest = {
        "apiVersion": f"{charts.group}/v1alpha1",
        "kind": "ChartCopy",
        "metadata": {"name": "kept", "namespace": namespace},
        "spec": spec,
    }
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{charts.crd_name}", KUBECTL_TIMEOUT)
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))


def spec_of(cluster: Cluster, charts: StandIn, namespace: str) -> JSON:
    printed = cluster.kubectl("get", charts.crd_name, "kept", "-n", namespace, "-o", "json")
    found: JSON = json.loads(printed)["spec"]
    return found


def test_upgrade_brings_fields_and_rollback_takes_none_away(cluster: Cluster, charts: StandIn) -> None:
    install(cluster, "one", BLUE, charts.version("0.1.0", "old"))
    assert fields(cluster, charts) == {"old"}

    install(cluster, "one", BLUE, charts.version("0.2.0", "old", "new"))
    assert fields(cluster, charts) == {"old", "new"}
    make_object(cluster, charts, BLUE, old="a", new="b")

    cluster.helm("rollback", "one", "1", "-n", BLUE)
    assert fields(cluster, charts) == {"old", "new"}
    make_object(cluster, charts, BLUE, old="c", new="b")
    assert spec_of(cluster, charts, BLUE) == {"old": "c", "new": "b"}


def test_the_same_version_with_another_crd_is_applied(cluster: Cluster, charts: StandIn) -> None:
    install(cluster, "one", BLUE, charts.version("0.1.0", "old"))
    install(cluster, "one", BLUE, charts.version("0.1.0", "old", "developed"))
    assert fields(cluster, charts) == {"old", "developed"}


@pytest.mark.parametrize(
    ("newer", "older"),
    [("0.2.0", "0.1.9"), ("0.10.0", "0.9.0"), ("1.0.0", "1.0.0-rc.1")],
    ids=["minor", "ten is more than nine", "release after candidate"],
)
def test_an_older_chart_leaves_a_newer_crd(cluster: Cluster, charts: StandIn, newer: str, older: str) -> None:
    install(cluster, "one", BLUE, charts.version(newer, "old", "new"))
    install(cluster, "one", BLUE, charts.version(older, "old"))
    install(cluster, "two", GREEN, charts.version(older, "old"), "--set", f"watch.namespaces={{{GREEN}}}")
    assert fields(cluster, charts) == {"old", "new"}


def test_the_release_before_is_upgraded_to_this_one(cluster: Cluster, charts: StandIn) -> None:
    """Its CRD gets this one's fields and loses none, its values are carried over, and a rollback takes nothing away."""
    before, now = charts.released(PREVIOUS, "before"), charts.released(CHART, "now")
    values = ("--set", "logging.level=debug", "--set", f"watch.namespaces={{{BLUE}}}")
    install(cluster, "one", BLUE, before, *values)
    old = schema(released_crd(cluster, charts))
    make_service(cluster, charts, stand_in("kept"))
    stored = service_of(cluster, charts)["spec"]

    install(cluster, "one", BLUE, now, "--reset-then-reuse-values")
    new = schema(released_crd(cluster, charts))
    for part in ("spec", "status"):
        assert paths(old[part]) < paths(new[part]), part
    settings = settings_of(cluster)
    assert (settings["logging"]["level"], settings["namespaces"]) == ("debug", [BLUE])
    assert service_of(cluster, charts)["spec"] == stored, "nothing is dropped"
    make_service(cluster, charts, stand_in("kept", startCache={"size": "1Gi"}))

    cluster.helm("rollback", "one", "1", "-n", BLUE)
    assert settings_of(cluster)["logging"]["level"] == "debug"
    assert paths(new["spec"]) == paths(schema(released_crd(cluster, charts))["spec"])
    assert service_of(cluster, charts)["spec"]["startCache"] == {"size": "1Gi"}

    install(cluster, "one", BLUE, now, "--reset-then-reuse-values")
    assert settings_of(cluster) == settings


def released_crd(cluster: Cluster, charts: StandIn) -> JSON:
    found: JSON = json.loads(cluster.kubectl("get", "crd", charts.released_crd, "-o", "json"))
    return found


def settings_of(cluster: Cluster) -> JSON:
    """What the operator of the release `one` reads."""
    data = cluster.must_get("configmaps", BLUE, "one-llmservice-operator")["data"]
    found: JSON = yaml.safe_load(data["settings.yaml"])
    return found


def make_service(cluster: Cluster, charts: StandIn, service: JSON) -> None:
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{charts.released_crd}", KUBECTL_TIMEOUT)
    cluster.apply({**service, "apiVersion": f"{charts.group}/v1alpha1", "kind": RELEASED["kind"]}, BLUE)


def service_of(cluster: Cluster, charts: StandIn) -> JSON:
    printed = cluster.kubectl("get", charts.released_crd, "kept", "-n", BLUE, "-o", "json")
    found: JSON = json.loads(printed)
    return found


def test_uninstall_keeps_objects_and_another_name_takes_over(cluster: Cluster, charts: StandIn) -> None:
    install(cluster, "one", BLUE, charts.version("0.1.0", "old"))
    make_object(cluster, charts, BLUE, old="a")
    cluster.helm("uninstall", "one", "-n", BLUE)
    assert spec_of(cluster, charts, BLUE) == {"old": "a"}

    install(cluster, "another", GREEN, charts.version("0.2.0", "old", "new"))
    assert fields(cluster, charts) == {"old", "new"}
    assert spec_of(cluster, charts, BLUE) == {"old": "a"}


def test_two_releases_of_one_name_side_by_side(cluster: Cluster, charts: StandIn) -> None:
    """The same release name in two namespaces is the worst case for cluster-scoped names."""
    chart = charts.version("0.1.0", "old")
    for namespace in (BLUE, GREEN):
        install(cluster, "one", namespace, chart, "--set", f"watch.namespaces={{{namespace}}}")
    assert granted(cluster) == {BLUE: 5, GREEN: 5}
    cluster.helm("uninstall", "one", "-n", BLUE)
    assert granted(cluster) == {GREEN: 5}
    install(cluster, "one", GREEN, charts.version("0.2.0", "old", "new"), "--reuse-values")
    assert fields(cluster, charts) == {"old", "new"}


def granted(cluster: Cluster) -> dict[str, int]:
    """How many Roles (the operator's own) and ClusterRoles (nodes, view, edit, admin) each of the two releases has."""
    roles = json.loads(cluster.kubectl("get", "roles,clusterroles", "-A", "-o", "json"))["items"]
    counts: dict[str, int] = {}
    for role in roles:
        release = role["metadata"].get("annotations", {}).get("meta.helm.sh/release-namespace", "")
        if release in (BLUE, GREEN) and ":" in role["metadata"]["name"]:
            counts[release] = counts.get(release, 0) + 1
    return counts


def test_the_crd_of_another_manager_is_not_taken_by_force(cluster: Cluster, charts: StandIn) -> None:
    """kubectl's own CRD: the install fails and names the manager; as Helm's manager it can be handed over."""
    mine = Path(charts.version("0.1.0", "old")) / "files" / "crd.yaml"
    cluster.kubectl("apply", "--server-side", "-f", str(mine))
    newer = charts.version("0.2.0", "old", "new")
    refused = cluster.run(
        str(cluster.paths.bin / "helm"), "install", "one", newer, "-n", BLUE, "--set", "replicas=0", expect=1
    )
    assert 'conflict with "kubectl"' in refused
    assert fields(cluster, charts) == {"old"}

    handed_over = str(Path(newer) / "files" / "crd.yaml")
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", handed_over)
    install(cluster, "one", BLUE, charts.version("0.3.0", "old", "new", "newest"))
    assert fields(cluster, charts) == {"old", "new", "newest"}


def test_installing_without_the_crd_touches_none(cluster: Cluster, charts: StandIn) -> None:
    install(cluster, "one", BLUE, charts.version("0.1.0", "old"), "--set", "crds.install=false")
    printed = cluster.kubectl("get", "crd", charts.crd_name, "--ignore-not-found", "-o", "name")
    assert printed == ""


EXPECTED = {
    ("view", "get", "llmservices"): True,
    ("view", "create", "llmservices"): False,
    ("view", "update", "llmservices/scale"): False,
    ("edit", "create", "llmservices"): True,
    ("edit", "patch", "llmservices/scale"): True,
    ("edit", "patch", "llmservices/status"): False,
    ("admin", "delete", "llmservices"): True,
}


def test_view_edit_and_admin_reach_llmservices(cluster: Cluster, charts: StandIn) -> None:
    install(cluster, "one", BLUE, charts.version("0.1.0", "old"))
    for role in ("view", "edit", "admin"):
        subject = f"--user=someone-who-may-{role}"
        named = f"--clusterrole={BLUE}:one-llmservice-operator:{role}"
        cluster.kubectl("create", "rolebinding", role, named, subject, "-n", BLUE)
    for (role, verb, resource), allowed in EXPECTED.items():
        assert may(cluster, role, verb, resource) is allowed, (role, verb, resource)

    def aggregated() -> bool:
        rules = json.loads(cluster.kubectl("get", "clusterrole", "admin", "-o", "json"))["rules"]
        return any("llmservices/scale" in rule.get("resources", []) for rule in rules)

    eventually("the cluster's admin role reaches llmservices/scale", aggregated, 20)


def may(cluster: Cluster, role: str, verb: str, resource: str) -> bool:
    asked, _, subresource = resource.partition("/")
    answer = cluster.kubectl(
        "auth",
        "can-i",
        verb,
        f"{asked}.llmservice.dev",
        *([f"--subresource={subresource}"] if subresource else []),
        "-n",
        BLUE,
        f"--as=someone-who-may-{role}",
        expect=None,
    )
    return answer.startswith("yes")
