"""A replica over several nodes: its LeaderWorkerSet, the pods' template, and replicas by groups of pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from llmservice_api.constants import API_SERVER_LABEL, GROUP_INDEX_LABEL, RANK_LABEL, SERVICE_LABEL, is_replica
from llmservice_api.service import LLMService
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.children import group_policy
from llmservice_operator.manifests.children import service as service_of
from llmservice_operator.manifests.pod_template import pod_template
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.workload.kinds import workload_of
from llmservice_operator.workload.leaderworkerset import LEADER_WORKER_SET, LeaderWorkerSetFacts
from llmservice_operator.workload.port import Strategy

from tests.unit.decide_world import World, an_llmservice, spec

SETTINGS = Settings()
SETTINGS_ON_CPUS = Settings(default_cpu_image="vllm-cpu:v0.32.0")
EXPERTS = {"nodes": 2, "dataParallelSize": 4, "expertParallel": True}
HYBRID = {"parallelism": {**EXPERTS, "dataParallelMode": "hybrid"}}
SPEC = {"parallelism": {"tensorParallelSize": 8, "pipelineParallelSize": 2, "nodes": 2}}


def service(changes: dict[str, Any]) -> LLMService:
    return LLMService.from_object(an_llmservice(spec(**changes)))


def container(template: dict[str, Any]) -> dict[str, Any]:
    (found,) = template["spec"]["containers"]
    return dict(found)


def test_each_pod_gets_its_share_of_the_gpus_and_what_it_needs_to_join() -> None:
    server = container(pod_template(service(SPEC), SETTINGS))
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert "--nodes=2" in server["args"]
    assert any(word.startswith("--revision-key=") for word in server["args"])
    variables = {each["name"]: each for each in server["env"]}
    assert len(variables["LLMSERVICE_GROUP_TOKEN"]["value"]) == 64
    assert variables["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"]["value"] == "60"
    assert variables["LLMSERVICE_NODE_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert {port["name"]: port["containerPort"] for port in server["ports"]}["group"] == 8083


def test_a_replica_of_one_pod_is_as_it_was() -> None:
    """An upgrade restarts no model."""
    one, same = service({}), service({"parallelism": {"nodes": 1}})
    assert pod_template(one, SETTINGS) == pod_template(same, SETTINGS)
    assert "GROUP" not in str(pod_template(one, SETTINGS))
    assert service_of(one, 1)["spec"]["selector"] == {SERVICE_LABEL: one.name}


def test_only_leaders_answer_requests() -> None:
    made = service(SPEC)
    assert service_of(made, 2)["spec"]["selector"] == {SERVICE_LABEL: made.name, RANK_LABEL: "0"}


def test_with_hybrid_balancing_all_pods_answer_requests() -> None:
    made, internal = service(HYBRID), service({"parallelism": EXPERTS})
    template = pod_template(made, SETTINGS)
    assert "--data-parallel-mode=hybrid" in container(template)["args"]
    assert template["metadata"]["labels"][API_SERVER_LABEL] == "true"
    chosen = service_of(made, 2, is_every_pod=True)["spec"]["selector"]
    assert chosen == {SERVICE_LABEL: made.name, API_SERVER_LABEL: "true"}
    assert "hybrid" not in str(pod_template(internal, SETTINGS))
    assert API_SERVER_LABEL not in pod_template(internal, SETTINGS)["metadata"]["labels"]


def test_a_service_of_single_pods_finds_no_port_in_pods_of_groups() -> None:
    """While replicas move to several nodes it selects these too, and workers answer nobody."""
    (single,) = service_of(service({}), 1)["spec"]["ports"]
    (leaders,) = service_of(service(SPEC), 2)["spec"]["ports"]
    of_pods = [
        {port["name"]: port["containerPort"] for port in container(pod_template(service(spec), SETTINGS))["ports"]}
        for spec in ({}, SPEC)
    ]
    assert [single["targetPort"] in names for names in of_pods] == [True, False]
    assert [leaders["targetPort"] in names for names in of_pods] == [False, True]
    assert of_pods[1][leaders["targetPort"]] == of_pods[0][single["targetPort"]] == 8000


@pytest.mark.parametrize("strategy", ["Surge", "Replace", "Recreate"])
def test_the_set_is_read_as_it_was_written(strategy: Strategy) -> None:
    made = service({**SPEC, "scaling": {"replicas": 3}})
    template = pod_template(made, SETTINGS)
    workload = workload_of(template)
    assert workload is LEADER_WORKER_SET
    written = workload.manifest(made, template, strategy)
    body = written["spec"]["leaderWorkerTemplate"]
    assert (written["spec"]["replicas"], body["size"], body["restartPolicy"]) == (3, 2, "None")
    written["metadata"] |= {"uid": "u", "resourceVersion": "1", "generation": 4}
    written["status"] = {
        "replicas": 3,
        "readyReplicas": 2,
        "updatedReplicas": 1,
        "conditions": [{"type": "Available", "status": "False", "observedGeneration": 4}],
    }
    found = LeaderWorkerSetFacts.from_object(written)
    assert (found.spec_replicas, found.replicas, found.ready, found.updated) == (3, 3, 2, 1)
    assert (found.generation, found.observed_generation) == (4, 4)


def test_the_pods_of_a_replica_have_a_node_each_beside_rules_of_the_users() -> None:
    own = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"a": "b"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [own]}}
    made = service({**SPEC, "podTemplate": {"spec": {"affinity": affinity}}})
    template = pod_template(made, SETTINGS)
    spec = LEADER_WORKER_SET.manifest(made, template, "Surge")["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    rules = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {SERVICE_LABEL: made.name}}}
    assert rules == [own, {**apart, "matchLabelKeys": [GROUP_INDEX_LABEL]}]
    assert template["spec"]["affinity"] == affinity, "the record has the user's alone"


def pod(group: int, rank: int, **changed: Any) -> dict[str, Any]:
    owner = "chat" if rank == 0 else f"chat-{group}"
    return {
        "metadata": {
            "name": f"chat-{group}" + (f"-{rank}" if rank else ""),
            "namespace": "ns",
            "uid": f"u-{group}-{rank}",
            "labels": {SERVICE_LABEL: "chat", GROUP_INDEX_LABEL: str(group), RANK_LABEL: str(rank)},
            "ownerReferences": [{"kind": "StatefulSet", "name": owner, "uid": "s", "controller": True}],
            **changed,
        },
        "status": {"phase": "Running"},
    }


def test_who_of_a_replica_answers() -> None:
    def answering(*pods: dict[str, Any]) -> list[str]:
        (replica,) = LEADER_WORKER_SET.replicas([PodFacts.from_object(each) for each in pods])
        return [each.name for each in replica.answering]

    internal, hybrid = ([pod(0, rank) for rank in range(2)] for _ in range(2))
    for each in hybrid:
        each["metadata"]["labels"][API_SERVER_LABEL] = "true"
    assert answering(*internal) == ["chat-0"]
    assert answering(*hybrid) == ["chat-0", "chat-0-1"]
    assert answering(internal[1]) == ["chat-0-1"], "its leader is not there"


def test_replicas_are_groups_with_the_leader_first() -> None:
    pods = [PodFacts.from_object(pod(group, rank)) for group, rank in ((10, 0), (1, 1), (1, 0), (10, 1))]
    found = list(LEADER_WORKER_SET.replicas(pods))
    names = [[each.name for each in replica.pods] for replica in found]
    assert names == [["chat-1", "chat-1-1"], ["chat-10", "chat-10-1"]]


@pytest.mark.parametrize(
    ("kind", "owner", "group", "is_one"),
    [
        ("StatefulSet", "chat", "0", True),
        ("StatefulSet", "chat-0", "0", True),
        ("StatefulSet", "chat-1", "0", False),
        ("StatefulSet", "chat", None, False),
        ("ReplicaSet", "chat-0", "0", False),
    ],
)
def test_whose_pods_are_replicas(kind: str, owner: str, group: str | None, is_one: bool) -> None:
    labels = {SERVICE_LABEL: "chat"} | ({} if group is None else {GROUP_INDEX_LABEL: group})
    metadata = {"labels": labels, "ownerReferences": [{"kind": kind, "name": owner, "controller": True}]}
    assert is_replica(metadata, "chat") is is_one


def world() -> World:
    parallelism = {"tensorParallelSize": 2, "nodes": 2}
    return World(an_llmservice(spec(parallelism=parallelism, accelerator={"type": "cpu"})), settings=SETTINGS_ON_CPUS)


def test_the_five_lines_on_two_nodes_make_a_set_and_no_deployment() -> None:
    found = world()
    found.settle()
    kinds = {kind for kind, _ in found.children}
    assert "LeaderWorkerSet" in kinds
    assert "Deployment" not in kinds
    assert found.condition("Accepted") == ("True", "Valid")


def test_without_leaderworkerset_it_says_what_to_install_and_makes_no_pods() -> None:
    found = world()
    found.hidden = frozenset({"LeaderWorkerSet"})
    found.settle()
    assert "LeaderWorkerSet" not in {kind for kind, _ in found.children}
    assert found.condition("Ready")[0] == "False"
    said = " ".join(each["message"] for each in found.obj["status"]["conditions"])
    assert "groups.enabled" in said


def test_members_alone_reach_each_others_ports() -> None:
    sidecar = {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always", "ports": [{"containerPort": 9000}]}
    made = service({**SPEC, "podTemplate": {"spec": {"initContainers": [sidecar]}}})
    assert group_policy(made, SETTINGS) is None, "no right"
    policy = group_policy(made, replace(SETTINGS, has_groups=True))
    assert policy is not None
    members, others = policy["spec"]["ingress"]
    assert "ports" not in members
    assert [port["port"] for port in others["ports"]] == [8000, 8081, 9000]
    assert group_policy(service({}), replace(SETTINGS, has_groups=True)) is None
