"""The container that fetches: when it is there, its arguments, credentials and size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from llmservice_operator.build.resources import helpers
from llmservice_operator.planner.quantity import amount
from llmservice_runtime.contract import FETCH_COMMAND

from tests.unit.test_build_template import KEY, SETTINGS, Json, env, env_of, fetcher, mounts, render, table, volumes

HUB: Json = {"uri": "hf://a/b", "hfTokenSecretRef": KEY}
BUCKET: Json = {
    "uri": "s3://bucket/b",
    "s3": {"endpoint": "https://store", "region": "r", "credentialsSecretRef": {"name": "s"}},
}
AWS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}


@pytest.mark.parametrize(
    ("model", "names"),
    [(HUB, {"HF_TOKEN"}), (BUCKET, AWS), (HUB | BUCKET, AWS | {"HF_TOKEN"})],
    ids=["a hub", "a bucket", "a bucket, and a hub for adapters"],
)
def test_credentials_are_references_of_the_fetch_container_alone(model: Json, names: set[str]) -> None:
    template = render(model=model, endpoint={"apiKeySecretRef": KEY})
    found = env_of(fetcher(template))
    assert (AWS | {"HF_TOKEN"}) & set(found) == names
    assert all("secretKeyRef" in found[name] for name in names)
    assert not [name for name in env(template) if name == "HF_TOKEN" or name.startswith("AWS_")]
    assert "VLLM_API_KEY" not in env(template), "vLLM would refuse the keys that are rotated in"


def test_only_a_model_with_code_of_its_own_gets_the_hubs_token_in_the_server() -> None:
    assert env(render(model=HUB | {"trustRemoteCode": True}))["HF_TOKEN"] == {"secretKeyRef": KEY}
    for uri in ("s3://bucket/b", "pvc://a/b", "file:///a"):
        assert "HF_TOKEN" not in env(render(model=HUB | {"trustRemoteCode": True, "uri": uri})), uri


FETCHED = """
a claim: [{model: {uri: pvc://a/b}}, null]
a folder: [{model: {uri: file:///a}}, null]
a hub: [{model: {uri: hf://a/b}}, [--fetch=model=hf://a/b]]
adapters may come: [{model: {uri: pvc://a/b}, lora: {}}, [--adapters-file=/llmservice/adapters/adapters.json]]
a draft model:
- model: {uri: hf://a/b}
  speculativeDecoding: {method: draftModel, model: {uri: s3://bucket/d}, numSpeculativeTokens: 3}
- [--fetch=model=hf://a/b, --fetch=draft=s3://bucket/d]
"""


@pytest.mark.parametrize(("sections", "arguments"), table(FETCHED))
def test_the_fetch_container_is_there_where_something_may_be_fetched(
    sections: Json, arguments: list[str] | None
) -> None:
    template = render(**sections)
    container = fetcher(template)
    if arguments is None:
        assert container is None
        assert not {"models", "fetch", "fetch-tmp"} & set(volumes(template))
        return
    assert container is not None
    assert (container["image"], container["restartPolicy"]) == ("llmservice-operator:1", "Always")
    assert (container["command"], container["args"]) == (list(FETCH_COMMAND), arguments)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert set(mounts(template, container)) == {"models", "fetch", "fetch-tmp"} | ({"adapters"} & set(mounts(template)))
    for name in ("models", "fetch"):
        assert "readOnly" not in mounts(template, container)[name]
        assert mounts(template)[name] == mounts(template, container)[name] | {"readOnly": True}
    scratch = mounts(template, container)["fetch-tmp"]["mountPath"]
    assert all(env_of(container)[name].startswith(scratch) for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME"))


def test_the_fetch_container_has_the_users_variables_for_transfers() -> None:
    given = {"HF_ENDPOINT": "a", "LEVEL": "b", "no_proxy": "c", "HF_HUB_OFFLINE": "1"}
    pod = {
        "volumes": [{"name": "ca", "secret": {"secretName": "ca"}}, {"name": "v", "emptyDir": {}}],
        "volumeMounts": [{"name": "ca", "mountPath": "/mnt/ca"}, {"name": "v", "mountPath": "/mnt/v"}],
    }
    runtime = {"env": [{"name": name, "value": value} for name, value in given.items()]}
    template = render(replace(SETTINGS, hf_endpoint="z"), runtime=runtime, podTemplate={"spec": pod})
    found = env_of(fetcher(template))
    assert (found["HF_ENDPOINT"], found["no_proxy"], found["HF_HUB_OFFLINE"]) == ("a", "c", "1")
    assert "LEVEL" not in found, "which is vLLM's"
    assert all(mounts(template, fetcher(template))[name]["readOnly"] for name in ("ca", "v"))


GUARANTEED = {"limits": {"cpu": "4", "memory": "20Gi"}}


@pytest.mark.parametrize(
    ("resources", "is_guaranteed"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"limits": {"memory": "20Gi"}}, False, id="memory only"),
        pytest.param(GUARANTEED, True, id="limits"),
        pytest.param(GUARANTEED | {"requests": {"memory": "1Gi"}}, False, id="requests"),
    ],
)
def test_the_pod_is_guaranteed_where_the_server_is(resources: Json, is_guaranteed: bool) -> None:
    """Kubernetes asks it of each container, those that start first included."""
    pod = render(model={"uri": "pvc://models/a"}, runtime={"resources": resources})["spec"]
    for container in pod["containers"] + pod["initContainers"]:
        limits, requests = container["resources"].get("limits", {}), container["resources"]["requests"]
        same = all(amount(limits.get(name, "0")) == amount(requests[name]) for name in ("cpu", "memory"))
        assert same is is_guaranteed, container["name"]


def test_a_fetch_container_requests_little_and_has_the_limits_of_the_settings() -> None:
    settings = replace(SETTINGS, fetch_cpu="500m", fetch_memory_gib=4)
    container = fetcher(render(settings, runtime={"resources": GUARANTEED}))
    assert container is not None
    assert container["resources"]["requests"] == {"cpu": "50m", "memory": "128Mi"}
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "4Gi"}


def test_what_helpers_request_is_a_setting_and_their_limits_are_never_below_it() -> None:
    """A LimitRange may want more of each container, those that start first and the inspection's included."""
    settings = replace(SETTINGS, helper_cpu="1500m", helper_memory="256Mi")
    guest = {"name": "guest", "image": "guest:1", "resources": {"limits": {"cpu": "2"}}}
    pod = render(settings, podTemplate={"spec": {"initContainers": [guest]}})["spec"]
    found = {container["name"]: container["resources"] for container in pod["initContainers"]}
    requests = {"cpu": "1500m", "memory": "256Mi"}
    assert found == {
        "runtime": {"requests": requests, "limits": requests},
        "guest": {"requests": {"cpu": "2", "memory": "256Mi"}, "limits": {"cpu": "2"}},
        "fetch": {"requests": requests, "limits": {"cpu": "2", "memory": "2Gi"}},
    }
    assert helpers(settings)["inspect"] == {"requests": requests, "limits": {"cpu": "1500m", "memory": "512Mi"}}
