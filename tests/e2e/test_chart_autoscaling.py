"""What the chart adds for spec.scaling.autoscaling, without a cluster: the activator, and what it may do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from llmservice_api.constants import VERBS
from llmservice_api.lifecycle import Holding

from tests.e2e._chart import AUTOSCALED, EVERYTHING, JSON, ChartRefused, of_kind, only, render

pytestmark = pytest.mark.parallel

OPERATOR = "demo-llmservice-operator"
SCALER = f"{OPERATOR}-activator"
NAMES = (OPERATOR, SCALER)
POLICY = f"llm.{OPERATOR}.activator"
SERVICES = {OPERATOR: f"{OPERATOR}-metrics", SCALER: SCALER}
TLS_FOLDER = "/etc/llmservice-activator-tls"


def scaled(**values: object) -> JSON:
    """The values of an installation with a scaler, with some of `autoscaling` replaced."""
    return EVERYTHING | {"autoscaling": AUTOSCALED["autoscaling"] | values}


def added(values: JSON) -> set[tuple[str, str]]:
    """What `autoscaling.enabled` adds, by kind and name."""

    def named(objects: Sequence[JSON]) -> set[tuple[str, str]]:
        return {(made["kind"], made["metadata"]["name"]) for made in objects}

    without = {key: value for key, value in values.items() if key != "autoscaling"}
    assert named(render(without)) <= named(render(values))
    return named(render(values)) - named(render(without))


def test_nothing_is_added_until_it_is_enabled() -> None:
    off = {"autoscaling": {"enabled": False, "tls": {"secretName": "a"}, "keda": {"clientSecretName": "b"}}}
    assert render(off) == render()
    assert "scaler" not in only(render(), "ConfigMap")["data"]["settings.yaml"]
    assert not any("activator" in str(made) for made in render() if made["kind"] != "CustomResourceDefinition")


def test_what_is_added() -> None:
    assert added(AUTOSCALED) == {
        ("Deployment", SCALER),
        ("Service", SCALER),
        ("ServiceAccount", SCALER),
        ("PodDisruptionBudget", SCALER),
        ("ClusterRole", f"llm:{SCALER}"),
        ("ClusterRoleBinding", f"llm:{SCALER}"),
        ("ClusterTriggerAuthentication", f"llm.{SCALER}"),
        ("ValidatingAdmissionPolicy", POLICY),
        ("ValidatingAdmissionPolicyBinding", POLICY),
        *((kind, name) for kind in ("Role", "RoleBinding") for name in (SCALER, f"{OPERATOR}-holding")),
    }
    more = added(scaled())
    assert {("NetworkPolicy", SCALER), ("ServiceMonitor", SCALER), ("Role", f"llm:{SCALER}")} <= more
    assert not {kind for kind, _ in more} & {"ClusterRole", "ClusterRoleBinding"}


MISSING: dict[str, tuple[JSON, str, str]] = {
    "the server's Secret": ({"keda": {"clientSecretName": "b"}}, "autoscaling.tls.secretName", "namespace llm"),
    "KEDA's Secret": ({"tls": {"secretName": "a"}}, "autoscaling.keda.clientSecretName", "namespace keda"),
    "KEDA's Secret elsewhere": (
        {"tls": {"secretName": "a"}, "keda": {"namespace": "scaling"}},
        "autoscaling.keda.clientSecretName",
        "namespace scaling",
    ),
}


@pytest.mark.parametrize(("values", "name", "where"), MISSING.values(), ids=MISSING.keys())
def test_a_missing_secret_is_refused_with_the_values_name_and_the_remedy(values: JSON, name: str, where: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        render({"autoscaling": {"enabled": True} | values})
    message = str(refused.value)
    assert f"{name}: name the Secret in {where}" in message
    assert "docs/serving/scaling.md" in message


BAD_VALUES: dict[str, tuple[JSON, str]] = {
    "unknown key": ({"autoscaling": {"enable": True}}, "additional properties 'enable' not allowed"),
    "no replica": (scaled(replicas=0), "at '/autoscaling/replicas'"),
    "too many replicas": (scaled(replicas=6), "at '/autoscaling/replicas'"),
    "no time to finish": (scaled(terminationGracePeriodSeconds=5), "at '/autoscaling/terminationGracePeriodSeconds'"),
    "a Secret with a slash": (scaled(tls={"secretName": "a/b"}), "at '/autoscaling/tls/secretName'"),
    "a namespace with capitals": (scaled(keda={"namespace": "KEDA"}), "at '/autoscaling/keda/namespace'"),
    "no namespace": (scaled(keda={"namespace": ""}), "at '/autoscaling/keda/namespace'"),
}


@pytest.mark.parametrize(("values", "message"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_bad_values_are_refused_by_name(values: JSON, message: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        render(values)
    assert message in str(refused.value)


def test_the_scaler_meets_the_restricted_standard_and_is_spread() -> None:
    pod = only(render(AUTOSCALED), "Deployment", SCALER)["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert all(set(volume) & {"secret", "emptyDir"} for volume in pod["volumes"])
    (spread,) = pod["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")


def test_what_it_holds_is_answered_before_it_ends() -> None:
    """The process ends by itself, after every request that a service may hold by default, before it is killed."""

    def seconds(values: JSON) -> tuple[int, int]:
        pod = only(render(values), "Deployment", SCALER)["spec"]["template"]["spec"]
        (grace,) = (word for word in pod["containers"][0]["args"] if word.startswith("--grace="))
        return int(grace.removeprefix("--grace=")), pod["terminationGracePeriodSeconds"]

    own, pods = seconds(AUTOSCALED)
    assert Holding().timeout_seconds < own < pods
    own, pods = seconds(scaled(terminationGracePeriodSeconds=3700))
    assert own < pods == 3700


def test_its_memory_has_room_for_what_it_holds() -> None:
    """256 MiB of bodies, each of which is twice in memory for a moment."""
    (container,) = only(render(AUTOSCALED), "Deployment", SCALER)["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "1Gi"}


def test_everything_reaches_the_scalers_pod() -> None:
    deployment = only(render(scaled(replicas=3, affinity={"podAntiAffinity": {}})), "Deployment", SCALER)
    template = deployment["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    assert deployment["spec"]["replicas"] == 3
    assert container["image"] == EVERYTHING["image"]["repository"] + "@" + EVERYTHING["image"]["digest"]
    assert container["imagePullPolicy"] == "Always"
    assert container["command"] == ["python", "-m", "llmservice_activator"]
    assert container["args"] == [
        "--port=9443",
        "--health-port=8080",
        "--metrics-port=9090",
        "--internal-port=9091",
        f"--service={SCALER}",
        "--grace=655",
        f"--tls={TLS_FOLDER}",
        "--namespaces=blue,green",
        "--log-format=console",
        "--log-level=debug",
    ]
    environment = {
        one["name"]: one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") for one in container["env"]
    }
    assert environment == {
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_IP": "status.podIP",
        "HOME": None,
    }
    assert template["metadata"]["labels"]["team"] == "ml"
    assert template["metadata"]["annotations"]["note"] == "x"
    for key in ("imagePullSecrets", "nodeSelector", "tolerations", "priorityClassName"):
        assert pod[key] == EVERYTHING[key]
    assert pod["affinity"] == {"podAntiAffinity": {}}
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volume = next(volume for volume in pod["volumes"] if volume["name"] == mounted[TLS_FOLDER])
    assert volume["secret"] == {"secretName": "scaler-tls"}
    everywhere = only(render(AUTOSCALED), "Deployment", SCALER)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not [argument for argument in everywhere if argument.startswith("--namespaces")]


def test_while_the_scalers_pods_are_replaced_none_is_missing() -> None:
    objects = render(AUTOSCALED)
    spec = only(objects, "Deployment", SCALER)["spec"]
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert only(objects, "PodDisruptionBudget", SCALER)["spec"]["maxUnavailable"] == 1
    assert not of_kind(render(scaled(replicas=1)), "PodDisruptionBudget", SCALER), "one could never be evicted"


def test_the_operators_selectors_do_not_find_the_scaler_nor_the_other_way_round() -> None:
    objects = render(scaled())
    pods = {name: only(objects, "Deployment", name)["spec"]["template"]["metadata"]["labels"] for name in NAMES}
    for name in NAMES:
        deployment = only(objects, "Deployment", name)["spec"]["selector"]["matchLabels"]
        budget = only(objects, "PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"]
        policy = only(objects, "NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"]
        service = only(objects, "Service", SERVICES[name])
        for selector in (deployment, budget, policy, service["spec"]["selector"]):
            assert [each for each, labels in pods.items() if selector.items() <= labels.items()] == [name]
        monitor = only(objects, "ServiceMonitor", name)["spec"]
        chosen = [
            each["metadata"]["name"]
            for each in of_kind(objects, "Service")
            if monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
        ]
        assert chosen == [SERVICES[name]]
        assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_the_activators_have_an_address_of_each_family_that_the_cluster_has() -> None:
    """The second family of a dual-stack Service at zero leads to the activators' addresses of that family."""
    assert only(render(AUTOSCALED), "Service", SCALER)["spec"]["ipFamilyPolicy"] == "PreferDualStack"


def test_keda_is_told_the_address_of_the_service_and_where_its_certificate_is() -> None:
    objects = render(AUTOSCALED)
    service = only(objects, "Service", SCALER)
    (port,) = (port for port in service["spec"]["ports"] if port["name"] == "scaler")
    settings = only(objects, "ConfigMap")["data"]["settings.yaml"]
    assert f"scalerAddress: {service['metadata']['name']}.llm.svc:{port['port']}\n" in settings
    (container,) = only(objects, "Deployment", SCALER)["spec"]["template"]["spec"]["containers"]
    assert {"name": port["targetPort"], "containerPort": 9443} in container["ports"]
    authentication = only(objects, "ClusterTriggerAuthentication")
    assert f"scalerAuthentication: {authentication['metadata']['name']}\n" in settings
    assert {one["parameter"]: (one["name"], one["key"]) for one in authentication["spec"]["secretTargetRef"]} == {
        "caCert": ("scaler-client", "ca.crt"),
        "tlsClientCert": ("scaler-client", "tls.crt"),
        "tlsClientKey": ("scaler-client", "tls.key"),
    }


def test_releases_of_one_name_in_two_namespaces_share_no_cluster_scoped_object() -> None:
    scoped = ("ClusterRole", "ClusterRoleBinding", "ClusterTriggerAuthentication", "ValidatingAdmissionPolicy")
    blue, green = ({str(one["metadata"]["name"]) for one in cluster_wide(where, scoped)} for where in ("blue", "green"))
    assert len(blue) == len(green) >= 4
    assert not blue & green


def cluster_wide(namespace: str, kinds: Sequence[str]) -> list[JSON]:
    return [made for made in render(AUTOSCALED, namespace=namespace) if made["kind"] in kinds]


def rights(role: JSON) -> dict[tuple[str, str], set[str]]:
    """Verbs by group and resource."""
    return {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


SCALERS = {
    ("llmservice.dev", "llmservices"): {"get", "list", "watch"},
    ("llmservice.dev", "llmservices/scale"): {"get", "patch"},
    ("", "namespaces"): {"get"},
    ("", "pods"): {"get", "list", "watch"},
    ("", "events"): {"create"},
}


@pytest.mark.parametrize(
    ("values", "kind", "places"),
    [(AUTOSCALED, "ClusterRole", [None]), (EVERYTHING | AUTOSCALED, "Role", ["blue", "green"])],
    ids=["cluster-wide", "namespaces"],
)
def test_the_scaler_reads_services_and_pods_and_writes_a_scale_and_events_only(
    values: JSON, kind: str, places: list[str]
) -> None:
    objects = render(values)
    roles = of_kind(objects, kind, f":{SCALER}")
    assert [role["metadata"].get("namespace") for role in roles] == places
    assert [rights(role) for role in roles] == [SCALERS] * len(places)
    peers = only(objects, "Role", f"{SCALER}") if kind == "ClusterRole" else of_kind(objects, "Role", SCALER)[-1]
    assert (peers["metadata"]["namespace"], peers["metadata"]["name"]) == ("llm", SCALER)
    assert rights(peers) == {("discovery.k8s.io", "endpointslices"): {"list", "watch"}}
    subject = [{"kind": "ServiceAccount", "name": SCALER, "namespace": "llm"}]
    everyone = of_kind(objects, "RoleBinding") + of_kind(objects, "ClusterRoleBinding")
    bound = [binding["roleRef"]["name"] for binding in everyone if binding["subjects"] == subject]
    assert sorted(bound) == sorted([*[f"llm:{SCALER}"] * len(places), SCALER])


def test_the_scalers_policy_is_about_all_that_it_may_write() -> None:
    objects = render(AUTOSCALED)
    written = {
        kind for kind, verbs in rights(only(objects, "ClusterRole", SCALER)).items() if verbs & {"create", "patch"}
    }
    policy = only(objects, "ValidatingAdmissionPolicy", POLICY)["spec"]
    assert {
        (group, resource)
        for rule in policy["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    } == written
    (own,) = policy["matchConditions"]
    assert own["expression"] == f"request.userInfo.username == 'system:serviceaccount:llm:{SCALER}'"
    theirs = only(render(scaled(serviceAccountName="mine")), "ValidatingAdmissionPolicy", POLICY)["spec"]
    assert theirs["matchConditions"][0]["expression"].endswith(":llm:mine'")
    off = render(AUTOSCALED | {"admissionPolicies": {"operator": {"enabled": False}}})
    assert not of_kind(off, "ValidatingAdmissionPolicy") + of_kind(off, "ValidatingAdmissionPolicyBinding")


def test_the_scaler_may_have_an_account_of_yours() -> None:
    objects = render(scaled(serviceAccountName="mine"))
    assert not of_kind(objects, "ServiceAccount", SCALER)
    assert only(objects, "Deployment", SCALER)["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
    assert of_kind(objects, "RoleBinding", SCALER)[0]["subjects"][0]["name"] == "mine"
    none = render(AUTOSCALED | {"rbac": {"create": False, "aggregate": False}})
    assert not {made["kind"] for made in none} & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def operators_rights(values: JSON) -> dict[tuple[str, str], set[str]]:
    return rights(only(render(values), "ClusterRole", OPERATOR))


SLICES, RESTRICTED = (("discovery.k8s.io", f"endpointslices{part}") for part in ("", "/restricted"))


def test_the_operator_has_more_rights_only_with_autoscaling() -> None:
    before, after = operators_rights({}), operators_rights(AUTOSCALED)
    changed = {kind: verbs for kind, verbs in after.items() if before.get(kind) != verbs}
    assert changed == {
        ("keda.sh", "scaledobjects"): set(VERBS),
        ("", "resourcequotas"): {"list"},
        SLICES: set(VERBS),
        RESTRICTED: {"create"},
    }
    assert before[SLICES] == {"list", "watch", "delete"}, "what is left once it is disabled"
    assert before["", "pods"] == {"list", "watch", "patch"}, "the annotation before any scale-down"


@pytest.mark.parametrize("values", [{}, AUTOSCALED], ids=["disabled", "enabled"])
def test_the_operator_deletes_no_slices_of_others(values: JSON) -> None:
    policy = only(render(values), "ValidatingAdmissionPolicy", ".operator")["spec"]
    (rule,) = (rule for rule in policy["matchConstraints"]["resourceRules"] if "endpointslices" in rule["resources"])
    assert "DELETE" in rule["operations"]
    both = "variables.kind != 'endpointslices' || [oldObject, object].all(slice, slice == null ||"
    label = "slice.metadata.?labels['endpointslice.kubernetes.io/managed-by'].orValue('') == 'llmservice.dev')"
    said = [" ".join(validation["expression"].split()) for validation in policy["validations"]]
    assert [text for text in said if text.startswith(f"{both} {label}")]


def test_the_operator_finds_activators_and_keeps_ports_in_its_own_namespace() -> None:
    objects = render(EVERYTHING | AUTOSCALED)
    role, binding = only(objects, "Role", "-holding"), only(objects, "RoleBinding", "-holding")
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "llm"
    assert rights(role) == {
        SLICES: {"list", "watch"},
        ("coordination.k8s.io", "leases"): {"get", "create", "update"},
    }
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "runner", "namespace": "llm"}]


ACTIVATORS = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "llmservice-operator-activator",
                                              "app.kubernetes.io/instance": "demo"}}}  # fmt: skip
OPERATORS = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "llmservice-operator",
                                             "app.kubernetes.io/instance": "demo"}}}  # fmt: skip
MODELS = {
    "namespaceSelector": {},
    "podSelector": {"matchExpressions": [{"key": "llmservice.dev/service", "operator": "Exists"}]},
}
EVERYBODY = None
HOLDING = (10240, 32767)


def peers(rules: list[JSON], direction: str) -> dict[object, list[JSON] | None]:
    """Who may send to each port, or be sent to; None: everybody."""
    found: dict[object, list[JSON] | None] = {}
    for rule in rules:
        for port in rule.get("ports", ()):
            assert port["protocol"] in ("TCP", "UDP")
            found[(port["port"], port["endPort"]) if "endPort" in port else port["port"]] = rule.get(direction)
    return found


def test_who_reaches_the_activator_and_whom_it_reaches() -> None:
    values = scaled(keda={"namespace": "scaling", "clientSecretName": "b"})
    values["networkPolicy"] = {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]}
    spec = only(render(values), "NetworkPolicy", SCALER)["spec"]
    assert peers(spec["ingress"], "from") == {
        "scaler": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "scaling"}}}],
        "internal": [OPERATORS, ACTIVATORS],
        HOLDING: EVERYBODY,
        "health": EVERYBODY,
        "metrics": [{"namespaceSelector": {}}],
    }
    assert peers(spec["egress"], "to") == {
        53: EVERYBODY,
        5353: EVERYBODY,
        443: EVERYBODY,
        6443: EVERYBODY,
        8081: [MODELS],
        8000: [MODELS],
        "internal": [ACTIVATORS],
        HOLDING: [ACTIVATORS],
    }


def test_clients_of_services_without_a_replica_can_be_restricted() -> None:
    clients = [{"namespaceSelector": {"matchLabels": {"team": "ml"}}}]
    values = scaled() | {"networkPolicy": {"enabled": True, "holdingFrom": clients}}
    spec = only(render(values), "NetworkPolicy", SCALER)["spec"]
    assert peers(spec["ingress"], "from")[HOLDING] == [*clients, ACTIVATORS], "they ask each other through the Service"


def test_the_operator_reaches_the_activators_only_with_autoscaling() -> None:
    def reached(values: JSON) -> dict[object, list[JSON] | None]:
        policy = only(render(values | {"networkPolicy": {"enabled": True}}), "NetworkPolicy", OPERATOR)
        return peers(policy["spec"]["egress"], "to")

    assert reached(AUTOSCALED) == reached({}) | {9091: [ACTIVATORS]}
    (container,) = only(render(AUTOSCALED), "Deployment", SCALER)["spec"]["template"]["spec"]["containers"]
    assert {"name": "internal", "containerPort": 9091} in container["ports"]


def test_a_switch_replaces_the_operators_pod_and_no_model() -> None:
    """Models' pod templates come from recorded revisions; what the chart changes is the operator's settings."""

    def checksum(values: JSON) -> str:
        template = only(render(values), "Deployment", OPERATOR)["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/settings"])

    assert checksum(AUTOSCALED) != checksum({})
    changed = {"autoscaling": AUTOSCALED["autoscaling"] | {"replicas": 3, "tls": {"secretName": "renamed"}}}
    assert checksum(changed) == checksum(AUTOSCALED), "what concerns the scaler alone leaves the operator alone"
