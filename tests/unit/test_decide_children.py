"""Which children are applied, kept, pruned or left alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from llmservice_operator.decide import show
from llmservice_operator.observe.observed import Refusal

from tests.unit.decide_world import FIXTURES, UID, World, an_llmservice, orphaned, spec

SPEC = {"spec": {"containers": [{"name": "server"}]}}
GOLDEN = FIXTURES / "five_line_decision.json"


def serving(**sections: object) -> World:
    """A world in which the service is rolled out and nothing is to be done."""
    world = World(an_llmservice(spec(**sections)))
    world.settle()
    world.roll_out()
    world.settle()
    return world


def test_the_five_line_manifest_decides_what_the_golden_file_says() -> None:
    """When a change is meant, write the printed decision to the file and read its diff."""
    decision = World().decide()
    assert json.loads(json.dumps(show.document(decision))) == json.loads(GOLDEN.read_text())
    assert all(apply.known_uid is None for apply in decision.apply)


def test_a_decision_is_printed_with_what_restarts() -> None:
    world = serving()
    assert not {"adopt", "prune", "restart", "status"} & show.document(world.decide()).keys()
    before = world.revision()
    world.edit(batching={"maxNumSeqs": 8})
    document = show.document(world.decide())
    assert (document["restart"]["from"], document["restart"]["strategy"]) == (before, "Surge")
    shown = {item["manifest"]["kind"]: item.get("apply") for item in document["objects"]}
    assert shown["Service"] is None
    assert "is not as asked for" in shown["Deployment"]


def test_what_pods_need_is_applied_before_them() -> None:
    cache = {"model": {"uri": "hf://a/b", "cache": {"size": "10Gi"}}, "scaling": {"replicas": 2}}
    kinds = [apply.kind for apply in World(an_llmservice(cache)).decide().apply]
    assert kinds == ["Service", "PersistentVolumeClaim", "ControllerRevision", "Deployment", "PodDisruptionBudget"]


def test_nothing_that_is_made_is_forced_and_everything_that_is_ours_is() -> None:
    world = World()
    assert {apply.known_uid for apply in world.decide().apply} == {None}
    world.settle()
    world.edit(endpoint={"port": 8080})
    (apply,) = world.decide().apply
    assert apply.known_uid == world.children["Service", "x"]["metadata"]["uid"]


def test_a_steady_state_decides_nothing() -> None:
    assert serving().decide().is_steady


def test_scaling_restarts_nothing() -> None:
    world = serving()
    template = world.deployment["spec"]["template"]
    world.edit(scaling={"replicas": 2})
    decision = world.step()
    assert {a.kind for a in decision.apply} == {"Deployment", "PodDisruptionBudget"}
    assert world.deployment["spec"]["replicas"] == 2
    assert world.deployment["spec"]["template"] == template
    world.roll_out()
    world.settle()
    world.edit(scaling={"replicas": 1})
    assert [(p.kind, p.name) for p in world.step().prune] == [("PodDisruptionBudget", "x")]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda w: setattr(w, "settings", replace(w.settings, operator_image="new:2")), id="new operator"),
        pytest.param(lambda w: w.edit(drain={"timeoutSeconds": 5}), id="drain"),
    ],
)
def test_what_needs_no_restart_waits_until_it_is_asked_for(change: Callable[[World], None]) -> None:
    world = serving()
    template = world.deployment["spec"]["template"]
    change(world)
    world.settle()
    assert world.deployment["spec"]["template"] == template
    assert world.obj["status"]["rollout"]["updatePending"] is True
    assert world.conditions()["Ready"]["status"] == "True"

    world.obj["metadata"]["annotations"] = {"llmservice.dev/update-requested": "now"}
    world.settle()
    assert world.deployment["spec"]["template"] != template
    assert "updatePending" not in world.obj["status"]["rollout"]
    assert world.conditions()["Ready"]["status"] == "False"
    updated = world.deployment["spec"]["template"]
    del world.obj["metadata"]["annotations"]
    world.settle()
    assert world.deployment["spec"]["template"] == updated, "taking the annotation away is no request"


def test_an_update_can_be_asked_for_again_and_again() -> None:
    world = serving()
    for number, value in enumerate(["a", "b", "a"]):
        world.settings = replace(world.settings, operator_image=f"new:{number}")
        world.obj["metadata"]["annotations"] = {"llmservice.dev/update-requested": value}
        world.settle()
        init = world.deployment["spec"]["template"]["spec"]["initContainers"][0]
        assert init["image"] == f"new:{number}"


def test_an_update_that_was_asked_for_before_is_taken_from_the_record() -> None:
    world = serving()
    labels = []
    for value in ("a", "b", "a"):
        world.obj["metadata"]["annotations"] = {"llmservice.dev/update-requested": value}
        world.settle()
        labels.append(world.revision())
    assert labels[0] == labels[2] != labels[1]


def test_going_back_takes_the_recorded_template_of_then() -> None:
    world = serving()
    first = world.deployment["spec"]["template"]
    world.edit(batching={"maxNumSeqs": 4})
    world.settle()
    world.settings = replace(world.settings, operator_image="new:2")
    world.edit(batching={})
    world.settle()
    assert world.deployment["spec"]["template"] == first
    numbers = {name: obj["revision"] for (kind, name), obj in world.children.items() if kind == "ControllerRevision"}
    assert numbers[f"x-{world.revision()}"] == max(numbers.values()) == 3


def test_five_revisions_are_kept_and_the_running_one_always() -> None:
    world = serving()
    running = next(iter(world.pods.values()))["metadata"]["labels"]["llmservice.dev/revision"]
    for seqs in range(1, 9):
        world.edit(batching={"maxNumSeqs": seqs})
        world.settle()
    labels = {name.rpartition("-")[2] for kind, name in world.children if kind == "ControllerRevision"}
    assert running in labels
    assert world.revision() in labels
    assert len(labels) == 6


def test_paused_repairs_nothing_and_says_so() -> None:
    world = serving()
    world.edit(paused=True)
    del world.children["Service", "x"]
    decision = world.step()
    assert decision.apply == ()
    assert world.conditions()["Accepted"]["reason"] == "Paused"
    assert (world.conditions()["Ready"]["status"], world.conditions()["Ready"]["reason"]) == ("False", "Paused")
    world.edit(paused=False)
    assert [apply.kind for apply in world.step().apply] == ["Service"]


def test_paused_with_nothing_to_do_stays_ready() -> None:
    world = serving()
    world.edit(paused=True)
    world.step()
    assert world.conditions()["Ready"]["status"] == "True"


def test_an_edit_that_the_api_server_refuses_is_not_ready() -> None:
    """Every pod is as it should be; the port is not."""
    world = serving()
    world.refused = {("Service", "x"): Refusal(422, "no such port")}
    world.edit(endpoint={"port": 8080})
    decision = world.decide()
    assert decision.status is not None
    conditions = {c["type"]: c for c in decision.status["conditions"]}
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "AdmissionRefused")
    assert conditions["Stalled"]["status"] == "True"


def test_a_missing_child_is_not_ready() -> None:
    world = serving()
    del world.children["Service", "x"]
    decision = world.decide()
    assert decision.status is not None
    conditions = {c["type"]: c for c in decision.status["conditions"]}
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "Progressing")


def test_paused_does_not_roll_out_an_edit() -> None:
    world = serving()
    world.edit(paused=True, batching={"maxNumSeqs": 3})
    assert world.step().apply == ()
    assert (world.conditions()["Ready"]["status"], world.conditions()["Ready"]["reason"]) == ("False", "Paused")
    assert "Reconciling" not in world.conditions()


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
    conditions = world.conditions()
    assert (conditions["Accepted"]["status"], conditions["Accepted"]["reason"]) == ("False", "UnknownFlag")
    assert conditions["Available"]["status"] == "True"
    assert conditions["Ready"]["status"] == "False"
    assert conditions["Stalled"]["status"] == "True"
    assert world.obj["status"]["endpoint"]["url"] == "http://x.team-a.svc/v1"
    world.edit(runtime={})
    world.settle()
    assert world.conditions()["Ready"]["status"] == "True"
    assert "Stalled" not in world.conditions()


def _foreign(world: World, kind: str, **metadata: object) -> None:
    child = world.children[kind, "x"]
    child["metadata"] |= metadata


OTHER = {"apiVersion": "v1", "kind": "Gadget", "name": "g", "uid": "other", "controller": True}


@pytest.mark.parametrize("kind", ["Service", "Deployment", "PodDisruptionBudget"])
def test_another_owners_child_is_never_touched(kind: str) -> None:
    world = serving(scaling={"replicas": 2})
    _foreign(world, kind, ownerReferences=[OTHER])
    decision = world.step()
    assert (decision.apply, decision.prune) == ((), ())
    accepted = world.conditions()["Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("False", "NameConflict")
    assert f"{kind} x" in accepted["message"]
    assert "Gadget g" in accepted["message"]


def test_a_child_that_somebody_else_made_is_not_adopted() -> None:
    world = serving()
    _foreign(world, "Service", ownerReferences=[])
    world.children["Service", "x"]["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
    assert world.step().apply == ()
    assert "Helm" in world.conditions()["Accepted"]["message"]


def test_a_refused_first_apply_is_a_name_conflict() -> None:
    world = World(refused={("Service", "x"): Refusal(409, 'conflict with "kubectl": .spec.selector')})
    world.step()
    accepted = world.conditions()["Accepted"]
    assert accepted["reason"] == "NameConflict"
    assert "kubectl" in accepted["message"]


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        pytest.param(Refusal(422, "Deployment is invalid: spec.x"), "AdmissionRefused", id="invalid"),
        pytest.param(
            Refusal(403, "exceeded quota: q, requested: services=1, used: services=3, limited: services=3"),
            "QuotaExceeded",
            id="quota",
        ),
    ],
)
def test_a_refusal_by_the_api_server_is_told(refusal: Refusal, reason: str) -> None:
    world = World(refused={("Service", "x"): refusal})
    world.step()
    assert world.conditions()["Accepted"]["status"] == "True"
    assert world.conditions()["Stalled"]["reason"] == reason


def test_orphans_are_adopted_without_force_and_without_a_restart() -> None:
    world = serving()
    template = world.deployment["spec"]["template"]
    for child in world.children.values():
        del child["metadata"]["ownerReferences"]
    world.obj["metadata"]["uid"] = "22222222-2222-4222-8222-222222222222"
    del world.obj["status"]
    world.settings = replace(world.settings, operator_image="new:2")
    decision = world.step()
    assert {apply.kind for apply in decision.apply} == {"Service", "ControllerRevision", "Deployment"}
    assert {apply.known_uid for apply in decision.apply} == {None}
    world.settle()
    assert world.deployment["spec"]["template"] == template
    assert world.conditions()["Accepted"]["status"] == "True"


def test_orphaned_records_of_other_revisions_are_adopted_too() -> None:
    world = serving()
    world.edit(batching={"maxNumSeqs": 4})
    world.settle()
    before = {name: child["data"] for (kind, name), child in world.children.items() if kind == "ControllerRevision"}
    orphaned(world)
    world.settle()
    records = {name: child for (kind, name), child in world.children.items() if kind == "ControllerRevision"}
    assert {name: child["data"] for name, child in records.items()} == before
    owners = {child["metadata"]["ownerReferences"][0]["uid"] for child in records.values()}
    assert (len(records), owners) == (2, {world.obj["metadata"]["uid"]})


@pytest.mark.parametrize(
    "data",
    [{}, {"key": "k"}, {"template": None}, {"template": {"spec": {}}}, {"template": SPEC, "chosen": "x"}],
    ids=str,
)
def test_a_record_without_a_template_is_nobodys(data: dict[str, Any]) -> None:
    world = serving()
    (name,) = (name for kind, name in world.children if kind == "ControllerRevision")
    stray = copy.deepcopy(world.children["ControllerRevision", name])
    del stray["metadata"]["ownerReferences"]
    stray["metadata"] |= {"name": "x-abcdef0123", "uid": "stray"}
    world.children["ControllerRevision", "x-abcdef0123"] = stray | {"data": data, "revision": 9}
    world.settle()
    assert world.conditions()["Accepted"]["status"] == "True"
    assert "ownerReferences" not in world.children["ControllerRevision", "x-abcdef0123"]["metadata"]


def test_an_orphaned_budget_goes_where_one_replica_comes_back() -> None:
    """It is made with two, and its service comes again with one."""
    world = serving(scaling={"replicas": 2})
    orphaned(world)
    world.edit(scaling={"replicas": 1})
    world.settle()
    assert ("PodDisruptionBudget", "x") not in world.children


def test_an_orphan_with_fields_of_somebody_else_is_told_of() -> None:
    world = serving()
    orphaned(world)
    world.refused["Service", "x"] = Refusal(409, 'conflict with "somebody-else": .spec.selector')
    world.step()
    accepted = world.conditions()["Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("False", "NameConflict")
    assert ".spec.selector" in accepted["message"]


def test_children_of_a_deleted_namesake_are_waited_for() -> None:
    world = serving()
    world.obj["metadata"]["uid"] = "22222222-2222-4222-8222-222222222222"
    del world.obj["status"]
    assert world.step().apply == ()
    conditions = world.conditions()
    assert conditions["Accepted"]["status"] == "True"
    assert "Deployment x" in conditions["Reconciling"]["message"]
    world.children.clear()
    assert len(world.step().apply) == 3


@pytest.mark.parametrize(("policy", "is_owned"), [("Retain", False), ("Delete", True)])
def test_a_cache_claim_is_owned_by_its_policy(policy: str, is_owned: bool) -> None:
    world = serving(model={"uri": "hf://a/b", "cache": {"size": "10Gi", "retentionPolicy": policy}})
    references = world.children["PersistentVolumeClaim", "x-cache"]["metadata"].get("ownerReferences", [])
    assert [reference["uid"] for reference in references] == ([UID] if is_owned else [])
    world.edit(model={"uri": "hf://a/b"})
    world.settle()
    assert ("PersistentVolumeClaim", "x-cache") in world.children, "pods of the earlier revision may use it"
    world.roll_out()
    world.settle()
    assert (("PersistentVolumeClaim", "x-cache") in world.children) is not is_owned


def test_a_kept_claim_is_used_again() -> None:
    sections = {"model": {"uri": "hf://a/b", "cache": {"size": "10Gi", "retentionPolicy": "Retain"}}}
    old = serving(**sections)
    claim = old.children["PersistentVolumeClaim", "x-cache"]
    new = World(an_llmservice(spec(**sections), uid="33333333-3333-4333-8333-333333333333"))
    new.children["PersistentVolumeClaim", "x-cache"] = claim
    new.settle()
    assert new.conditions()["Accepted"]["status"] == "True"
