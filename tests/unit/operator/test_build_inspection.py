"""The inspection Job: it has what the server reaches its model with, and nothing else of the server's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_api.service import LLMService
from llmservice_operator.manifests.children import disruption_budget, service
from llmservice_operator.manifests.containers import transfer_environment
from llmservice_operator.manifests.inspection import inspection_key, is_wanted, job, job_name
from llmservice_operator.manifests.pod_template import pod_template
from llmservice_operator.manifests.settings import CABundle, Settings
from llmservice_operator.workload.deployment import DEPLOYMENT
from llmservice_planner.quantity import amount

from tests.unit.decide_world import an_llmservice
from tests.unit.operator.test_build_deployment import SETTINGS, assert_restricted, env_of

Json = dict[str, Any]
HUB: Json = {"uri": "hf://org/name@v1"}
BUCKET: Json = {"uri": "s3://models/name", "s3": {"endpoint": "https://minio:9000", "region": "eu-1"}}
CLAIM: Json = {"uri": "pvc://models/a/b"}
IMAGE: Json = {"uri": "image://registry/models/a:1#model"}
FILE: Json = {"uri": "file:///models/a"}


def llm(model: Json, *, name: str = "chat", uid: str = "uid-1", **sections: Any) -> LLMService:
    obj = an_llmservice({"model": model, **sections})
    return LLMService.from_object(obj | {"metadata": obj["metadata"] | {"name": name, "uid": uid}})


def pod(model: Json, settings: Settings = SETTINGS, **sections: Any) -> Json:
    spec: Json = job(llm(model, **sections), settings)["spec"]["template"]["spec"]
    return spec


def container(spec: Json) -> Json:
    (only,) = spec["containers"]
    return dict(only)


def env(spec: Json) -> Json:
    return env_of(container(spec))


MODELS: list[tuple[Json, str | None]] = [
    (HUB, "--model=hf://org/name@v1"),
    (BUCKET, "--model=s3://models/name"),
    (CLAIM, "--model=/llmservice/source/a/b"),
    (IMAGE, None),  # it is pulled whole
    (FILE, None),  # of the runtime image, which the Job does not run
]


@pytest.mark.parametrize(("model", "argument"), MODELS)
def test_a_model_is_inspected_where_that_reads_some_kilobytes(model: Json, argument: str | None) -> None:
    assert is_wanted(llm(model)) is (argument is not None)
    if argument is not None:
        assert container(pod(model))["args"][0] == argument


def test_it_runs_once_and_not_long() -> None:
    spec = job(llm(HUB), SETTINGS)["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 120)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert "ttlSecondsAfterFinished" not in spec, "the operator deletes it when it has read the result"
    assert container(spec["template"]["spec"])["command"] == ["python", "-s", "-P", "-m", "llmservice_fetch", "inspect"]


@pytest.mark.parametrize("model", [HUB, BUCKET, CLAIM, IMAGE], ids=["hub", "bucket", "claim", "image"])
def test_the_pod_meets_the_restricted_standard_and_asks_for_little(model: Json) -> None:
    spec = pod(model, accelerator={"type": "nvidia"}, parallelism={"tensorParallelSize": 8})
    assert_restricted(spec)
    resources = container(spec)["resources"]
    assert set(resources["limits"]) == {"cpu", "memory"}, "no accelerator"
    assert amount(resources["requests"]["memory"]) <= amount("64Mi")
    assert amount(resources["requests"]["cpu"]) <= amount("50m")
    written = [m["name"] for m in container(spec).get("volumeMounts", []) if not m.get("readOnly")]
    assert written == (["tmp"] if model in (HUB, BUCKET) else [])


@pytest.mark.parametrize("replicas", [1, 2])
def test_nothing_of_the_service_selects_its_pod(replicas: int) -> None:
    """Nor a Service of the user's that selects by labels of the pod template: it would send the pod requests."""
    users = {"metadata": {"labels": {"app": "mine"}, "annotations": {"a": "b"}}}
    subject = llm(HUB, scaling={"replicas": replicas}, podTemplate=users)
    made = job(subject, SETTINGS)
    labels = made["spec"]["template"]["metadata"]["labels"]
    budget = disruption_budget(subject, SETTINGS)
    selectors = [
        service(subject)["spec"]["selector"],
        DEPLOYMENT.manifest(subject, pod_template(subject, SETTINGS), "Surge")["spec"]["selector"]["matchLabels"],
        *([] if budget is None else [budget["spec"]["selector"]["matchLabels"]]),
    ]
    assert len(selectors) == replicas + 1
    assert not any(selector.items() <= labels.items() for selector in selectors)
    assert not {"llmservice.dev/service", "app"} & set(labels)
    assert labels["llmservice.dev/inspects"] == "chat"
    assert labels["app.kubernetes.io/managed-by"] == "llmservice-operator", "by this label pods are watched"
    assert made["metadata"]["labels"]["llmservice.dev/service"] == "chat"
    assert made["metadata"]["labels"]["app.kubernetes.io/component"] == "inspection"
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("uid-1", True)


TOKEN: Json = {"hfTokenSecretRef": {"name": "hugging-face", "key": "token"}}
KEYS: Json = {"credentialsSecretRef": {"name": "bucket-keys"}}
USERS_ENV = [
    {"name": "HF_ENDPOINT", "value": "https://mirror"},
    {"name": "AWS_CA_BUNDLE", "value": "/certs/ca.crt"},
    {"name": "SSL_CERT_FILE", "value": "/certs/ca.crt"},
    {"name": "no_proxy", "value": "mirror"},
    {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "t"}}},
    {"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"},
    {"name": "MY_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "p"}}},
]
NETWORK = replace(
    SETTINGS,
    hf_endpoint="https://hub.example",
    https_proxy="http://proxy:3128",
    ca_bundle=CABundle("trusted"),
    image_pull_secrets=("ours", "another", "ours"),
)


def test_a_hub_is_reached_as_the_fetch_container_reaches_it() -> None:
    subject = llm(HUB | TOKEN, endpoint={"apiKeySecretRef": {"name": "keys", "key": "k"}})
    ours = {v["name"]: v for v in job(subject, NETWORK)["spec"]["template"]["spec"]["containers"][0]["env"]}
    fetchers = {v["name"]: v for v in transfer_environment(subject, NETWORK)}
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "SSL_CERT_FILE"):
        assert ours[name] == fetchers[name], name
    assert "endpoint-keys" not in {
        volume["name"] for volume in job(subject, NETWORK)["spec"]["template"]["spec"]["volumes"]
    }


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("s3://models/a", {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}),
        ("gs://models/a", {"GOOGLE_SERVICE_ACCOUNT_KEY"}),
        ("az://models/a", {"AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN",
                           "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"}),
    ],
)  # fmt: skip
def test_the_inspection_of_a_bucket_gets_the_credentials_of_its_kind_only(uri: str, names: set[str]) -> None:
    """The others may be the draft model's or an adapter's."""
    sections: Json = {
        "s3": KEYS,
        "gcs": {"credentialsSecretRef": {"name": "google", "key": "json"}},
        "azure": {"account": "weights", "credentialsSecretRef": {"name": "azure"}},
    }
    users = [{"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/keys/a"}, {"name": "AZURE_CLIENT_ID", "value": "b"}]
    found = env(pod({"uri": uri} | TOKEN | sections))
    assert {name for name in found if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "HF_TOKEN"))} == names
    with_users = env(pod({"uri": uri} | sections, runtime={"env": users}))
    assert {"GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_ID"} <= set(with_users)


def test_of_the_users_variables_only_those_for_transfers_are_set() -> None:
    found = env(pod(HUB | TOKEN, NETWORK, runtime={"env": USERS_ENV}))
    assert found["HF_ENDPOINT"] == "https://mirror"
    assert found["HF_TOKEN"] == {"secretKeyRef": {"name": "mine", "key": "t"}}
    assert {"AWS_CA_BUNDLE", "SSL_CERT_FILE", "no_proxy"} <= set(found)
    assert not {"VLLM_LOGGING_LEVEL", "MY_PASSWORD"} & set(found)


@pytest.mark.parametrize("model", [CLAIM, IMAGE], ids=["claim", "image"])
def test_what_is_mounted_needs_no_secret(model: Json) -> None:
    draft = {"method": "draftModel", "model": {"uri": "hf://org/draft"}, "numSpeculativeTokens": 2}
    spec = pod(model | TOKEN, NETWORK, runtime={"env": USERS_ENV}, speculativeDecoding=draft)
    assert "env" not in container(spec) or env(spec) == {}


def test_the_claim_is_mounted_as_the_server_mounts_it() -> None:
    draft = {"method": "draftModel", "model": {"uri": "pvc://drafts/x"}, "numSpeculativeTokens": 2}
    subject = llm(CLAIM, speculativeDecoding=draft)
    ours, servers = pod(CLAIM, speculativeDecoding=draft), pod_template(subject, SETTINGS)["spec"]
    assert [v for v in servers["volumes"] if v["name"] == "source"] == ours["volumes"]
    assert container(ours)["volumeMounts"] == [{"name": "source", "mountPath": "/llmservice/source", "readOnly": True}]
    assert ours["securityContext"] == servers["securityContext"], "the same user reads the files"


def test_an_image_is_pulled_as_the_server_pulls_it() -> None:
    runtime = {"imagePullSecrets": [{"name": "registry-login"}, {"name": "ours"}], "imagePullPolicy": "Always"}
    spec = pod(IMAGE, NETWORK, runtime=runtime)
    (volume,) = [v for v in spec["volumes"] if v["name"] == "source"]
    assert volume["image"] == {"reference": "registry/models/a:1", "pullPolicy": "Always"}
    assert spec["imagePullSecrets"] == [{"name": "ours"}, {"name": "another"}, {"name": "registry-login"}]


NODES: Json = {
    "spec": {
        "nodeSelector": {"gpu": "l4"},
        "tolerations": [{"key": "mine", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
    }
}


def test_a_claim_is_inspected_where_the_service_runs() -> None:
    spec = pod(CLAIM, podTemplate=NODES)
    assert spec["nodeSelector"] == {"gpu": "l4"}
    (beside,) = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert beside["podAffinityTerm"]["labelSelector"] == {"matchLabels": {"llmservice.dev/service": "chat"}}


@pytest.mark.parametrize("model", [HUB, BUCKET, IMAGE], ids=["hub", "bucket", "image"])
def test_other_models_are_inspected_on_any_node(model: Json) -> None:
    spec = pod(model, podTemplate=NODES)
    assert not {"nodeSelector", "affinity", "priorityClassName", "runtimeClassName"} & set(spec)
    keys = [toleration["key"] for toleration in spec["tolerations"]]
    assert keys == ["nvidia.com/gpu", "mine"], "there may be no other nodes"


def test_certificates_of_the_users_are_mounted_and_large_volumes_are_not() -> None:
    volumes = [
        {"name": "certs", "configMap": {"name": "certs"}},
        {"name": "identity", "projected": {"sources": []}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    mounts = [{"name": v["name"], "mountPath": f"/{v['name']}", "readOnly": True} for v in volumes]
    spec = pod(HUB, podTemplate={"spec": {"volumes": volumes, "volumeMounts": mounts}})
    assert [v["name"] for v in spec["volumes"]] == ["tmp", "certs", "identity"]
    assert [m["mountPath"] for m in container(spec)["volumeMounts"]] == ["/tmp", "/certs", "/identity"]


SAME: list[Json] = [
    {"batching": {"maxNumSeqs": 7}},
    {"scaling": {"replicas": 3}},
    {"runtime": {"env": [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]}},
    {"model": HUB | {"cache": {"size": "1Gi"}}},
    {"model": HUB | {"servedModelNames": ["a"]}},
    {"model": HUB | {"architecture": {"hiddenSize": 7}}},
]
AZURE: Json = {"uri": "az://models/a", "azure": {"account": "weights"}}
OTHER: list[Json] = [
    {"model": {"uri": "hf://org/name@v2"}},
    {"model": HUB | TOKEN},
    {"runtime": {"env": [{"name": "HF_ENDPOINT", "value": "https://mirror"}]}},
    {"model": BUCKET},
    {"model": BUCKET | {"s3": BUCKET["s3"] | {"endpoint": "https://other"}}},
    {"model": AZURE},
    {"model": AZURE | {"azure": {"account": "others"}}},
    {"model": {"uri": "gs://models/a"}},
    {"model": {"uri": "gs://models/a", "gcs": {"credentialsSecretRef": {"name": "a", "key": "b"}}}},
]


def test_which_fields_need_another_inspection() -> None:
    def key_of(model: Json = HUB, **sections: Any) -> str:
        return inspection_key(llm(model, **sections).spec)

    assert {key_of(**sections) for sections in SAME} == {key_of()}
    assert len({key_of()} | {key_of(**sections) for sections in OTHER}) == 1 + len(OTHER)
    assert key_of(CLAIM, runtime={"env": USERS_ENV}) == key_of(CLAIM), "a claim is not fetched"


@pytest.mark.parametrize("name", ["a", "x" * 50, "x" * 43 + "-" + "y" * 6])
def test_names_fit_into_a_label(name: str) -> None:
    made = job_name(llm(HUB, name=name))
    assert len(made) <= 63
    assert "-inspect-" in made
    assert "--" not in made


def test_names_differ_by_service_and_by_what_is_inspected() -> None:
    long = "x" * 49
    services = [llm(HUB), llm(HUB, uid="b"), llm(CLAIM), llm(HUB, name=f"{long}y"), llm(HUB, name=f"{long}x", uid="c")]
    assert len({job_name(service) for service in services}) == len(services)
    assert job_name(llm(HUB)) == job_name(llm(HUB, batching={"maxNumSeqs": 7}))
