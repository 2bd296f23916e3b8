"""The chart's web page: off by default, without rights, restricted, reached under the names that are given."""

from __future__ import annotations

import pytest

from tests.e2e._chart import JSON, ChartRefused, of_kind, only, render

pytestmark = pytest.mark.parallel

ON: JSON = {"ui": {"enabled": True}}
POLICED: JSON = {"networkPolicy": {"enabled": True}}
SUFFIX = "-ui"


def arguments(values: JSON) -> list[str]:
    (container,) = only(render(values), "Deployment", SUFFIX)["spec"]["template"]["spec"]["containers"]
    found: list[str] = container["args"]
    return found


def test_nothing_of_it_is_there_by_default() -> None:
    assert [each["metadata"]["name"] for each in render(POLICED) if each["metadata"]["name"].endswith(SUFFIX)] == []


def test_it_has_an_account_without_rights_and_no_token() -> None:
    objects, without = render(ON), render()
    pod = only(objects, "Deployment", SUFFIX)["spec"]["template"]["spec"]
    account = only(objects, "ServiceAccount", SUFFIX)
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert (account["automountServiceAccountToken"], pod["automountServiceAccountToken"]) == (False, False)
    assert all(set(volume) <= {"name", "configMap", "emptyDir"} for volume in pod["volumes"])
    for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
        assert of_kind(objects, kind) == of_kind(without, kind), "no role knows it"


def test_it_meets_the_restricted_standard_with_bounds() -> None:
    pod = only(render(ON), "Deployment", SUFFIX)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["seccompProfile"]["type"]) == (
        True,
        "RuntimeDefault",
    )
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert "memory" in container["resources"]["limits"]


def test_selectors_of_operator_and_page_find_their_own_pods_only() -> None:
    objects = render(ON)
    page, operator = (only(objects, "Deployment", suffix) for suffix in (SUFFIX, "demo-llmservice-operator"))
    service = only(objects, "Service", SUFFIX)
    assert service["spec"]["selector"] == page["spec"]["selector"]["matchLabels"]
    labels = page["spec"]["template"]["metadata"]["labels"]
    assert not operator["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert page["spec"]["replicas"] == 1, "sessions are in its memory"


def test_names_and_hub_reach_its_process() -> None:
    assert not [word for word in arguments(ON) if word == "--hub" or "example" in word]
    values = {"ui": {"enabled": True, "hosts": ["llm.example.com"], "hub": {"enabled": True}}}
    assert {
        "--host=llm.example.com",
        "--hub",
        "--host=demo-llmservice-operator-ui.llm.svc",
        "--operator=llm/demo-llmservice-operator",
    } <= set(arguments(values))


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_hub_is_reached_only_where_it_is_enabled(is_enabled: bool) -> None:
    values = POLICED | {"ui": {"enabled": True, "from": [{"podSelector": {}}], "hub": {"enabled": is_enabled}}}
    values["networkPolicy"] = {"enabled": True, "apiServerPorts": [6443]}
    policy = only(render(values), "NetworkPolicy", SUFFIX)["spec"]
    assert policy["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}], "from": [{"podSelector": {}}]}]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {53, 5353, 6443} | ({443} if is_enabled else set())


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"enabled": "yes"}, "/ui/enabled"),
        ({"hosts": ["https://llm.example.com"]}, "/ui/hosts/0"),
        ({"hosts": ["LLM.example.com"]}, "/ui/hosts/0"),
        ({"hosts": ["llm.example.com:443"]}, "/ui/hosts/0"),
        ({"replicas": 2}, "additional properties 'replicas' not allowed"),
    ],
)
def test_bad_values_are_refused_by_name(values: JSON, place: str) -> None:
    with pytest.raises(ChartRefused, match=place):
        render({"ui": values})
