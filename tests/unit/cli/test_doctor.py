"""`llmservice doctor`: reads the facts with the rights there are, and ends with a code."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_cli.doctor.command import CHECKS
from llmservice_cli.errors import CliError
from llmservice_operator.options import version

from tests.support.documents import ROOT
from tests.unit.api_server import ApiServer
from tests.unit.cli.doctor_world import (
    MESH,
    SYSTEM,
    T4,
    VERSION_LABEL,
    config_map,
    deployment,
    hook,
    installed_crd,
    lease,
    namespace,
    node,
    service,
    storage_class,
)
from tests.unit.cli_world import SERVICES, Command

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
LISTS = {
    "/apis/storage.k8s.io/v1/storageclasses": [storage_class()],
    "/apis/resource.k8s.io/v1/deviceclasses": [],
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": [],
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": [],
    "/api/v1/namespaces/team/limitranges": [],
}
APPS, CRDS = "/apis/apps/v1/namespaces", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def api(api_server: ApiServer) -> ApiServer:
    """A healthy cluster with the operator and one service."""
    labels = {"app.kubernetes.io/name": "llmservice-operator", VERSION_LABEL: version()}
    configured, leading = config_map("leaderElection: {leaseName: llmservice-operator}\nservices: {}"), lease()
    configured["metadata"]["labels"] = labels
    api_server.answers = {
        "/version": {"gitVersion": "v1.34.2"},
        f"POST {REVIEWS}": {"status": {"allowed": True}},
        f"POST {SELF}": {
            "metadata": {"creationTimestamp": "2026-01-01T12:00:00Z"},
            "status": {"userInfo": {"username": "me"}},
        },
        **{path: {"items": items} for path, items in LISTS.items()},
    }
    api_server.objects = {
        f"{APPS}/{SYSTEM}/deployments/llmservice-operator": deployment(labels=labels),
        f"/api/v1/namespaces/{SYSTEM}/configmaps/llmservice-operator": configured,
        f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/llmservice-operator": leading,
        f"{CRDS}/llmservices.llmservice.dev": installed_crd(),
        "/api/v1/nodes/a": node("a", T4, gpus="1"),
        "/api/v1/namespaces/team": namespace(),
        f"{SERVICES}/chat": service(),
    }
    return api_server


async def test_a_healthy_cluster(api: ApiServer, llmservice: Command) -> None:
    ran = await llmservice.within("doctor")
    assert ran.code == 0, ran.out
    assert ran.out.splitlines()[-1] == f"problem: 0, warning: 0, not known: 0, ok: {len(CHECKS)}"
    assert {method for method, *_ in api.requests} == {"GET", "POST"}, "nothing is changed"
    assert {path for method, path, *_ in api.requests if method == "POST"} == {REVIEWS, SELF}


async def test_a_config_map_of_dashboards_is_no_settings_file(api: ApiServer, llmservice: Command) -> None:
    path = f"/api/v1/namespaces/{SYSTEM}/configmaps/llmservice-operator"
    dashboards = {"name": "llmservice-operator-dashboards", "namespace": SYSTEM}
    labels = api.objects[path]["metadata"]["labels"]
    api.objects[f"{path}-dashboards"] = {"metadata": {**dashboards, "labels": labels}, "data": {"a.json": "{}"}}
    ran = await llmservice.within("doctor")
    assert ran.code == 0, ran.out


async def test_a_problem_has_a_code_and_a_remedy(api: ApiServer, llmservice: Command) -> None:
    api.answers["/version"] = {"gitVersion": "v1.29.0"}
    ran = await llmservice.within("doctor", "-o", "json")
    assert ran.code == 1
    (found,) = [each for each in ran.json["findings"] if each["level"] != "ok"]
    assert (found["check"], found["level"]) == ("kubernetes", "problem")
    assert "upgrade the cluster" in found["remedy"]
    assert (ran.json["version"], ran.json["isInstalled"]) == (1, True)


async def test_warnings_are_problems_when_strict(api: ApiServer, llmservice: Command) -> None:
    api.objects[f"{SERVICES}/chat"] = service("False", "DoesNotFit")
    assert (await llmservice.within("doctor")).code == 0
    ran = await llmservice.within("doctor", "--strict")
    assert ran.code == 1
    assert "llmservice status chat -n team; llmservice explain DoesNotFit" in " ".join(ran.out.split())


async def test_an_empty_cluster_is_checked_before_installing(api: ApiServer, llmservice: Command) -> None:
    api.objects = {path: one for path, one in api.objects.items() if path.startswith("/api/v1/n")}
    api.answers["/apis/llmservice.dev/v1alpha1/llmservices"] = 404
    ran = await llmservice.within("doctor")
    assert ran.code == 0, ran.out
    assert ran.out.startswith("before installing: ")
    assert "CRD" not in [line.split()[1] for line in ran.out.splitlines() if line.startswith("ok")]


async def test_before_install_skips_what_is_there(api: ApiServer, llmservice: Command) -> None:
    del api.objects[f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/llmservice-operator"]
    assert (await llmservice.within("doctor")).code == 1
    assert (await llmservice.within("doctor", "--before-install")).code == 0


async def test_missing_rights_are_not_known_and_no_failure(api: ApiServer, llmservice: Command) -> None:
    api.refused = dict.fromkeys(("nodes", "deployments", "configmaps", "customresourcedefinitions", "namespaces"), 403)
    ran = await llmservice.within("doctor", "-o", "json")
    assert ran.code == 0, ran.out
    by_check = {each["check"]: each for each in ran.json["findings"]}
    assert by_check["nodes"]["evidence"] == "you have no right to list nodes"
    assert by_check["operator"]["level"] == "not known"
    assert "list deployments.apps in all namespaces" in by_check["operator"]["evidence"]
    assert "grant it" in by_check["CRD"]["remedy"]


async def test_where_all_namespaces_are_refused_the_own_is_read(api: ApiServer, llmservice: Command) -> None:
    api.answers["/apis/llmservice.dev/v1alpha1/llmservices"] = 403
    api.answers["/apis/apps/v1/deployments"] = 403
    ran = await llmservice.within("doctor")
    assert "1 of 1 LLMServices are Ready" in ran.out
    assert f"{SYSTEM}/llmservice-operator: 1/1 replicas ready" in " ".join(ran.out.split())


async def test_labels_in_other_namespaces_are_no_operator(api: ApiServer, llmservice: Command) -> None:
    labels = {"app.kubernetes.io/name": "llmservice-operator", "helm.sh/chart": "llmservice-operator-0.1.0"}
    pretended = deployment(0, labels=labels)
    pretended["metadata"]["namespace"] = "team"
    api.objects[f"{APPS}/team/deployments/llmservice-operator"] = pretended
    binding = {"metadata": {"name": "b", "labels": labels}, "subjects": [{"namespace": SYSTEM}]}
    api.objects["/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/b"] = binding
    ran = await llmservice.within("doctor")
    assert (ran.code, "team/llmservice-operator" in ran.out) == (0, False)


async def test_a_release_with_another_name_is_found_by_its_rights(api: ApiServer, llmservice: Command) -> None:
    labels = {"app.kubernetes.io/name": "short", "helm.sh/chart": "llmservice-operator-0.1.0"}
    for path, found in api.objects.items():
        if path.startswith((f"{APPS}/{SYSTEM}", f"/api/v1/namespaces/{SYSTEM}/configmaps")):
            found["metadata"]["labels"] = {**found["metadata"]["labels"], **labels}
    assert "no Deployment of the operator is found" in (await llmservice.within("doctor", "-o", "json")).out
    binding = {"metadata": {"name": "b", "labels": labels}, "subjects": [{"namespace": SYSTEM}]}
    api.objects["/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/b"] = binding
    ran = await llmservice.within("doctor", "-o", "json")
    assert ran.code == 0, ran.out
    assert f"{SYSTEM}/llmservice-operator: 1/1 replicas ready" in ran.out


SLICE = "/apis/discovery.k8s.io/v1/namespaces/mesh/endpointslices"


@pytest.mark.parametrize(
    ("slices", "code"),
    [
        ({"items": [{"metadata": {"name": "s"}, "endpoints": [{"conditions": {"ready": True}}]}]}, 0),
        ({"items": [{"metadata": {"name": "s"}, "endpoints": [{"conditions": {"ready": False}}]}]}, 1),
        ({"items": []}, 1),
        (403, 0),
    ],
    ids=["ready", "not ready", "none", "no right"],
)
async def test_webhooks_are_looked_up(slices: Any, code: int, api: ApiServer, llmservice: Command) -> None:
    api.answers["/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"] = {"items": [MESH]}
    api.answers[SLICE] = slices
    ran = await llmservice.within("doctor")
    assert (ran.code, "mesh (inject)" in " ".join(ran.out.split())) == (code, True)


async def test_webhooks_of_other_namespaces_are_none_of_this_one(api: ApiServer, llmservice: Command) -> None:
    selecting = hook("Fail", namespaceSelector={"matchLabels": {"injected": "yes"}})
    api.answers["/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"] = {"items": [selecting]}
    api.answers[SLICE] = {"items": []}
    assert (await llmservice.within("doctor")).code == 0
    api.objects[f"/api/v1/namespaces/{SYSTEM}"] = namespace(name=SYSTEM, injected="yes")
    ran = await llmservice.within("doctor")
    assert (ran.code, f"no pod can be created in {SYSTEM}" in " ".join(ran.out.split())) == (1, True)


@pytest.mark.parametrize("code", [401, 500])
async def test_a_cluster_that_could_not_be_asked_has_a_code_of_its_own(
    code: int, api: ApiServer, llmservice: Command
) -> None:
    api.answers["/version"] = code
    with pytest.raises(CliError) as error:
        await llmservice.within("doctor")
    assert error.value.exit_code == 2
    assert error.value.remedy


def test_the_documentation_lists_the_checks() -> None:
    page = (ROOT / "docs/cli/doctor.md").read_text(encoding="utf-8").partition("## Checks")[2]
    rows = [f"| {check.name} | {check.about} | {'yes' if check.is_of_installed else ''} |" for check in CHECKS]
    assert [line for line in page.splitlines() if line.startswith("| ") and "|-" not in line][1:] == rows
