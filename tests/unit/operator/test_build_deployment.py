"""The pod template: what `restricted` asks for, what the spec becomes in it, and the container that fetches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from llmservice_api.kubernetes import shape
from llmservice_api.runtime import OWN_VOLUME_PREFIX, OWN_VOLUMES, START_CACHE_VOLUME
from llmservice_api.service import LLMService
from llmservice_cli.admission.structural import findings
from llmservice_operator.manifests import containers as build_volumes
from llmservice_operator.manifests.pod_template import START_CEILING_SECONDS, pod_template, progress_deadline_seconds
from llmservice_operator.manifests.revision import NO_CHOICES, RevisionChoices
from llmservice_operator.manifests.server import helpers
from llmservice_operator.manifests.settings import CABundle, Settings
from llmservice_operator.workload.deployment import DEPLOYMENT
from llmservice_operator.workload.port import Strategy
from llmservice_planner.quantity import amount
from llmservice_planner.room import NodeRoom, Room, nodes_for
from llmservice_runtime.contract import FETCH_COMMAND, TERMINATION_LOG
from llmservice_vllm.versions import default_version

from tests.unit.decide_world import an_llmservice, spec

Json = dict[str, Any]
SETTINGS = Settings(operator_image="llmservice-operator:1", default_cpu_image="vllm-cpu:v0.32.0")
CPU: Json = {"accelerator": {"type": "cpu"}}
CONTAINER = shape("InitContainers")["items"]
"""Kubernetes' own schema."""
KEY = {"name": "s", "key": "k"}


def render(settings: Settings = SETTINGS, chosen: RevisionChoices = NO_CHOICES, **sections: Any) -> Json:
    return pod_template(LLMService.from_object(an_llmservice(spec(**sections))), settings, chosen)


def server(template: Json) -> Json:
    (container,) = template["spec"]["containers"]
    return dict(container)


def env(template: Json) -> Json:
    return env_of(server(template))


def mounts(template: Json, container: Json | None = None) -> Json:
    return {m["name"]: m for m in (container or server(template))["volumeMounts"]}


def fetcher(template: Json) -> Json | None:
    return next((c for c in template["spec"]["initContainers"] if c["name"] == "fetch"), None)


def env_of(container: Json | None) -> Json:
    assert container is not None
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container["env"]}


def volumes(template: Json) -> Json:
    return {v["name"]: v for v in template["spec"]["volumes"]}


def table(text: str) -> list[Any]:
    """Parameters from YAML: a list of arguments by the name of the case."""
    return [pytest.param(*arguments, id=name) for name, arguments in yaml.safe_load(text).items()]


def assert_restricted(pod: Json) -> None:
    """The pod meets the Pod Security Standard `restricted`, and each container requests CPU and memory."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    for container in pod["containers"] + pod.get("initContainers", []):
        assert list(findings(container, CONTAINER, container["name"])) == []
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert all(amount(container["resources"]["requests"][name]) > 0 for name in ("cpu", "memory"))
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert not any("hostPath" in volume for volume in pod.get("volumes", []))


@pytest.mark.parametrize(
    "sections",
    table("""
      GPU: [{}]
      CPU: [{accelerator: {type: cpu}}]
      a container of the user's: [{podTemplate: {spec: {initContainers: [{name: warm, image: busybox}]}}}]
    """),
)
def test_every_container_meets_the_restricted_standard(sections: Json) -> None:
    pod = render(**sections)["spec"]
    assert_restricted(pod)
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def test_everything_that_is_written_has_a_volume() -> None:
    template = render()
    writable = [m["mountPath"] for m in mounts(template).values() if not m.get("readOnly")]
    for name in ("HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME", "HF_HOME"):
        assert any(env(template)[name].startswith(path) for path in writable), name
    assert "/tmp" in writable
    assert env(template)["PYTHONNOUSERSITE"] == env(template)["PYTHONSAFEPATH"] == "1", "no code from these folders"
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
    runtime = {"extraArgs": ["--stream-interval=7"]}
    template = render(batching={"maxNumSeqs": 9}, drain={"timeoutSeconds": 30}, runtime=runtime)
    assert server(template)["command"] == ["python3", "-m", "llmservice_runtime", "serve"]
    assert template["spec"]["terminationGracePeriodSeconds"] == 60, "propagation delay and teardown included"
    args = server(template)["args"]
    own, flags = args[: args.index("--")], args[args.index("--") + 1 :]
    fetch = "--fetch=model=hf://Qwen/Qwen2.5-7B-Instruct"
    assert own == [f"--expected-version={default_version()}", "--drain-seconds=30", fetch]
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
    assert progress_deadline_seconds(LLMService.from_object(an_llmservice())) > START_CEILING_SECONDS
    assert container["terminationMessagePath"] == TERMINATION_LOG
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize(
    ("cache", "claim"), [({}, None), ({"size": "10Gi"}, "x-cache"), ({"claimName": "shared"}, "shared")]
)
def test_the_model_cache(cache: Json, claim: str | None) -> None:
    for uri in ("hf://a/b", "s3://bucket/a"):
        models = volumes(render(model={"uri": uri, "cache": cache}))["models"]
        expected = {"emptyDir": {}} if claim is None else {"persistentVolumeClaim": {"claimName": claim}}
        assert models == {"name": "models"} | expected


RESOURCES = """
default: [{}, {cpu: "2", memory: 8Gi}, {nvidia.com/gpu: "1"}]
four GPUs:
- {parallelism: {tensorParallelSize: 2, pipelineParallelSize: 2}}
- {cpu: "8", memory: 32Gi}
- {nvidia.com/gpu: "4"}
slices:
- {parallelism: {dataParallelSize: 2}, accelerator: {resourceName: nvidia.com/mig-1g.5gb}}
- {cpu: "4", memory: 16Gi}
- {nvidia.com/mig-1g.5gb: "2"}
AMD: [{accelerator: {type: amd}}, {cpu: "2", memory: 8Gi}, {amd.com/gpu: "1"}]
CPU: [{accelerator: {type: cpu}}, {cpu: 500m, memory: 3Gi}, {}]
CPU with a limit:
- {accelerator: {type: cpu}, runtime: {resources: {limits: {memory: 5Gi}}}}
- {cpu: 500m, memory: 6Gi}
- {memory: 6Gi}
only a limit:
- {runtime: {resources: {limits: {memory: 20Gi}}}}
- {cpu: "2", memory: 20Gi}
- {memory: 20Gi, nvidia.com/gpu: "1"}
offloaded cache: [{batching: {kvOffloadingSize: 3500Mi}}, {cpu: "2", memory: 12Gi}, {nvidia.com/gpu: "1"}]
offloaded cache on top of the limit:
- {batching: {kvOffloadingSize: 4Gi}, runtime: {resources: {limits: {memory: 20Gi}}}}
- {cpu: "2", memory: 25Gi}
- {memory: 25Gi, nvidia.com/gpu: "1"}
offloaded weights:
- {runtime: {extraArgs: [--cpu-offload-gb, "10"]}, parallelism: {tensorParallelSize: 2}}
- {cpu: "4", memory: 36Gi}
- {nvidia.com/gpu: "2"}
shared memory on top of the limit:
- {parallelism: {tensorParallelSize: 2}, runtime: {resources: {limits: {memory: 20Gi}, requests: {memory: 10Gi}}}}
- {cpu: "4", memory: 10Gi}
- {memory: 22Gi, nvidia.com/gpu: "2"}
guaranteed stays guaranteed:
- parallelism: {tensorParallelSize: 2}
  runtime: {resources: {limits: {cpu: "4", memory: 20Gi}, requests: {cpu: "4", memory: 20480Mi}}}
- {cpu: "4", memory: 22Gi}
- {cpu: "4", memory: 22Gi, nvidia.com/gpu: "2"}
"""


@pytest.mark.parametrize(("sections", "requests", "limits"), table(RESOURCES))
def test_resources(sections: Json, requests: Json, limits: Json) -> None:
    resources = server(render(**sections))["resources"]
    assert resources["requests"] == requests
    assert resources.get("limits", {}) == limits


def test_what_the_plan_says_that_vllm_pins_is_requested() -> None:
    """Of this revision's plan: a record of an earlier release says nothing, and renders as it did."""
    plain = LLMService.from_object(an_llmservice(spec()))
    pinned = RevisionChoices(plan={"hostMemoryGiB": 95.37})
    assert server(pod_template(plain, SETTINGS, pinned))["resources"]["requests"]["memory"] == "104Gi"
    assert pod_template(plain, SETTINGS, RevisionChoices(plan={})) == pod_template(plain, SETTINGS)
    stated = LLMService.from_object(an_llmservice(spec(runtime={"resources": {"requests": {"memory": "9Gi"}}})))
    assert server(pod_template(stated, SETTINGS, pinned))["resources"]["requests"]["memory"] == "9Gi"


SHARED_MEMORY = """
one GPU: [{}, null]
tensor parallel: [{parallelism: {tensorParallelSize: 2}}, 2Gi]
pipeline parallel: [{parallelism: {pipelineParallelSize: 2}}, 2Gi]
CPU: [{accelerator: {type: cpu}}, 1Gi]
offloaded cache lies in it: [{batching: {kvOffloadingSize: 64Gi}}, 65Gi]
offloaded cache of two ranks: [{batching: {kvOffloadingSize: 1500Mi}, parallelism: {tensorParallelSize: 2}}, 4Gi]
LMCache's own: [{batching: {kvOffloadingSize: 64Gi, kvOffloadingBackend: lmcache}}, null]
"""


@pytest.mark.parametrize(("sections", "size"), table(SHARED_MEMORY))
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


def test_blocks_have_the_same_hash_on_every_replica_where_events_name_them() -> None:
    assert "PYTHONHASHSEED" not in env(render())
    seed = env(render(batching={"kvEvents": {"enabled": True}}))["PYTHONHASHSEED"]
    assert 0 <= int(seed) < 2**32, "Python refuses others"


@pytest.mark.parametrize(
    ("sections", "is_known"),
    [
        ({"batching": {"kvEvents": {"enabled": True}}}, False),
        ({"batching": {"kvEvents": {"port": 5557}}}, False),
        ({"batching": {"kvEvents": {"enabled": True, "port": 5557}}}, True),
    ],
    ids=["kept", "off", "published"],
)
def test_published_events_name_the_replicas_address(sections: Json, is_known: bool) -> None:
    """Kubernetes writes it into the arguments in place of its variable."""
    container = server(render(**sections))
    known = [each for each in container["env"] if each["name"] == "LLMSERVICE_POD_IP"]
    address = {"name": "LLMSERVICE_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert known == ([address] if is_known else [])
    assert ("$(LLMSERVICE_POD_IP)" in " ".join(container["args"])) is is_known


def test_a_name_that_a_topic_cannot_have_is_in_none() -> None:
    model = {"uri": "hf://a/b", "servedModelNames": ["a@b"]}
    args = server(render(model=model, batching={"kvEvents": {"enabled": True, "port": 5557}}))
    assert '"topic"' not in " ".join(args["args"])


def test_api_keys_are_a_folder_that_the_kubelet_may_exchange() -> None:
    template = render(endpoint={"apiKeySecretRef": KEY})
    secret = {"secretName": "s", "items": [{"key": "k", "path": "keys"}]}
    assert volumes(template)["endpoint-keys"] == {"name": "endpoint-keys", "secret": secret}
    mount = {"name": "endpoint-keys", "mountPath": "/llmservice/api-keys", "readOnly": True}
    assert mounts(template)["endpoint-keys"] == mount
    assert "--api-keys-file=/llmservice/api-keys/keys" in server(template)["args"]
    assert "endpoint-keys" not in volumes(render())
    assert not [text for text in server(render())["args"] if text.startswith("--api-keys-file")]


def test_credentials_that_the_user_gives_to_the_container_stay() -> None:
    given = [{"name": name, "value": "a"} for name in ("AWS_PROFILE", "AWS_REGION", "LEVEL")]
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


SPELLINGS = ("HTTPS_PROXY", "https_proxy")
PROXIED: dict[str, tuple[list[Json], dict[str, object]]] = {
    "capitals": ([{"name": "HTTPS_PROXY", "value": "http://team:1"}], dict.fromkeys(SPELLINGS, "http://team:1")),
    "small letters": ([{"name": "https_proxy", "value": "http://team:1"}], dict.fromkeys(SPELLINGS, "http://team:1")),
    "no proxy": ([{"name": "https_proxy", "value": ""}], dict.fromkeys(SPELLINGS, "")),
    "two values": (
        [{"name": "HTTPS_PROXY", "value": "http://a:1"}, {"name": "https_proxy", "value": "http://b:1"}],
        {"HTTPS_PROXY": "http://a:1", "https_proxy": "http://b:1"},
    ),
    "a Secret": (
        [{"name": "HTTPS_PROXY", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}],
        {key: {"secretKeyRef": {"name": "a", "key": "b"}} for key in SPELLINGS},
    ),
    "none": ([], dict.fromkeys(SPELLINGS, "http://proxy:3128")),
}


@pytest.mark.parametrize("name", PROXIED)
def test_a_users_proxy_replaces_the_charts_in_both_spellings(name: str) -> None:
    given, expected = PROXIED[name]
    settings = replace(SETTINGS, https_proxy="http://proxy:3128", no_proxy=".svc")
    variables = [*given, {"name": "NO_PROXY", "value": "hub,10.0.0.0/8"}]
    template = render(settings, model={"uri": "hf://a/b"}, runtime={"env": variables})
    for container in (server(template), fetcher(template)):
        found = env_of(container)
        assert {spelling: found[spelling] for spelling in SPELLINGS} == expected
        assert found["NO_PROXY"] == found["no_proxy"] == "hub,10.0.0.0/8"
        assert container is not None
        assert [v["name"] for v in container["env"]].count("https_proxy") == 1


def test_acceptable_products_are_required_in_every_alternative_and_preferred_in_order() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    terms = [{"matchExpressions": [zone]}, {"matchFields": []}]
    given = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
        "podAntiAffinity": {"x": "y"},
    }
    template = render(accelerator={"products": ["A", "B", "C"]}, podTemplate={"spec": {"affinity": given}})
    affinity = template["spec"]["affinity"]
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    products = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["A", "B", "C"]}
    assert [term["matchExpressions"] for term in required] == [[zone, products], [products]]
    preferred = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [p["preference"]["matchExpressions"][0]["values"] for p in preferred] == [["A"], ["B"]]
    assert preferred[0]["weight"] > preferred[1]["weight"] > 0
    assert affinity["podAntiAffinity"] == {"x": "y"}
    assert "affinity" not in render()["spec"]


H100 = "NVIDIA-H100-80GB-HBM3"
MIG, SLICE = "nvidia.com/mig-3g.40gb", f"{H100}-MIG-3g.40gb"
MIXED = {"nvidia.com/gpu.product": H100, f"{MIG}.product": SLICE}
SINGLE = {"nvidia.com/gpu.product": SLICE}
PRESENT = (("nvidia.com/gpu", "present", "NoSchedule"),)
OWN = ((MIG, "", "NoSchedule"),)
CARD: Json = {"type": "nvidia"}
OF_MIG: Json = {"type": "nvidia", "resourceName": MIG}
TAKEN: dict[str, tuple[Json, str | None, dict[str, str], tuple[tuple[str, str, str], ...], bool]] = {
    # the accelerator, the product that was chosen, the node's labels and taints; whether the pod may go there
    "a slice by its own resource": (OF_MIG | {"products": [SLICE]}, None, MIXED, PRESENT, True),
    "that was chosen": (OF_MIG, SLICE, MIXED, PRESENT, True),
    "by the label of the whole card": (OF_MIG | {"products": [H100]}, None, MIXED, PRESENT, True),
    "by either label": (OF_MIG | {"products": ["NVIDIA-L4-MIG-1g.6gb", H100]}, None, MIXED, (), True),
    "a slice of another card": (OF_MIG | {"products": ["NVIDIA-B200-MIG-3g.90gb"]}, None, MIXED, (), False),
    "a slice in place of the card": (CARD | {"products": [SLICE]}, None, SINGLE, PRESENT, True),
    "the resource's own taint": (OF_MIG, None, MIXED, OWN, True),
    "the vendor's taint": (CARD, None, MIXED, PRESENT, True),
    "of a renamed share": (CARD | {"resourceName": "nvidia.com/gpu.shared"}, None, MIXED, PRESENT, True),
    "of another vendor's plugin": (CARD | {"resourceName": "example.com/vgpu"}, None, MIXED, PRESENT, True),
    "of AMD's partitions": (
        {"type": "amd", "resourceName": "amd.com/cpx_nps4"},
        None,
        {},
        (("amd.com/gpu", "", "NoSchedule"),),
        True,
    ),
    "of the other vendor": (CARD, None, MIXED, (("amd.com/gpu", "", "NoSchedule"),), False),
    "of AKS's documentation": (CARD, None, MIXED, (("sku", "gpu", "NoSchedule"),), False),
}


@pytest.mark.parametrize("case", TAKEN)
def test_pods_go_to_nodes_with_the_device(case: str) -> None:
    accelerator, gpu, labels, taints, may_go = TAKEN[case]
    template = render(chosen=RevisionChoices(gpu=gpu), accelerator=accelerator)
    room = Room((NodeRoom("n", labels=labels, taints=taints),))
    assert bool(list(nodes_for(room, template["spec"]))) is may_go


def test_a_service_of_whole_cards_tolerates_what_it_did() -> None:
    assert render()["spec"]["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


USERS: Json = yaml.safe_load("""
metadata: {labels: {team: a}, annotations: {karpenter.sh/do-not-disrupt: "true"}}
spec:
  nodeSelector: {pool: gpu}
  tolerations: [{key: dedicated, operator: Exists}]
  priorityClassName: high
  schedulerName: other
  runtimeClassName: nvidia
  serviceAccountName: llm
  topologySpreadConstraints: [{maxSkew: 1}]
  volumes: [{name: v, emptyDir: {}}]
  volumeMounts: [{name: v, mountPath: /mnt/v}]
  initContainers: [{name: warm, image: busybox, resources: {limits: {cpu: "3"}}}]
""")


def test_the_users_pod_template_is_rendered() -> None:
    template = render(podTemplate=USERS)
    pod, given = template["spec"], USERS["spec"]
    names = ("nodeSelector", "priorityClassName", "schedulerName", "runtimeClassName", "serviceAccountName")
    for field in names:
        assert pod[field] == given[field]
    assert {"key": "dedicated", "operator": "Exists"} in pod["tolerations"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"] == {"karpenter.sh/do-not-disrupt": "true"}
    assert volumes(template)["v"] == {"name": "v", "emptyDir": {}}
    assert mounts(template)["v"]["mountPath"] == "/mnt/v"
    assert [c["name"] for c in pod["initContainers"]] == ["runtime", "warm", "fetch"]
    assert pod["initContainers"][1]["resources"]["requests"]["cpu"] == "3"


# Every place of a rule about pods; RULE is one.
RULES_ABOUT_PODS = {
    "spread": "topologySpreadConstraints: [RULE, {maxSkew: 1, labelSelector: {}}]",
    "together": "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [RULE]}}",
    "apart": "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [RULE]}}",
    "rather together": "affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: "
    "[{weight: 5, podAffinityTerm: RULE}]}}",
    "rather apart": "affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: "
    "[{weight: 5, podAffinityTerm: {topologyKey: a, labelSelector: {}}}, {weight: 6, podAffinityTerm: RULE}]}}",
    "both": "affinity: {podAffinity: {}, podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [RULE], "
    "preferredDuringSchedulingIgnoredDuringExecution: [{weight: 5, podAffinityTerm: RULE}]}}",
}


@pytest.mark.parametrize("accelerator", ["nvidia", "cpu"])
@pytest.mark.parametrize("name", RULES_ABOUT_PODS)
def test_a_rule_about_pods_is_about_the_services_own_unless_it_says_which(name: str, accelerator: str) -> None:
    """Without a selector it matches none. An empty one matches all, and stays."""

    def with_rule(rule: str) -> Json:
        return dict(yaml.safe_load(RULES_ABOUT_PODS[name].replace("RULE", rule)))

    own = "{topologyKey: zone, labelSelector: {matchLabels: {llmservice.dev/service: x}}}"
    for given, expected in (("{topologyKey: zone}", own), (own, own), (others := own.replace(": x", ": y"), others)):
        template = render(accelerator={"type": accelerator}, podTemplate={"spec": with_rule(given)})
        assert {key: template["spec"][key] for key in with_rule(given)} == with_rule(expected)
    assert template["metadata"]["labels"]["llmservice.dev/service"] == "x"


# Whatever brings a volume of its own.
ALL_VOLUMES: list[Json] = [
    {"model": {"uri": "hf://a/b", "cache": {"size": "1Gi"}}, "startCache": {"size": "1Gi"}, "lora": {}}
    | {"endpoint": {"apiKeySecretRef": {"name": "k", "key": "k"}}, "parallelism": {"tensorParallelSize": 2}},
    {"model": {"uri": "pvc://claim/a", "chatTemplate": {"configMapKeyRef": {"name": "c", "key": "k"}}}}
    | {"adapters": [{"name": "a", "uri": "pvc://other/a"}]}
    | {"speculativeDecoding": {"method": "draftModel", "numSpeculativeTokens": 2, "model": {"uri": "pvc://draft/a"}}},
]


def test_no_volume_of_a_user_has_the_name_of_ours() -> None:
    settings = replace(SETTINGS, ca_bundle=CABundle("ca", "ca.crt"))
    services = [LLMService.from_object(an_llmservice(spec(**sections))) for sections in ALL_VOLUMES]
    made = {
        mounted.name
        for each in services
        for mounted in (*build_volumes.volumes(each, settings), *build_volumes.fetch_volumes(each, settings))
    }
    plain = {name for name in made if not name.startswith(OWN_VOLUME_PREFIX)}
    assert plain == {*OWN_VOLUMES, START_CACHE_VOLUME}


STRATEGIES: dict[Strategy, Json] = {
    "Surge": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    "Replace": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    "Recreate": {"type": "Recreate"},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_rollout_strategy(name: Strategy) -> None:
    """What Auto resolves to is annotated where it is not Surge."""
    for configured in (name, "Auto"):
        rollout = {"strategy": configured, "progressDeadlineSeconds": 99}
        manifest = DEPLOYMENT.manifest(LLMService.from_object(an_llmservice(spec(rollout=rollout))), {}, name)
        assert manifest["spec"]["strategy"] == STRATEGIES[name]
        assert manifest["spec"]["progressDeadlineSeconds"] == 99
        expected = {"llmservice.dev/rollout-strategy": name} if configured == "Auto" and name != "Surge" else None
        assert manifest["metadata"].get("annotations") == expected


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
