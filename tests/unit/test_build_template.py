"""The pod template: what `restricted` asks for, and what each part of the spec becomes in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.deployment import START_CEILING_SECONDS, Strategy, deployment, progress_deadline_seconds
from llmservice_operator.build.settings import CABundle, Settings
from llmservice_operator.build.template import pod_template
from llmservice_operator.planner.quantity import amount
from llmservice_runtime.contract import FETCH_COMMAND
from llmservice_runtime.flags import newest_version

from tests.unit.decide_world import an_llmservice, spec

Json = dict[str, Any]
SETTINGS = Settings(operator_image="llmservice-operator:1", default_cpu_image="vllm-cpu:v0.32.0")
CPU: Json = {"accelerator": {"type": "cpu"}}


def render(settings: Settings = SETTINGS, **sections: Any) -> Json:
    return pod_template(LLMService.from_object(an_llmservice(spec(**sections))), settings)


def server(template: Json) -> Json:
    (container,) = template["spec"]["containers"]
    return dict(container)


def env(template: Json) -> Json:
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in server(template)["env"]}


def mounts(template: Json, container: Json | None = None) -> Json:
    return {m["name"]: m for m in (container or server(template))["volumeMounts"]}


def fetcher(template: Json) -> Json | None:
    return next((c for c in template["spec"]["initContainers"] if c["name"] == "fetch"), None)


def env_of(container: Json | None) -> Json:
    assert container is not None
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container["env"]}


def volumes(template: Json) -> Json:
    return {v["name"]: v for v in template["spec"]["volumes"]}


WIDE = {
    "parallelism": {"tensorParallelSize": 2},
    "podTemplate": {"spec": {"initContainers": [{"name": "warm", "image": "busybox"}]}},
}


@pytest.mark.parametrize("sections", [{}, CPU, WIDE], ids=["gpu", "cpu", "with a container of the user's"])
def test_every_container_meets_the_restricted_standard_and_asks_for_cpu_and_memory(sections: Json) -> None:
    template = render(**sections)
    pod = template["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    for container in pod["containers"] + pod["initContainers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert amount(container["resources"]["requests"]["cpu"]) > 0
        assert amount(container["resources"]["requests"]["memory"]) > 0
    assert server(template)["securityContext"]["readOnlyRootFilesystem"] is True
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_everything_that_is_written_has_a_volume() -> None:
    template = render()
    writable = [m["mountPath"] for m in mounts(template).values() if not m.get("readOnly")]
    for name in ("HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME", "HF_HOME"):
        assert any(env(template)[name].startswith(path) for path in writable), name
    assert "/tmp" in writable
    assert set(mounts(template)) | {"fetch-tmp"} == set(volumes(template))


@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        pytest.param(SETTINGS, {}, {"runAsUser": 2000, "fsGroup": 2000}, id="default"),
        pytest.param(replace(SETTINGS, run_as_user=None), {}, {}, id="platform assigns"),
        pytest.param(SETTINGS, {"runAsUser": 7, "fsGroup": 8}, {"runAsUser": 7, "fsGroup": 8}, id="user's own"),
    ],
)
def test_the_user_id_can_be_changed_and_left_to_the_platform(settings: Settings, given: Json, expected: Json) -> None:
    security = render(settings, podTemplate={"spec": {"securityContext": given}})["spec"]["securityContext"]
    assert {key: security[key] for key in ("runAsUser", "fsGroup") if key in security} == expected
    assert security["runAsNonRoot"] is True


def test_the_command_is_the_supervisor_then_the_flags() -> None:
    template = render(
        batching={"maxNumSeqs": 9}, drain={"timeoutSeconds": 30}, runtime={"extraArgs": ["--stream-interval=7"]}
    )
    assert server(template)["command"] == ["python3", "-m", "llmservice_runtime", "serve"]
    assert template["spec"]["terminationGracePeriodSeconds"] == 60, (
        "time for the propagation delay and the teardown too"
    )
    args = server(template)["args"]
    own, flags = args[: args.index("--")], args[args.index("--") + 1 :]
    assert own == [
        f"--expected-version={newest_version()}",
        "--drain-seconds=30",
        "--fetch=model=hf://Qwen/Qwen2.5-7B-Instruct",
    ]
    assert flags[flags.index("--max-num-seqs") + 1] == "9"
    assert flags[-1] == "--stream-interval=7"


def test_probes_ask_the_supervisor_and_a_slow_start_is_no_failure() -> None:
    container = server(render())
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8000, "state": 8081}
    assert "livenessProbe" not in container, "by its port others could have the model restarted"
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "state"
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == START_CEILING_SECONDS
    service = LLMService.from_object(an_llmservice())
    assert progress_deadline_seconds(service) > START_CEILING_SECONDS
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize(
    ("cache", "claim"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"size": "10Gi"}, "x-cache", id="ours"),
        pytest.param({"claimName": "shared"}, "shared", id="the user's"),
    ],
)
def test_the_model_cache(cache: Json, claim: str | None) -> None:
    for uri in ("hf://a/b", "s3://bucket/a"):
        models = volumes(render(model={"uri": uri, "cache": cache}))["models"]
        expected = {"emptyDir": {}} if claim is None else {"persistentVolumeClaim": {"claimName": claim}}
        assert models == {"name": "models"} | expected


RESOURCES = [
    pytest.param({}, {"cpu": "2", "memory": "8Gi"}, {"nvidia.com/gpu": "1"}, id="default"),
    pytest.param(
        {"parallelism": {"tensorParallelSize": 2, "pipelineParallelSize": 2}},
        {"cpu": "8", "memory": "32Gi"},
        {"nvidia.com/gpu": "4"},
        id="four GPUs",
    ),
    pytest.param(
        {"parallelism": {"dataParallelSize": 2}, "accelerator": {"resourceName": "nvidia.com/mig-1g.5gb"}},
        {"cpu": "4", "memory": "16Gi"},
        {"nvidia.com/mig-1g.5gb": "2"},
        id="slices",
    ),
    pytest.param({"accelerator": {"type": "amd"}}, {"cpu": "2", "memory": "8Gi"}, {"amd.com/gpu": "1"}, id="amd"),
    pytest.param(CPU, {"cpu": "500m", "memory": "3Gi"}, {}, id="cpu"),
    pytest.param(
        {**CPU, "runtime": {"resources": {"limits": {"memory": "5Gi"}}}},
        {"cpu": "500m", "memory": "6Gi"},
        {"memory": "6Gi"},
        id="cpu with a limit",
    ),
    pytest.param(
        {"runtime": {"resources": {"limits": {"memory": "20Gi"}}}},
        {"cpu": "2", "memory": "20Gi"},
        {"memory": "20Gi", "nvidia.com/gpu": "1"},
        id="only a limit",
    ),
    pytest.param(
        {"batching": {"kvOffloadingSize": "3500Mi"}},
        {"cpu": "2", "memory": "12Gi"},
        {"nvidia.com/gpu": "1"},
        id="offloaded cache",
    ),
    pytest.param(
        {"batching": {"kvOffloadingSize": "4Gi"}, "runtime": {"resources": {"limits": {"memory": "20Gi"}}}},
        {"cpu": "2", "memory": "25Gi"},
        {"memory": "25Gi", "nvidia.com/gpu": "1"},
        id="offloaded cache on top of the limit",
    ),
    pytest.param(
        {
            "parallelism": {"tensorParallelSize": 2},
            "runtime": {"resources": {"limits": {"memory": "20Gi"}, "requests": {"memory": "10Gi"}}},
        },
        {"cpu": "4", "memory": "10Gi"},
        {"memory": "22Gi", "nvidia.com/gpu": "2"},
        id="shared memory on top of the limit",
    ),
    pytest.param(
        {
            "parallelism": {"tensorParallelSize": 2},
            "runtime": {
                "resources": {
                    "limits": {"cpu": "4", "memory": "20Gi"},
                    "requests": {"cpu": "4", "memory": "20480Mi"},
                }
            },
        },
        {"cpu": "4", "memory": "22Gi"},
        {"cpu": "4", "memory": "22Gi", "nvidia.com/gpu": "2"},
        id="guaranteed stays guaranteed",
    ),
]


@pytest.mark.parametrize(("sections", "requests", "limits"), RESOURCES)
def test_resources(sections: Json, requests: Json, limits: Json) -> None:
    resources = server(render(**sections))["resources"]
    assert resources["requests"] == requests
    assert resources.get("limits", {}) == limits


@pytest.mark.parametrize(
    ("sections", "size"),
    [
        pytest.param({}, None, id="one GPU"),
        pytest.param({"parallelism": {"tensorParallelSize": 2}}, "2Gi", id="tensor parallel"),
        pytest.param({"parallelism": {"pipelineParallelSize": 2}}, "2Gi", id="pipeline parallel"),
        pytest.param(CPU, "1Gi", id="cpu"),
        pytest.param({"batching": {"kvOffloadingSize": "64Gi"}}, "65Gi", id="offloaded cache lies in it"),
        pytest.param(
            {"batching": {"kvOffloadingSize": "1500Mi"}, "parallelism": {"tensorParallelSize": 2}},
            "4Gi",
            id="offloaded cache of two ranks",
        ),
        pytest.param(
            {"batching": {"kvOffloadingSize": "64Gi", "kvOffloadingBackend": "lmcache"}}, None, id="LMCache's own"
        ),
    ],
)
def test_shared_memory_where_processes_exchange_tensors(sections: Json, size: str | None) -> None:
    template = render(**sections)
    if size is None:
        assert "dshm" not in volumes(template)
    else:
        assert volumes(template)["dshm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": size}
        assert mounts(template)["dshm"]["mountPath"] == "/dev/shm"


def test_the_cpu_engine_gets_its_variables() -> None:
    one = env(render(accelerator={"type": "cpu", "memory": "4Gi"}))
    assert one["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in one
    two = env(render(**CPU, parallelism={"tensorParallelSize": 2}))
    assert (two["VLLM_CPU_OMP_THREADS_BIND"], two["TORCHDYNAMO_DISABLE"]) == ("nobind", "1")
    given = env(render(**CPU, runtime={"env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "9"}]}))
    assert given["VLLM_CPU_KVCACHE_SPACE"] == "9"


KEY = {"name": "s", "key": "k"}
HUB: Json = {"uri": "hf://a/b", "hfTokenSecretRef": KEY}
BUCKET: Json = {
    "uri": "s3://bucket/b",
    "s3": {"endpoint": "https://store", "region": "r", "credentialsSecretRef": {"name": "s"}},
}
CREDENTIALS = {"HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}


@pytest.mark.parametrize(
    ("model", "names"),
    [
        pytest.param(HUB, {"HF_TOKEN"}, id="a hub"),
        pytest.param(BUCKET, CREDENTIALS - {"HF_TOKEN"}, id="a bucket"),
        pytest.param(HUB | BUCKET, CREDENTIALS, id="a bucket, and a hub for adapters"),
    ],
)
def test_credentials_are_references_of_the_fetch_container_alone(model: Json, names: set[str]) -> None:
    template = render(model=model, endpoint={"apiKeySecretRef": KEY})
    found = env_of(fetcher(template))
    assert CREDENTIALS & set(found) == names
    assert all("secretKeyRef" in found[name] for name in names)
    assert not [name for name in env(template) if name in CREDENTIALS or name.startswith("AWS_")]
    assert "VLLM_API_KEY" not in env(template), "vLLM would refuse the keys that are rotated in"
    assert "AWS_ENDPOINT_URL_S3" not in found or found["AWS_ENDPOINT_URL_S3"] == "https://store"


def test_only_a_model_with_code_of_its_own_gets_the_hubs_token_in_the_server() -> None:
    token = {"secretKeyRef": KEY}
    assert env(render(model=HUB | {"trustRemoteCode": True}))["HF_TOKEN"] == token
    for uri in ("s3://bucket/b", "pvc://a/b", "file:///a"):
        assert "HF_TOKEN" not in env(render(model=HUB | {"trustRemoteCode": True, "uri": uri})), uri


DRAFT: Json = {"method": "draftModel", "model": {"uri": "s3://bucket/d"}, "numSpeculativeTokens": 3}
LORA: Json = {"lora": {"maxLoraRank": 8}}


@pytest.mark.parametrize(
    ("sections", "arguments"),
    [
        pytest.param({"model": {"uri": "pvc://a/b"}}, None, id="a claim"),
        pytest.param({"model": {"uri": "file:///a"}}, None, id="a folder"),
        pytest.param({"model": {"uri": "hf://a/b"}}, ["--fetch=model=hf://a/b"], id="a hub"),
        pytest.param(
            {"model": {"uri": "pvc://a/b"}, **LORA},
            ["--adapters-file=/llmservice/adapters/adapters.json"],
            id="adapters may come",
        ),
        pytest.param(
            {"model": {"uri": "hf://a/b"}, "speculativeDecoding": DRAFT},
            ["--fetch=model=hf://a/b", "--fetch=draft=s3://bucket/d"],
            id="a draft model",
        ),
    ],
)
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
    given = [{"name": "HF_ENDPOINT", "value": "a"}, {"name": "LEVEL", "value": "b"}, {"name": "no_proxy", "value": "c"}]
    given.append({"name": "HF_HUB_OFFLINE", "value": "1"})
    pod = {
        "volumes": [{"name": "ca", "secret": {"secretName": "ca"}}, {"name": "v", "emptyDir": {}}],
        "volumeMounts": [{"name": "ca", "mountPath": "/mnt/ca"}, {"name": "v", "mountPath": "/mnt/v"}],
    }
    template = render(replace(SETTINGS, hf_endpoint="z"), runtime={"env": given}, podTemplate={"spec": pod})
    found = env_of(fetcher(template))
    assert (found["HF_ENDPOINT"], found["no_proxy"]) == ("a", "c")
    assert found["HF_HUB_OFFLINE"] == "1"
    assert "LEVEL" not in found, "which is vLLM's"
    for name in ("ca", "v"):
        assert mounts(template, fetcher(template))[name]["readOnly"] is True


GUARANTEED = {"limits": {"cpu": "4", "memory": "20Gi"}}


@pytest.mark.parametrize(
    ("resources", "is_guaranteed"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"limits": {"memory": "20Gi"}}, False, id="memory only"),
        pytest.param(GUARANTEED, True, id="limits"),
        pytest.param({"limits": {"cpu": "4", "memory": "20Gi"}, "requests": {"memory": "1Gi"}}, False, id="requests"),
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
    container = fetcher(
        render(replace(SETTINGS, fetch_cpu="500m", fetch_memory_gib=4), runtime={"resources": GUARANTEED})
    )
    assert container is not None
    assert container["resources"] == {
        "requests": {"cpu": "50m", "memory": "128Mi"},
        "limits": {"cpu": "500m", "memory": "4Gi"},
    }


def test_api_keys_are_a_folder_that_the_kubelet_may_exchange() -> None:
    template = render(endpoint={"apiKeySecretRef": {"name": "s", "key": "k"}})
    secret = {"secretName": "s", "items": [{"key": "k", "path": "keys"}]}
    assert volumes(template)["endpoint-keys"] == {"name": "endpoint-keys", "secret": secret}
    mount = {"name": "endpoint-keys", "mountPath": "/llmservice/api-keys", "readOnly": True}
    assert mounts(template)["endpoint-keys"] == mount
    assert "--api-keys-file=/llmservice/api-keys/keys" in server(template)["args"]
    assert "endpoint-keys" not in volumes(render())
    assert not [text for text in server(render())["args"] if text.startswith("--api-keys-file")]


def test_credentials_that_the_user_gives_to_the_container_stay() -> None:
    given = [
        {"name": "AWS_PROFILE", "value": "a"},
        {"name": "AWS_REGION", "value": "b"},
        {"name": "LEVEL", "value": "c"},
    ]
    arguments = server(render(runtime={"env": given}))["args"]
    kept = [text for text in arguments if text.startswith("--keep-variable")]
    assert kept == ["--keep-variable=AWS_PROFILE", "--keep-variable=AWS_REGION"]


def test_proxies_certificates_and_logins_come_from_the_settings() -> None:
    settings = replace(
        SETTINGS,
        image_pull_policy="Always",
        https_proxy="http://proxy:3128",
        no_proxy=".svc",
        hf_endpoint="https://hub.example",
        ca_bundle=CABundle("company-ca"),
        image_pull_secrets=("login",),
    )
    template = render(settings)
    variables = env(template)
    assert variables["HTTPS_PROXY"] == variables["https_proxy"] == "http://proxy:3128"
    assert variables["NO_PROXY"] == variables["no_proxy"] == ".svc,localhost,127.0.0.1"
    assert variables["HF_ENDPOINT"] == "https://hub.example"
    assert variables["SSL_CERT_FILE"] == variables["REQUESTS_CA_BUNDLE"] == "/llmservice/ca/ca.crt"
    assert volumes(template)["ca-bundle"]["configMap"] == {"name": "company-ca"}
    assert template["spec"]["imagePullSecrets"] == [{"name": "login"}]
    assert [c.get("imagePullPolicy") for c in template["spec"]["initContainers"]] == ["Always", "Always"]
    assert "imagePullPolicy" not in server(template), "which is the spec's"
    assert not {"HTTPS_PROXY", "HF_ENDPOINT", "SSL_CERT_FILE"} & set(env(render()))


def test_acceptable_products_are_required_in_every_alternative_and_preferred_in_order() -> None:
    label = "nvidia.com/gpu.product"
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    given = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": []}]
            }
        },
        "podAntiAffinity": {"x": "y"},
    }
    template = render(accelerator={"products": ["A", "B", "C"]}, podTemplate={"spec": {"affinity": given}})
    affinity = template["spec"]["affinity"]
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    products = {"key": label, "operator": "In", "values": ["A", "B", "C"]}
    assert [term["matchExpressions"] for term in required] == [[zone, products], [products]]
    preferred = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [p["preference"]["matchExpressions"][0]["values"] for p in preferred] == [["A"], ["B"]]
    assert preferred[0]["weight"] > preferred[1]["weight"] > 0
    assert affinity["podAntiAffinity"] == {"x": "y"}
    assert "affinity" not in render()["spec"]


def test_the_users_pod_template_is_rendered() -> None:
    given: Json = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "priorityClassName": "high",
            "schedulerName": "other",
            "runtimeClassName": "nvidia",
            "serviceAccountName": "llm",
            "topologySpreadConstraints": [{"maxSkew": 1}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "volumeMounts": [{"name": "v", "mountPath": "/mnt/v"}],
            "initContainers": [{"name": "warm", "image": "busybox", "resources": {"limits": {"cpu": "3"}}}],
        },
    }
    template = render(podTemplate=given)
    pod = template["spec"]
    for field in ("nodeSelector", "priorityClassName", "schedulerName", "runtimeClassName", "serviceAccountName"):
        assert pod[field] == given["spec"][field]
    assert pod["topologySpreadConstraints"] == [{"maxSkew": 1}]
    assert {"key": "dedicated", "operator": "Exists"} in pod["tolerations"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"] == {"note": "b"}
    assert volumes(template)["v"] == {"name": "v", "emptyDir": {}}
    assert mounts(template)["v"]["mountPath"] == "/mnt/v"
    assert [c["name"] for c in pod["initContainers"]] == ["runtime", "warm", "fetch"]
    assert pod["initContainers"][1]["resources"]["requests"]["cpu"] == "3"


STRATEGIES: list[tuple[Strategy, Json]] = [
    ("Surge", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
    ("Replace", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
    ("Recreate", {"type": "Recreate"}),
]


@pytest.mark.parametrize(("name", "strategy"), STRATEGIES, ids=[s[0] for s in STRATEGIES])
def test_the_rollout_strategy(name: Strategy, strategy: Json) -> None:
    """What Auto resolves to is annotated where it is not Surge."""
    for asked in (name, "Auto"):
        rollout = {"strategy": asked, "progressDeadlineSeconds": 99}
        manifest = deployment(LLMService.from_object(an_llmservice(spec(rollout=rollout))), {}, name)
        assert manifest["spec"]["strategy"] == strategy
        assert manifest["spec"]["progressDeadlineSeconds"] == 99
        expected = {"llmservice.dev/rollout-strategy": name} if asked == "Auto" and name != "Surge" else None
        assert manifest["metadata"].get("annotations") == expected
