"""After an upgrade of the operator: what runs is reported and maintained as recorded, whatever the new tables say."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kubeloop.resources import rfc3339
from llmservice_api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_api.errors import Problem
from llmservice_api.reasons import Reason
from llmservice_operator.decision import UpdatePermission
from llmservice_operator.manifests import containers, server
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.observed import Report
from llmservice_planner import checks, versions
from llmservice_planner.cluster import ClusterGPUs, NodeGroup
from llmservice_runtime.contract import Phase, State, Transfer, TransferStep

from tests.unit.decide_world import (
    H100,
    L4,
    NOW,
    QWEN_7B,
    SETTINGS,
    World,
    a_pod,
    a_world,
    an_llmservice,
    preferred,
    products,
    serving,
    spec,
)

Json = dict[str, Any]

V31 = "vllm/vllm-openai:v0.31.0"
OWN_IMAGE: Json = {"runtime": {"image": V31}}
FACTS = {"uri": "hf://a/b", "architecture": {"numAttentionHeads": 28, "numKeyValueHeads": 4}}


def installed(settings: Settings = SETTINGS, **sections: Any) -> World:
    """Rolled out by the operator as it was."""
    world = World(obj=an_llmservice(spec(**sections)), settings=settings)
    world.serve()
    assert world.condition("Ready")[0] == "True"
    return world


def upgraded(world: World, **settings: Any) -> None:
    """The next version acts: the same settings are another object at least."""
    world.settings = replace(world.settings, operator_image="llmservice-operator:2", **settings)
    before = world.template
    world.settle()
    assert world.template == before
    assert world.rollout["updatePending"] is True


def test_the_status_names_the_version_that_runs() -> None:
    world = installed(replace(SETTINGS, default_gpu_image=V31))
    upgraded(world, default_gpu_image="vllm/vllm-openai:v0.32.0")
    assert (
        world.status["effective"]["runtime"] | {"image": V31, "version": "0.31.0"}
        == world.status["effective"]["runtime"]
    )
    world.request_update()
    assert world.status["effective"]["runtime"]["version"] == "0.32.0"


def test_variables_that_a_release_adds_restart_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(containers, "_no_code_from_files", lambda spec: {})
        world = installed()
    upgraded(world)
    assert "PYTHONNOUSERSITE" not in json.dumps(world.template["spec"]["containers"][0]["env"])
    world.request_update()
    assert "PYTHONNOUSERSITE" in json.dumps(world.template["spec"]["containers"][0]["env"])


def test_a_toleration_that_a_release_adds_restarts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = {"type": "nvidia", "resourceName": "nvidia.com/mig-3g.40gb"}
    with monkeypatch.context() as before:
        before.setattr(server, "RESOURCES", {})
        world = installed(accelerator=accelerator)
    upgraded(world)
    assert [each["key"] for each in world.template["spec"]["tolerations"]] == ["nvidia.com/mig-3g.40gb"]
    world.request_update()
    keys = [each["key"] for each in world.template["spec"]["tolerations"]]
    assert keys == ["nvidia.com/mig-3g.40gb", "nvidia.com/gpu"]


def of_long_ago(**sections: Any) -> World:
    """Made by a release that took a vLLM that this one has no tables of."""
    world = installed(replace(SETTINGS, default_gpu_image=V31), **sections)
    for where, child in world.children.items():
        world.children[where] = json.loads(json.dumps(child).replace("0.31.0", "0.20.0"))
    world.settle()
    return world


def test_a_drain_time_that_waits_is_not_in_force() -> None:
    world = installed(drain={"timeoutSeconds": 30})
    world.change(drain={"timeoutSeconds": 60})
    assert world.status["effective"]["drain"] == {"timeoutSeconds": 30}
    assert world.rollout["updatePending"] is True


def test_without_what_was_chosen_the_template_shows_the_version() -> None:
    world = installed(replace(SETTINGS, default_gpu_image=V31))
    (record,) = world.of_kind("ControllerRevision")
    record["data"]["chosen"] = {}
    upgraded(world, default_gpu_image="vllm/vllm-openai:v0.32.0")
    assert world.status["effective"]["runtime"]["version"] == "0.31.0"
    assert record["data"]["chosen"] == {}


def test_facts_that_are_read_later_are_planned_for_the_version_that_runs() -> None:
    model = {"uri": "hf://a/b"}
    world = of_long_ago(model=model, accelerator={"products": ["NVIDIA-L4"]})
    world.change(model=model | {"architecture": {"vocabSize": QWEN_7B["vocab_size"] // 2}})
    plan = world.plan["perGPU"]
    without_graphs = plan["budgetGiB"] - plan["weightsGiB"] - plan["nonTorchGiB"] - plan["activationGiB"]
    assert plan["graphGiB"] > 0.1
    assert plan["kvCacheGiB"] == pytest.approx(without_graphs, abs=0.02)  # from 0.32 on graphs are taken out too


def test_remedies_are_found_for_a_version_that_is_not_known() -> None:
    model = {"uri": "hf://a/b"}
    world = of_long_ago(model=model, accelerator={"products": ["NVIDIA-L4"]})
    world.change(model=model | {"architecture": {"numHiddenLayers": 2 * QWEN_7B["num_hidden_layers"]}})
    plan = world.plan
    assert plan["verdict"] == "DoesNotFit"
    assert plan["remedies"]


def no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "known_versions", lambda: ("0.40", "0.39"))


def another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("spec.precision.kvCache", "no more.", "Choose another.", Reason.UNSUPPORTED_COMBINATION)
    monkeypatch.setattr(checks, "matrix_problems", lambda _: (problem,))


def another_flag_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def problems(*_: object) -> tuple[Problem, ...]:
        return (Problem("spec.runtime.extraArgs", "it knows no --x.", "Remove it.", Reason.UNKNOWN_FLAG),)

    monkeypatch.setattr(versions, "problems", problems)


Tables = Callable[[pytest.MonkeyPatch], None]
TABLES: dict[str, tuple[Tables, Json, Json, str]] = {
    "a version that is not known any more": (no_version, OWN_IMAGE, {}, "spec.runtime.version"),
    "a combination that is refused now": (another_row, {}, {}, "spec.precision.kvCache"),
    "a flag that is not known any more": (another_flag_table, {}, {}, "spec.runtime.extraArgs"),
    "an accelerator without an image": (
        lambda _: None,
        {"accelerator": {"type": "cpu"}, "fitPolicy": "Warn"},
        {"default_cpu_image": None},
        "spec.runtime.image",
    ),
}


@pytest.fixture(params=[pytest.param(row, id=name) for name, row in TABLES.items()])
def outdated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[World, str]:
    """A service that serves, under an operator that would refuse it; and the field that it names."""
    change, sections, settings, field = request.param
    world = installed(replace(SETTINGS, default_cpu_image="vllm-cpu:v0.32.0"), **sections)
    change(monkeypatch)
    upgraded(world, **settings)
    return world, field


def test_it_stays_ready_is_scaled_and_repaired_and_says_what_keeps_an_update_back(outdated: tuple[World, str]) -> None:
    world, field = outdated
    template = world.template
    assert (world.condition("Accepted")[0], world.condition("Ready")[0]) == ("True", "True")
    assert "Stalled" not in world.conditions()
    assert world.rollout["updateBlocked"].startswith(field)
    del world.children["Service", "x"]
    world.change(scaling={"replicas": 3})
    assert ("Service", "x") in world.children
    assert (world.deployment["spec"]["replicas"], world.template) == (3, template)
    world.roll_out()
    world.settle()
    assert world.condition("Ready")[0] == "True"


def test_an_update_that_is_asked_for_is_refused_and_what_runs_is_kept_up(outdated: tuple[World, str]) -> None:
    world, field = outdated
    template = world.template
    world.obj["metadata"]["annotations"] = {UPDATE_REQUESTED_ANNOTATION: "now"}
    world.change(scaling={"replicas": 2})
    assert world.deployment["spec"]["replicas"] == 2
    assert world.template == template
    conditions = world.conditions()
    assert conditions["Ready"]["status"] == "False"
    assert conditions["Stalled"]["message"].startswith(field)


def test_an_edit_that_needs_a_restart_is_refused(outdated: tuple[World, str]) -> None:
    world, field = outdated
    template = world.template
    world.change(batching={"maxNumSeqs": 7})
    assert world.template == template
    assert world.message("Accepted").startswith(field)


def test_what_is_known_again_is_blocked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = installed(**OWN_IMAGE)
    with monkeypatch.context() as patch:
        no_version(patch)
        upgraded(world)
        assert "updateBlocked" in world.rollout
    upgraded(world, default_amd_image="any")
    assert "updateBlocked" not in world.rollout


def test_a_wrong_fact_about_the_model_that_runs_restarts_and_stops_nothing() -> None:
    world = installed(model=FACTS, parallelism={"tensorParallelSize": 4})
    wrong = FACTS | {"architecture": {"numAttentionHeads": 30, "numKeyValueHeads": 30}}
    world.change(model=wrong, scaling={"replicas": 2})
    assert world.deployment["spec"]["replicas"] == 2
    assert world.rollout["updateBlocked"].startswith("spec.parallelism.tensorParallelSize")


def without_fetch_container(template: Json) -> None:
    """As the release rendered it whose supervisor fetched in the server container."""
    pod = template["spec"]
    pod["initContainers"] = [c for c in pod["initContainers"] if c["name"] != "fetch"]
    pod["volumes"] = [v for v in pod["volumes"] if not v["name"].startswith("fetch")]
    (server,) = pod["containers"]
    mounts = [m for m in server["volumeMounts"] if m["name"] != "fetch"]
    server["volumeMounts"] = [{k: v for k, v in m.items() if (m["name"], k) != ("models", "readOnly")} for m in mounts]
    server["args"] = [text.replace("/llmservice/fetch/", "/llmservice/run/") for text in server["args"]]


def init_containers(world: World) -> list[str]:
    return [container["name"] for container in world.template["spec"]["initContainers"]]


def test_pods_that_fetch_in_the_server_run_on_and_are_reported_until_the_spec_changes() -> None:
    world = installed()
    (record,) = world.of_kind("ControllerRevision")
    for template in (record["data"]["template"], world.template):
        without_fetch_container(template)
    upgraded(world)
    assert init_containers(world) == ["runtime"]

    transfer = Transfer("model", TransferStep.DOWNLOADING, 50, 100, 5.0)
    world.pods = {"x-0": a_pod("x-0", world.revision(), address="10.0.0.1")}
    world.reports = {"x-0": Report("uid-x-0", 0, State(Phase.FETCHING, transfer=transfer))}
    world.roll_out(replicas=1, updated=1, ready=0, available=0)
    world.settle()
    assert world.status["progress"]["percent"] == 50
    assert init_containers(world) == ["runtime"]

    world.change(batching={"maxNumSeqs": 8})
    assert init_containers(world) == ["runtime", "fetch"]


PENDING = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
PRODUCT = "NVIDIA-L4"


def bound_to_its_choice(**sections: Any) -> World:
    """By a release that required the product that it had chosen itself: its pod found no node since it was made."""
    world = a_world(L4, **sections)
    world.settle()
    (record,) = world.of_kind("ControllerRevision")
    required = {"key": "nvidia.com/gpu.product", "operator": "In", "values": [PRODUCT]}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [required]}]}
    }
    for template in (record["data"]["template"], world.template):
        template["spec"]["affinity"] = {"nodeAffinity": affinity}
    del record["data"]["chosen"]["excludedGpus"]
    world.pods = {"x-0": waiting("x-0", world)}
    return world


def waiting(name: str, world: World, seconds: int = 2, **more: Any) -> Json:
    """A pod that was made so long after its revision, and found no node."""
    made = a_pod(name, world.revision(), **({"unschedulable": PENDING} | more))
    made["metadata"]["creationTimestamp"] = rfc3339(NOW + timedelta(seconds=seconds))
    return made


def test_a_revision_that_never_ran_is_rendered_anew_and_once() -> None:
    world = bound_to_its_choice()
    before = world.revision()
    world.gpus = ClusterGPUs((NodeGroup(None, 1),))
    world.now += timedelta(days=1)
    world.settle()
    after = world.revision()
    assert after != before
    assert (products(world), preferred(world)) == ([], [])
    assert {r["data"]["key"] for r in world.of_kind("ControllerRevision")} == {before}
    assert "updatePending" not in world.rollout
    world.pods = {"x-1": waiting("x-1", world, 86_402)}
    world.gpus = ClusterGPUs((H100,))
    world.settle()
    assert world.revision() == after, "nodes that come and go are no reason"
    world.roll_out()
    world.settle()
    assert (world.revision(), world.rollout["stableRevision"]) == (after, after)
    upgraded(world)


def with_pods(*pods: Callable[[World], Json]) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.pods = {made["metadata"]["name"]: made for make in pods if (made := make(world))}

    return change


def evicted(world: World) -> Json:
    made = waiting("x-1", world)
    made["status"] |= {"phase": "Failed", "reason": "Evicted"}
    return made


def measured(world: World) -> None:
    world.obj["status"]["measured"] = {"kvCacheTokens": 1}


def rolled_out(world: World) -> None:
    world.obj["status"]["rollout"]["stableRevision"] = world.revision()


def pinned(world: World) -> None:
    world.edit(rollout={"pinnedRevision": world.revision()})


MAY_HAVE_RUN: dict[str, Callable[[World], None]] = {
    "no pod is there": with_pods(),
    "a pod is on a node": with_pods(lambda w: a_pod("x-0", w.revision())),
    "one of two is": with_pods(lambda w: waiting("x-0", w), lambda w: waiting("x-1", w, unschedulable=None)),
    "one that is leaving was": with_pods(
        lambda w: waiting("x-0", w), lambda w: waiting("x-1", w, unschedulable=None, deleting=True)
    ),
    "one serves": with_pods(lambda w: a_pod("x-0", w.revision(), ready=True)),
    "one was evicted": with_pods(lambda w: waiting("x-0", w), evicted),
    "the pod is younger than its revision: it may have replaced another": with_pods(lambda w: waiting("x-0", w, 3600)),
    "the scheduler has not said anything": with_pods(lambda w: waiting("x-0", w, unschedulable=None, scheduled=False)),
    "no time of a pod": with_pods(lambda w: a_pod("x-0", w.revision(), unschedulable=PENDING)),
    "vLLM measured something": measured,
    "it was rolled out before": rolled_out,
    "it is pinned": pinned,
}  # fmt: skip


@pytest.mark.parametrize("what", MAY_HAVE_RUN.values(), ids=MAY_HAVE_RUN.keys())
def test_a_revision_whose_pods_may_have_run_keeps_its_recorded_template(what: Callable[[World], None]) -> None:
    world = bound_to_its_choice()
    what(world)
    before = copy.deepcopy(world.template)
    world.gpus = ClusterGPUs((NodeGroup(None, 1),))
    world.now += timedelta(days=1)
    world.settle()
    assert world.template == before
    assert world.rollout["updatePending"] is True


def test_a_paused_service_that_never_ran_is_left_alone() -> None:
    world = bound_to_its_choice()
    before = copy.deepcopy(world.template)
    world.change(paused=True)
    assert world.template == before


OLD_PODS: dict[str, tuple[Json | None, bool]] = {
    # what is there of the revision before, and whether the new one is rendered anew
    "it serves": ({"ready": True}, False),
    "it is loading again": ({"ready": False}, False),
    "it found no node either": ({"unschedulable": PENDING}, True),
    "it is leaving": ({"ready": True, "deleting": True}, True),
    "nothing": (None, True),
}


@pytest.mark.parametrize(("old", "is_rerendered"), OLD_PODS.values(), ids=OLD_PODS.keys())
def test_what_was_edited_and_never_ran_is_rendered_anew_only_where_nothing_else_runs(
    old: Json | None, is_rerendered: bool
) -> None:
    """Another template would be another rollout, which may stop what serves."""
    world = serving(L4)
    before = world.revision()
    world.edit(batching={"maxNumSeqs": 8})
    world.settle()
    records = {r["metadata"]["name"]: r for r in world.of_kind("ControllerRevision")}
    label = world.revision()
    template = world.template
    for each in (records[f"x-{label}"]["data"]["template"], template):
        each["spec"]["nodeSelector"] = {"an": "earlier release"}
    world.pods = {} if old is None else {"x-0": a_pod("x-0", before, **old)}
    world.pods["x-new"] = waiting("x-new", world)
    strategy = world.strategy()
    world.settle()
    assert (world.revision() != label, "nodeSelector" not in world.template["spec"]) == (is_rerendered, is_rerendered)
    assert world.rollout.get("updatePending", False) is not is_rerendered
    assert is_rerendered or world.strategy() == strategy


def test_one_that_never_ran_takes_no_turn_of_updates_that_were_asked_for() -> None:
    world = bound_to_its_choice()
    world.update_permission = UpdatePermission(is_granted=False, failed=("other",))
    before = world.revision()
    decision = world.decide()
    assert (decision.claims_update, decision.update) == (False, None)
    world.settle()
    assert world.revision() != before
    world.pods = {"x-1": waiting("x-1", world)}
    assert world.decide().update is None


ON_L4 = {"accelerator": {"products": ["NVIDIA-L4"]}}
SELECTED = {"podTemplate": {"spec": {"nodeSelector": {"pool": "a"}}}}


def ran_elsewhere() -> World:
    world = bound_to_its_choice()
    world.pods = {"x-0": waiting("x-0", world, 3600)}
    return world


def unplaced(**sections: Any) -> World:
    world = a_world(L4, **sections)
    world.settle()
    world.pods = {"x-0": waiting("x-0", world)}
    return world


NOBODY_MATCHES: list[tuple[str, Callable[[], World], str, list[str]]] = [
    # words of the remedy, and fields that nobody set
    (
        "an earlier release chose the product",
        ran_elsewhere,
        "bound the pods to NVIDIA-L4, which it chose itself: set the annotation llmservice.dev/update-requested",
        ["spec."],
    ),
    ("this release did", unplaced, "does not fit on Tesla-T4, Tesla-V100-SXM2-16GB", ["nodeSelector", "affinity"]),
    (
        "the spec names it",
        lambda: unplaced(**ON_L4),
        "spec.accelerator.products (NVIDIA-L4)",
        ["nodeSelector", "chose"],
    ),
    (
        "on nodes without a label",
        lambda: unplaced(**ON_L4),
        "have no label nvidia.com/gpu.product, remove spec.accelerator.products and set spec.accelerator.memory",
        ["nodeSelector"],
    ),
    ("a selector", lambda: unplaced(**SELECTED, **ON_L4), "spec.podTemplate.spec.nodeSelector (pool=a)", ["affinity"]),
]


@pytest.mark.parametrize(
    ("make", "words", "unset"), [row[1:] for row in NOBODY_MATCHES], ids=[row[0] for row in NOBODY_MATCHES]
)
def test_a_pod_that_no_node_matches_blames_what_was_set_and_says_who_chose(
    make: Callable[[], World], words: str, unset: list[str]
) -> None:
    world = make()
    world.settle()
    failure = world.status["failure"]
    assert failure["reason"] == "NoMatchingNode"
    assert words in failure["remedy"]
    assert not [each for each in unset if each in failure["remedy"]]
