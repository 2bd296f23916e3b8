"""Which children are applied, kept, pruned or left alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from llmservice_api.constants import SERVICE_LABEL
from llmservice_operator.observe.observed import Refusal

from tests.unit.decide_world import FIXTURES, UID, World, an_llmservice, orphaned, recreated, serving, spec

SPEC = {"spec": {"containers": [{"name": "server"}]}}
GOLDEN = FIXTURES / "five_line_decision.json"
BUDGET, CLAIM = ("PodDisruptionBudget", "x"), ("PersistentVolumeClaim", "x-cache")


def upgraded(world: World, image: str = "new:2") -> None:
    """Another operator, which renders another template."""
    world.settings = replace(world.settings, operator_image=image)


def labels(world: World) -> set[str]:
    """Of the recorded revisions."""
    return {record["metadata"]["name"].rpartition("-")[2] for record in world.of_kind("ControllerRevision")}


def test_the_five_line_manifest_decides_what_the_golden_file_says() -> None:
    """When a change is meant, write the printed decision to the file and read its diff."""
    decision = World().decide()
    shown = {
        "apply": [{"reason": a.reason, "knownUid": a.known_uid, "manifest": a.manifest} for a in decision.apply],
        "prune": [],
        "status": decision.status,
        "events": [[e.type, e.reason, e.message] for e in decision.events],
    }
    assert json.loads(json.dumps(shown)) == json.loads(GOLDEN.read_text())
    assert (decision.prune, decision.restart) == ((), None)
    assert decision.desired == tuple(apply.manifest for apply in decision.apply)


def test_a_decision_names_all_children_and_what_is_replaced() -> None:
    world = serving()
    before, decision = world.revision(), world.decide()
    assert decision.is_steady
    assert [child["kind"] for child in decision.desired] == ["Service", "ControllerRevision", "Deployment"]
    assert decision.restart is None
    world.edit(batching={"maxNumSeqs": 8})
    restart = world.decide().restart
    assert restart is not None
    assert (restart.running, restart.strategy) == (before, "Surge")
    assert restart.desired != before


def test_what_pods_need_is_applied_before_them() -> None:
    cache = {"model": {"uri": "hf://a/b", "cache": {"size": "10Gi"}}, "scaling": {"replicas": 2}}
    kinds = [apply.kind for apply in World(an_llmservice(cache)).decide().apply]
    assert kinds == ["Service", "PersistentVolumeClaim", "ControllerRevision", "Deployment", "PodDisruptionBudget"]


def test_force_is_for_what_is_known_to_be_ours() -> None:
    world = World()
    assert {apply.known_uid for apply in world.decide().apply} == {None}
    world.settle()
    world.edit(endpoint={"port": 8080})
    (apply,) = world.decide().apply
    assert apply.known_uid == world.children["Service", "x"]["metadata"]["uid"]


def test_scaling_restarts_nothing() -> None:
    world = serving()
    template = world.template
    world.edit(scaling={"replicas": 2})
    assert {apply.kind for apply in world.step().apply} == {"Deployment", "PodDisruptionBudget"}
    assert (world.deployment["spec"]["replicas"], world.template) == (2, template)
    world.roll_out()
    world.settle()
    world.edit(scaling={"replicas": 1})
    assert [(p.kind, p.name) for p in world.step().prune] == [BUDGET]


@pytest.mark.parametrize(
    "change", [upgraded, lambda world: world.edit(drain={"timeoutSeconds": 5})], ids=["new operator", "drain"]
)
def test_what_needs_no_restart_waits_until_it_is_asked_for(change: Callable[[World], None]) -> None:
    world = serving()
    template = world.template
    change(world)
    world.settle()
    assert (world.template, world.rollout["updatePending"]) == (template, True)
    assert world.condition("Ready")[0] == "True"
    world.request_update()
    updated = world.template
    assert updated != template
    assert "updatePending" not in world.rollout
    assert world.condition("Ready")[0] == "False"
    del world.obj["metadata"]["annotations"]
    world.settle()
    assert world.template == updated, "removing the annotation is no request"


def test_each_other_value_is_a_request_and_the_same_template_is_the_same_revision() -> None:
    world, revisions = serving(), []
    for value in ("a", "b", "a"):
        world.request_update(value)
        revisions.append(world.revision())
    assert revisions[0] == revisions[2] != revisions[1]
    for value in ("b", "a"):
        upgraded(world, f"new:{value}")
        world.request_update(value)
        assert world.template["spec"]["initContainers"][0]["image"] == f"new:{value}"


def test_an_edit_that_is_undone_brings_back_the_recorded_template() -> None:
    world = serving()
    first = world.template
    world.change(batching={"maxNumSeqs": 4})
    upgraded(world)
    world.change(batching={})
    assert world.template == first
    numbers = {record["metadata"]["name"]: record["revision"] for record in world.of_kind("ControllerRevision")}
    assert numbers[f"x-{world.revision()}"] == max(numbers.values()) == 3


def test_five_revisions_are_kept_and_the_running_one_always() -> None:
    world = serving()
    running = next(iter(world.pods.values()))["metadata"]["labels"]["llmservice.dev/revision"]
    for seqs in range(1, 9):
        world.change(batching={"maxNumSeqs": seqs})
    assert {running, world.revision()} <= labels(world)
    assert len(labels(world)) == 6


def test_a_paused_service_is_neither_repaired_nor_rolled_out() -> None:
    world = serving()
    world.edit(paused=True)
    world.step()
    assert world.condition("Ready")[0] == "True", "nothing is to be done"
    del world.children["Service", "x"]
    world.edit(batching={"maxNumSeqs": 3})
    assert world.step().apply == ()
    assert world.condition("Accepted")[1] == "Paused"
    assert world.condition("Ready") == ("False", "Paused")
    assert "Reconciling" not in world.conditions()
    world.edit(paused=False, batching={})
    assert [apply.kind for apply in world.step().apply] == ["Service"]


def test_an_edit_that_the_api_server_refuses_is_not_ready() -> None:
    """Every pod is as it should be; the port is not."""
    world = serving()
    world.refused = {("Service", "x"): Refusal(422, "no such port")}
    world.edit(endpoint={"port": 8080})
    world.step()
    assert world.condition("Ready") == ("False", "AdmissionRefused")
    assert world.condition("Stalled")[0] == "True"


def test_a_missing_child_is_not_ready() -> None:
    world = serving()
    del world.children["Service", "x"]
    world.step()
    assert world.condition("Ready") == ("False", "Progressing")


def test_a_deleting_service_is_left_to_the_garbage_collector() -> None:
    world = serving()
    world.obj["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    world.children.clear()
    assert world.decide().is_steady


def test_a_spec_that_cannot_work_changes_nothing_that_serves() -> None:
    world = serving()
    world.edit(runtime={"extraArgs": ["--no-such-flag"]})
    decision = world.step()
    assert (decision.apply, decision.prune) == ((), ())
    assert world.condition("Accepted") == ("False", "UnknownFlag")
    shown = {type_: world.condition(type_)[0] for type_ in ("Available", "Ready", "Stalled")}
    assert shown == {"Available": "True", "Ready": "False", "Stalled": "True"}
    assert world.status["endpoint"]["url"] == "http://x.team-a.svc/v1"
    world.change(runtime={})
    assert world.condition("Ready")[0] == "True"
    assert "Stalled" not in world.conditions()


GADGET = [{"apiVersion": "v1", "kind": "Gadget", "name": "g", "uid": "other", "controller": True}]


@pytest.mark.parametrize(
    ("kind", "owners", "manager", "words"),
    [
        *((kind, GADGET, "llmservice-operator", "Gadget g") for kind in ("Service", "Deployment", BUDGET[0])),
        ("Service", [], "Helm", "Helm"),
    ],
)
def test_what_is_somebody_elses_is_not_touched_and_its_owner_is_named(
    kind: str, owners: Any, manager: str, words: str
) -> None:
    world = serving(scaling={"replicas": 2})
    metadata = world.children[kind, "x"]["metadata"]
    metadata["ownerReferences"] = owners
    metadata["labels"]["app.kubernetes.io/managed-by"] = manager
    decision = world.step()
    assert (decision.apply, decision.prune) == ((), ())
    assert world.condition("Accepted") == ("False", "NameConflict")
    assert f"{kind} x" in world.message("Accepted")
    assert words in world.message("Accepted")


@pytest.mark.parametrize("is_kept", [False, True], ids=["in use", "kept by Retain"])
def test_a_claim_of_a_service_whose_names_overlap_stays_with_it(is_kept: bool) -> None:
    """The start cache of x and the model cache of x-start have one name: who comes second is refused."""
    made, world = serving(startCache={"size": "2Gi"}), serving()
    claim = made.children["PersistentVolumeClaim", "x-start-cache"]
    claim["metadata"]["labels"][SERVICE_LABEL] = "x-start"
    owner = claim["metadata"]["ownerReferences"][0] | {"name": "x-start", "uid": "theirs"}
    claim["metadata"]["ownerReferences"] = [] if is_kept else [owner]
    world.children["PersistentVolumeClaim", "x-start-cache"] = claim
    world.edit(startCache={"size": "2Gi"})
    decision = world.step()
    assert (decision.apply, decision.prune) == ((), ())
    assert world.condition("Accepted") == ("False", "NameConflict")
    assert "PersistentVolumeClaim x-start-cache exists already" in world.message("Accepted")


CONFLICT = Refusal(409, 'conflict with "kubectl": .spec.selector')
QUOTA = Refusal(403, "exceeded quota: q, requested: services=1, used: services=3, limited: services=3")


@pytest.mark.parametrize(
    ("make", "refusal", "type_", "reason"),
    [
        pytest.param(World, CONFLICT, "Accepted", "NameConflict", id="the fields of a new child are others'"),
        pytest.param(lambda: orphaned(serving()), CONFLICT, "Accepted", "NameConflict", id="those of an orphan are"),
        pytest.param(World, Refusal(422, "spec.x is invalid"), "Stalled", "AdmissionRefused", id="invalid"),
        pytest.param(World, QUOTA, "Stalled", "QuotaExceeded", id="a quota"),
    ],
)
def test_a_refusal_by_the_api_server_is_reported(
    make: Callable[[], World], refusal: Refusal, type_: str, reason: str
) -> None:
    world = make()
    world.refused["Service", "x"] = refusal
    world.step()
    assert world.condition(type_)[1] == reason
    assert (world.condition("Accepted")[0] == "False") is (type_ == "Accepted")
    assert type_ != "Accepted" or ".spec.selector" in world.message("Accepted")


def test_orphans_are_adopted_without_force_and_without_a_restart() -> None:
    world = serving()
    world.change(batching={"maxNumSeqs": 4})
    template = world.template
    data = {record["metadata"]["name"]: record["data"] for record in world.of_kind("ControllerRevision")}
    orphaned(world)
    upgraded(world)
    decision = world.step()
    assert [apply.kind for apply in decision.apply].count("ControllerRevision") == len(data) == 2
    assert {apply.kind for apply in decision.apply} == {"Service", "ControllerRevision", "Deployment"}
    assert {apply.known_uid for apply in decision.apply} == {None}
    world.settle()
    assert world.template == template
    assert world.condition("Accepted")[0] == "True"
    assert {record["metadata"]["name"]: record["data"] for record in world.of_kind("ControllerRevision")} == data
    owners = {child["metadata"]["ownerReferences"][0]["uid"] for child in world.children.values()}
    assert owners == {world.obj["metadata"]["uid"]}


@pytest.mark.parametrize(
    "data",
    [{}, {"key": "k"}, {"template": None}, {"template": {"spec": {}}}, {"template": SPEC, "chosen": "x"}],
    ids=str,
)
def test_a_record_without_a_template_is_nobodys(data: dict[str, Any]) -> None:
    world = serving()
    stray = copy.deepcopy(world.of_kind("ControllerRevision")[0])
    del stray["metadata"]["ownerReferences"]
    stray["metadata"] |= {"name": "x-abcdef0123", "uid": "stray"}
    world.children["ControllerRevision", "x-abcdef0123"] = stray | {"data": data, "revision": 9}
    world.settle()
    assert world.condition("Accepted")[0] == "True"
    assert "ownerReferences" not in world.children["ControllerRevision", "x-abcdef0123"]["metadata"]


def test_an_orphaned_budget_goes_where_one_replica_comes_back() -> None:
    """It is made with two, and its service comes again with one."""
    world = orphaned(serving(scaling={"replicas": 2}))
    world.change(scaling={"replicas": 1})
    assert BUDGET not in world.children


def test_children_of_a_deleted_namesake_are_waited_for() -> None:
    world = recreated(serving())
    assert world.step().apply == ()
    assert world.condition("Accepted")[0] == "True"
    assert "Deployment x" in world.message("Reconciling")
    world.children.clear()
    assert len(world.step().apply) == 3


@pytest.mark.parametrize(("policy", "is_owned"), [("Retain", False), ("Delete", True)])
def test_a_cache_claim_is_owned_by_its_policy(policy: str, is_owned: bool) -> None:
    world = serving(model={"uri": "hf://a/b", "cache": {"size": "10Gi", "retentionPolicy": policy}})
    references = world.children[CLAIM]["metadata"].get("ownerReferences", [])
    assert [reference["uid"] for reference in references] == ([UID] if is_owned else [])
    world.change(model={"uri": "hf://a/b"})
    assert CLAIM in world.children, "pods of the earlier revision may use it"
    world.roll_out()
    world.settle()
    assert (CLAIM in world.children) is not is_owned


RETAINED = {"uri": "hf://a/b", "cache": {"size": "10Gi", "retentionPolicy": "Retain"}}
TRACKED = {
    "labels": {
        "app.kubernetes.io/instance": "x",
        "argocd.argoproj.io/instance": "x",
        "kustomize.toolkit.fluxcd.io/name": "models",
        "helm.toolkit.fluxcd.io/name": "models",
    },
    "annotations": {
        "argocd.argoproj.io/tracking-id": "x:llmservice.dev/LLMService:team-a/x",
        "meta.helm.sh/release-name": "models",
    },
}
"""What tools for GitOps write into an LLMService to know it as theirs."""


def trackers(child: dict[str, Any]) -> set[str]:
    """Values by which a tool takes an object for one that it made, and deletes it where it is not in Git."""
    written = {**child["metadata"].get("labels", {}), **child["metadata"].get("annotations", {})}
    return {key for key, value in written.items() if key in {**TRACKED["labels"], **TRACKED["annotations"]} and value}


def test_no_child_that_outlives_the_service_is_taken_for_one_that_git_lost() -> None:
    """A child with an owner is deleted with it and by nobody else; a claim that is kept has none."""
    world = World(an_llmservice(spec(model=RETAINED, scaling={"replicas": 2}, startCache={"size": "1Gi"}), **TRACKED))
    world.settle()
    assert CLAIM in world.children
    kept = {
        where: trackers(child)
        for where, child in world.children.items()
        if not child["metadata"].get("ownerReferences")
    }
    assert kept == {CLAIM: set()}
    owned = {key for child in world.children.values() for key in trackers(child)}
    assert owned == {"app.kubernetes.io/instance"}, "its value is the service's name, whatever tools write"


def test_a_claim_that_an_earlier_release_kept_is_released_from_the_tools_and_restarts_nothing() -> None:
    world = serving(model=RETAINED)
    claim, template = world.children[CLAIM], copy.deepcopy(world.template)
    claim["metadata"]["labels"]["app.kubernetes.io/instance"] = "x"
    (apply,) = world.step().apply
    assert apply.manifest["metadata"]["name"] == claim["metadata"]["name"]
    assert trackers(world.children[CLAIM]) == set()
    assert world.template == template
    world.settle()
    assert world.step().is_steady


def test_a_kept_claim_is_used_again() -> None:
    sections = {"model": {"uri": "hf://a/b", "cache": {"size": "10Gi", "retentionPolicy": "Retain"}}}
    new = World(an_llmservice(spec(**sections), uid="33333333-3333-4333-8333-333333333333"))
    new.children[CLAIM] = serving(**sections).children[CLAIM]
    new.settle()
    assert new.condition("Accepted")[0] == "True"
