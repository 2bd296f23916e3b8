"""A recorded revision in the place of what the spec says: pinned, or after a failure by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService, parse_spec
from llmservice_api.spec import LLMServiceSpec
from llmservice_operator.manifests import children
from llmservice_operator.manifests.revision import recorded_spec, revision_key, spec_digest, with_recorded_fields
from llmservice_operator.observe.failures.pod_failure import StatusFailure
from llmservice_operator.observe.progress import Progress, RolloutDecision, rollout_of
from llmservice_runtime.contract import FailureReason
from llmservice_runtime.failures.reasons import Ends

from tests.unit.decide_world import FIVE_LINES, World, a_pod, spec, stored
from tests.unit.operator.test_decide_rollouts import edited, serving

Json = dict[str, Any]

AUTO = {"autoRollback": True}
GONE = {"reason": "Error", "exitCode": 1, "finishedAt": "2026-01-02T03:04:00Z"}
FAILURE = '{"version": 1, "reason": "InvalidFlag", "message": "no such value", "remedy": "", "evidence": []}'


def fail(world: World) -> None:
    """The first pod of the new revision ends for good, and the old ones serve."""
    replicas = world.deployment["spec"]["replicas"]
    world.roll_out(updated=1, replicas=replicas + 1)
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    last = GONE | {"message": FAILURE}
    world.pods["x-new"] = a_pod("x-new", world.revision(), state=state, last=last, restarts=4)


def failed(**sections: Any) -> tuple[World, str, str]:
    """After a failed change: the world, and the stable and the failed revision."""
    world = serving(2, **sections)
    stable = world.revision()
    edited(world)
    world.settle()
    fail(world)
    return world, stable, world.revision()


def test_a_failed_revision_stays_where_it_is_unless_asked_otherwise() -> None:
    world, stable, bad = failed()
    world.settle()
    shown = world.rollout
    assert (world.revision(), shown["failedRevision"], shown["stableRevision"]) == (bad, bad, stable)
    assert "failedSpec" not in shown
    assert [world.condition(type_)[0] for type_ in ("Available", "Ready", "Stalled")] == ["True", "False", "True"]


def test_a_failed_revision_gives_way_to_the_last_good_one() -> None:
    world, stable, bad = failed(rollout=AUTO)
    first = world.step()
    assert (world.revision(), world.rollout["failedRevision"], first.requeue_after) == (bad, bad, 0.0)
    world.serve()
    shown = world.rollout
    assert world.revision() == shown["revision"] == shown["stableRevision"] == stable
    assert shown["failedRevision"] == bad
    assert "InvalidFlag: no such value" in shown["reason"]
    assert world.condition("Ready")[1] == world.condition("Stalled")[1] == "RolledBack"
    assert world.condition("Available")[0] == world.condition("Accepted")[0] == "True"
    assert world.step().is_steady
    assert world.status["effective"]["batching"].get("maxNumSeqs") is None


# id, what happens afterwards, whether the spec is tried again
NEXT: list[tuple[str, Any, bool]] = [
    ("scaling", lambda world: world.edit(scaling={"replicas": 3}), False),
    ("a pause", lambda world: (world.edit(paused=True), world.settle(), world.edit(paused=False)), False),
    ("a correction", lambda world: world.edit(batching={"maxNumSeqs": 5}), True),
    ("without rollbacks", lambda world: world.edit(rollout={}), True),
    ("asked to", lambda world: world.request_update("again"), True),
]


@pytest.mark.parametrize(("event", "tries"), [row[1:] for row in NEXT], ids=[row[0] for row in NEXT])
def test_what_failed_is_tried_again_when_something_else_is_asked_for(event: Any, tries: bool) -> None:
    world, stable, _ = failed(rollout=AUTO)
    world.serve()
    event(world)
    world.settle()
    assert (world.revision() == stable) is not tries
    assert ("failedSpec" in world.rollout) is not tries
    assert world.deployment["spec"]["replicas"] == world.obj["spec"]["scaling"]["replicas"]


def test_the_first_revision_has_nothing_to_go_back_to() -> None:
    world = serving(1)
    del world.obj["status"]
    world.edit(rollout=AUTO)
    fail(world)
    world.pods.pop("x-0")
    world.settle()
    assert "failedSpec" not in world.rollout


def test_a_revision_that_was_stable_and_fails_later_is_no_failed_rollout() -> None:
    world = serving(1, rollout=AUTO)
    fail(world)
    world.settle()
    assert not {"failedRevision", "failedSpec"} & set(world.rollout)
    assert "stableRevision" not in serving(0).rollout, "nothing is stable while no replica is asked for"


def test_a_pinned_revision_is_used_as_it_was_and_the_rest_of_the_spec_applies() -> None:
    world = serving(2, model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "servedModelNames": ["then"]})
    then, template = world.revision(), world.template
    edited(world, model={"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "servedModelNames": ["now"]}, lora={})
    world.settle()
    world.edit(rollout={"pinnedRevision": then}, scaling={"replicas": 3}, endpoint={"port": 8080})
    world.serve()
    assert world.template == template
    assert world.deployment["spec"]["replicas"] == 3
    assert world.children["Service", "x"]["spec"]["ports"][0]["port"] == 8080
    shown = world.rollout
    assert (shown["revision"], shown["pinned"], shown["stableRevision"]) == (then, True, then)
    assert world.status["endpoint"]["modelNames"] == ["then"]
    assert world.condition("Ready")[0] == "True"
    assert world.step().is_steady
    world.edit(rollout={})
    world.serve()
    assert world.status["endpoint"]["modelNames"] == ["now"]
    assert "pinned" not in world.rollout


def test_an_unknown_revision_is_refused_and_those_that_exist_are_named() -> None:
    world = serving(1)
    there = world.revision()
    world.edit(rollout={"pinnedRevision": "0123456789"})
    decision = world.step()
    accepted = world.conditions()["Accepted"]
    assert (accepted["status"], accepted["reason"], decision.apply) == ("False", "RevisionNotFound", ())
    assert f"the latest first: {there}" in accepted["message"]
    assert "spec.rollout.pinnedRevision" in accepted["message"]
    assert (world.revision(), world.condition("Available")[0]) == (there, "True")


def test_what_may_be_returned_to_is_not_thrown_away() -> None:
    world, stable, _ = failed()
    for seqs in range(10, 18):
        edited(world, batching={"maxNumSeqs": seqs})
        world.settle()
        world.pods = {name: pod for name, pod in world.pods.items() if name == "x-new"}
    assert ("ControllerRevision", f"x-{stable}") in world.children
    assert world.rollout["stableRevision"] == stable


def test_a_record_of_an_earlier_release_is_returned_to_by_its_template_alone() -> None:
    world = serving(1)
    then, template = world.revision(), world.template
    del world.children["ControllerRevision", f"x-{then}"]["data"]["chosen"]["spec"]
    edited(world)
    world.settle()
    world.edit(rollout={"pinnedRevision": then})
    world.serve()
    assert world.template == template
    assert world.rollout["revision"] == then


SECTIONS: dict[str, st.SearchStrategy[Any]] = {
    "batching": st.fixed_dictionaries({}, optional={"maxNumSeqs": st.integers(1, 9)}),
    "lora": st.just({}),
    "adapters": st.just([{"name": "a", "uri": "hf://org/a"}]),
    "scaling": st.fixed_dictionaries({"replicas": st.integers(0, 3)}),
    "endpoint": st.fixed_dictionaries(
        {}, optional={"port": st.integers(1, 9), "apiKeySecretRef": st.just({"name": "a", "key": "b"})}
    ),
    "drain": st.fixed_dictionaries({"timeoutSeconds": st.integers(0, 9)}),
    "parallelism": st.fixed_dictionaries({"tensorParallelSize": st.integers(1, 4)}),
    "podTemplate": st.just({"spec": {"nodeSelector": {"a": "b"}}}),
    "contextExtension": st.just({"factor": 4, "method": "yarn"}),
    "startCache": st.fixed_dictionaries({"size": st.sampled_from(["1Gi", "2Gi"])}),
    "accelerator": st.fixed_dictionaries(
        {}, optional={"memory": st.sampled_from(["24Gi", "48Gi"]), "products": st.just(["NVIDIA-L4"])}
    ),
    "multimodal": st.fixed_dictionaries({"allowedMediaDomains": st.sampled_from([["a.example"], ["*"]])}),
    "model": st.fixed_dictionaries(
        {"uri": st.sampled_from(["hf://Qwen/Qwen2.5-7B-Instruct", "hf://Qwen/Qwen2.5-0.5B-Instruct"])},
        optional={
            "trustRemoteCode": st.booleans(),
            "architecture": st.just({"vocabSize": 1000}),
            "cache": st.fixed_dictionaries(
                {"size": st.sampled_from(["100Gi", "200Gi"])},
                optional={
                    "retentionPolicy": st.just("Retain"),
                    "storageClassName": st.sampled_from(["fast", "slow"]),
                    "accessModes": st.just(["ReadWriteMany"]),
                    "verify": st.just("Hash"),
                    "pruneAfterHours": st.integers(1, 9),
                },
            )
            | st.just({"claimName": "mine"}),
        },
    ),
}
SPECS = st.fixed_dictionaries({}, optional=SECTIONS).map(lambda sections: parse_spec(spec(**sections)))


@given(SPECS, SPECS)
def test_going_back_takes_what_needs_a_restart_and_leaves_the_rest(then: Any, now: Any) -> None:
    returned = with_recorded_fields(now, stored(recorded_spec(then)))
    assert revision_key(returned) == revision_key(then)
    assert (returned.scaling, returned.drain, returned.endpoint.port) == (now.scaling, now.drain, now.endpoint.port)
    assert spec_digest(now, None) == spec_digest(now.model_copy(update={"scaling": then.scaling}), None)
    assert returned.model.architecture == now.model.architecture
    assert returned.accelerator.memory == now.accelerator.memory
    if revision_key(now) == revision_key(then):
        assert returned == now, "the key covers nothing that differs"
    kept = {claim.name: claim for claim in children.claims(an_llm(returned), now)}
    for claim in children.claims(an_llm(now), now):
        assert kept[claim.name] == claim, "a claim of the spec is neither changed nor gone"


def an_llm(spec: LLMServiceSpec) -> LLMService:
    return replace(serving(0).service(), spec=spec)


CACHE = {"size": "100Gi"}


def cached(**cache: Any) -> Json:
    return {"uri": "hf://Qwen/Qwen2.5-7B-Instruct", "cache": CACHE | cache}


@pytest.mark.parametrize("is_automatic", [False, True], ids=["pinned", "automatic"])
def test_a_rollback_leaves_the_claim_for_models_as_the_spec_has_it_now(is_automatic: bool) -> None:
    """It grew and is to be kept since the record was made: neither needs a restart."""
    world = serving(2, model=cached())
    then = world.revision()
    world.edit(model=cached(size="200Gi", retentionPolicy="Retain"))
    world.settle()
    assert world.revision() == then, "no new revision"
    edited(world, rollout=AUTO if is_automatic else {})
    world.settle()
    fail(world)
    if not is_automatic:
        world.edit(rollout={"pinnedRevision": then})
    world.serve()
    claim = world.children["PersistentVolumeClaim", "x-cache"]
    assert world.revision() == then
    assert claim["spec"]["resources"]["requests"]["storage"] == "200Gi"
    assert "ownerReferences" not in claim["metadata"], "Retain"


def test_a_rollback_to_before_a_cache_deletes_no_claim_that_the_spec_asks_for() -> None:
    world = serving(2)
    then = world.revision()
    edited(world, model=cached(size="500Gi"), startCache={"size": "2Gi"})
    world.serve()
    world.edit(rollout={"pinnedRevision": then})
    world.serve()
    assert world.revision() == then
    claims = {name for kind, name in world.children if kind == "PersistentVolumeClaim"}
    assert claims == {"x-cache", "x-start-cache"}
    assert world.step().is_steady


KEY: Json = {"endpoint": {"apiKeySecretRef": {"name": "keys", "key": "k"}}}
OLD_KEY = {"endpoint": {"apiKeySecretRef": {"name": "old", "key": "k"}}}
DOMAINS, OPEN = ({"multimodal": {"allowedMediaDomains": names}} for names in (["a.example"], ["*"]))
CODE, NO_CODE = ({"model": FIVE_LINES["model"] | more} for more in ({"trustRemoteCode": True}, {}))
SECURE = {"podTemplate": {"spec": {"securityContext": {"runAsUser": 1234}}}}
# The record, the spec of now, the field that it lacks, what its pods have then.
PROTECTED: list[tuple[str, Json, Json, str, str]] = [
    ("a key", {}, KEY, "endpoint.apiKeySecretRef", "--api-keys-file"),
    ("another key", OLD_KEY, KEY, "endpoint.apiKeySecretRef", '"secretName": "keys"'),
    ("fewer domains", OPEN, DOMAINS, "multimodal.allowedMediaDomains", '"a.example"'),
    ("no domains", OPEN, {}, "multimodal.allowedMediaDomains", "spec.multimodal.allowedMediaDomains"),
    ("a security context", {}, SECURE, "podTemplate.spec.securityContext", '"runAsUser": 1234'),
]
# The same, and the record runs as it is.
NO_LESS: list[tuple[str, Json, Json]] = [
    ("the key is no longer asked for", KEY, {"endpoint": {}}),
    ("more domains", DOMAINS, OPEN),
    ("code is trusted now", NO_CODE, CODE),
    ("the same key", KEY, KEY),
]


def rolled_back(then: Json, now: Json, *, is_automatic: bool) -> tuple[World, str]:
    """Made of `then`, edited to `now` and something that needs a restart, and returned: the world and the record."""
    world = serving(2, **then)
    record = world.revision()
    for section in then:
        world.obj["spec"].pop(section)
    world.obj["spec"].setdefault("model", FIVE_LINES["model"])
    edited(world, **now, batching={"maxNumSeqs": 4}, rollout=AUTO if is_automatic else {})
    world.settle()
    if is_automatic:
        fail(world)
    else:
        world.serve()
        world.edit(rollout={"pinnedRevision": record})
    world.serve()
    return world, record


@pytest.mark.parametrize("is_automatic", [False, True], ids=["pinned", "automatic"])
@pytest.mark.parametrize(
    ("then", "now", "field", "words"), [row[1:] for row in PROTECTED], ids=[row[0] for row in PROTECTED]
)
def test_a_rollback_has_todays_protection(then: Json, now: Json, field: str, words: str, is_automatic: bool) -> None:
    world, record = rolled_back(then, now, is_automatic=is_automatic)
    assert world.revision() != record
    assert words in json.dumps(world.template)
    assert "--max-num-seqs" not in json.dumps(world.template), "all else is the record's"
    assert f"Revision {record} runs with the spec.{field} of now" in world.rollout["reason"]
    assert "Degraded" not in world.conditions()
    assert world.step().is_steady
    assert world.condition("Available")[0] == "True"


@pytest.mark.parametrize(("then", "now"), [row[1:] for row in NO_LESS], ids=[row[0] for row in NO_LESS])
def test_a_rollback_to_what_is_no_less_protected_uses_the_record(then: Json, now: Json) -> None:
    world, record = rolled_back(then, now, is_automatic=False)
    assert world.revision() == record
    assert "Degraded" not in world.conditions()


def test_code_that_is_no_longer_trusted_is_not_run_by_a_rollback() -> None:
    world, record = rolled_back(CODE, NO_CODE, is_automatic=False)
    assert world.revision() != record
    assert "--trust-remote-code" not in json.dumps(world.template)


def test_what_is_pinned_already_goes_on_and_the_status_says_that_it_is_open() -> None:
    """As after an upgrade from a release whose pins opened the endpoint."""
    world = serving(2)
    then, template = world.revision(), world.template
    world.edit(rollout={"pinnedRevision": then})
    world.serve()
    world.edit(**KEY, batching={"maxNumSeqs": 4})
    world.serve()
    assert (world.revision(), world.template) == (then, template), "an upgrade restarts nothing"
    degraded = world.conditions()["Degraded"]
    assert (degraded["status"], degraded["reason"]) == ("True", "RevisionUnprotected")
    assert f"Revision {then} runs without spec.endpoint.apiKeySecretRef" in degraded["message"]
    assert world.condition("Ready")[0] == "True"
    assert world.step().is_steady
    world.edit(rollout={})
    world.serve()
    assert "Degraded" not in world.conditions()
    world.edit(rollout={"pinnedRevision": then})
    world.serve()
    assert "--api-keys-file" in json.dumps(world.template), "the next pin is protected"


def pinned_early(then: Json, now: Json) -> tuple[World, str, str]:
    """Made of `then` by a release whose records do not say so, edited to `now` and pinned; the record, what ran."""
    world = serving(1, **then)
    record = world.revision()
    del world.children["ControllerRevision", f"x-{record}"]["data"]["chosen"]["spec"]
    for section in then:
        world.obj["spec"].pop(section)
    world.obj["spec"].setdefault("model", FIVE_LINES["model"])
    edited(world, **now, batching={"maxNumSeqs": 4})
    world.serve()
    ran = world.revision()
    world.edit(rollout={"pinnedRevision": record})
    world.step()
    return world, record, ran


@pytest.mark.parametrize(
    ("then", "now", "field"),
    [*(row[1:4] for row in PROTECTED), (CODE, NO_CODE, "model.trustRemoteCode")],
    ids=[*(row[0] for row in PROTECTED), "code"],
)
def test_a_record_that_cannot_be_rendered_anew_is_refused_where_it_is_open(then: Json, now: Json, field: str) -> None:
    world, _, ran = pinned_early(then, now)
    accepted = world.conditions()["Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("False", "RevisionUnprotected")
    assert f"spec.{field}" in accepted["message"]
    assert world.revision() == ran, "what serves goes on"


@pytest.mark.parametrize(
    ("then", "now"), [*(row[1:] for row in NO_LESS), (SECURE, SECURE)], ids=[*(row[0] for row in NO_LESS), "security"]
)
def test_a_record_that_cannot_be_rendered_anew_runs_where_it_is_no_less_protected(then: Json, now: Json) -> None:
    world, record, _ = pinned_early(then, now)
    world.serve()
    assert world.conditions()["Accepted"]["status"] == "True"
    assert world.revision() == record


def test_a_record_that_cannot_be_rendered_anew_goes_on_where_it_is_pinned_already() -> None:
    then: Json = OPEN
    world = serving(1, **then)
    record, template = world.revision(), world.template
    del world.children["ControllerRevision", f"x-{record}"]["data"]["chosen"]["spec"]
    world.edit(rollout={"pinnedRevision": record})
    world.serve()
    world.edit(**DOMAINS, batching={"maxNumSeqs": 4})
    world.serve()
    assert (world.revision(), world.template) == (record, template)
    assert world.conditions()["Accepted"]["status"] == "True"
    assert world.conditions()["Degraded"]["reason"] == "RevisionUnprotected"


QUOTA = 'pods "x-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 2, limited: 2'
WEBHOOK = (
    'Internal error occurred: failed calling webhook "pods.policy.example": failed to call webhook: Post '
    '"https://policy.policy.svc:443/validate?timeout=10s": no endpoints available for service "policy"'
)
SLOW_REGISTRY = {"waiting": {"reason": "ErrImagePull", "message": "failed to do request: 503 Service Unavailable"}}


@pytest.mark.parametrize("cause", ["a quota", "a registry", "a webhook"])
def test_what_is_no_fault_of_a_revision_fails_it_at_the_deadline_only(cause: str) -> None:
    world = serving(2, rollout=AUTO)
    stable = world.revision()
    edited(world)
    world.settle()
    world.roll_out(updated=1, replicas=2)
    if cause != "a registry":
        refused = {"type": "ReplicaFailure", "status": "True", "message": QUOTA if cause == "a quota" else WEBHOOK}
        world.deployment["status"]["conditions"] = [refused]
    else:
        world.pods["x-new"] = a_pod("x-new", world.revision(), state=SLOW_REGISTRY)
    world.settle()
    assert world.condition("Ready")[1] in ("QuotaExceeded", "RegistryUnavailable", "AdmissionUnavailable")
    assert world.revision() != stable, "it goes on trying"
    assert "failedRevision" not in world.rollout
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    world.deployment["status"].setdefault("conditions", []).append(late)
    world.settle()
    assert world.revision() == stable


MAY_ROLL_BACK = {
    Reason.LIMIT_RANGE_EXCEEDED: True,
    Reason.CONTAINER_NOT_STARTED: True,
    Reason.IMAGE_NOT_FOUND: True,
    Reason.IMAGE_PULL_DENIED: True,
    Reason.IMAGE_ARCHITECTURE_MISMATCH: True,
    Reason(FailureReason.DRIVER_MISMATCH): True,
    Reason.QUOTA_EXCEEDED: False,
    Reason.SCHEDULING_GATED: False,
    Reason.ADMISSION_UNAVAILABLE: False,
    Reason.API_SERVER_FAILING: False,
    Reason.IMAGE_PULL_FAILED: False,
    Reason.REGISTRY_UNAVAILABLE: False,
    Reason.INJECTED_CONTAINER_FAILED: False,
    Reason.POD_SANDBOX_FAILED: False,
    Reason.NODE_DISK_FULL: False,
    Reason.DRIVER_UNAVAILABLE: False,
}


@pytest.mark.parametrize("reason", Reason)
def test_whether_a_reason_that_lasts_may_roll_a_revision_back_before_the_deadline(reason: Reason) -> None:
    """Each reason that may pass by itself has a row."""
    assert reason.row.ends is not Ends.BY_TIME or reason in MAY_ROLL_BACK
    moment = Progress(2, 3, 1, 2, (), False, False, False, reason, "")
    failure = StatusFailure(reason, "", "", lasted=3600.0)
    found = rollout_of(RolloutDecision(), "new", moment, failure, is_pending=False, previous={"stableRevision": "old"})
    assert ("failedRevision" in found) is MAY_ROLL_BACK.get(reason, "failedRevision" in found)


CLAIM = "x-start-cache"


def test_a_rollback_keeps_the_claim_that_its_pods_mount() -> None:
    """The edit that failed had removed spec.startCache; what serves again needs its claim."""
    world = serving(2, startCache={"size": "2Gi"})
    edited(world, rollout=AUTO, startCache=None)
    world.settle()
    fail(world)
    world.serve()
    decision = world.decide()
    assert CLAIM in {child["metadata"]["name"] for child in decision.desired}
    assert [prune.name for prune in decision.prune] == []


@pytest.mark.parametrize(
    ("recorded", "now", "restored"),
    [
        ({"startCache": {"size": "2Gi"}}, {}, {"size": "2Gi"}),
        ({"startCache": {"size": "2Gi"}}, {"startCache": {"size": "4Gi"}}, {"size": "4Gi"}),
        ({}, {"startCache": {"size": "4Gi"}}, None),
    ],
    ids=["removed since", "grown since", "added since"],
)
def test_whether_there_is_a_claim_is_the_revisions(recorded: Json, now: Json, restored: Json | None) -> None:
    before, after = parse_spec(spec(**recorded)), parse_spec(spec(**now))
    returned = with_recorded_fields(after, recorded_spec(before))
    assert revision_key(returned) == revision_key(before)
    assert (returned.start_cache and returned.start_cache.model_dump(exclude_none=True)) == restored
