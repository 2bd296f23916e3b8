"""Drift, on live objects recorded from a real API server: each child as it was, and as others left it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_api.constants import APPLIED_HASH_ANNOTATION
from llmservice_operator.children import desired_children
from llmservice_operator.decision import Decision
from llmservice_operator.facts.children import RevisionFacts, ServiceFacts
from llmservice_operator.facts.drift import removal_patch
from llmservice_operator.manifests.revision import NO_CHOICES
from llmservice_operator.observe.observed import AppliedRecord, Observed
from llmservice_operator.revisions import desired_revision, match_revision
from llmservice_operator.workload.deployment import DeploymentFacts

from tests.unit.decide_world import FACTS, FIXTURES, SETTINGS, World, an_llmservice

SPEC = {
    "model": {"uri": "hf://Qwen/Qwen2.5-7B-Instruct"},
    "scaling": {"replicas": 2},
    "parallelism": {"tensorParallelSize": 2},
    "runtime": {
        "resources": {"limits": {"memory": "16384Mi"}, "requests": {"cpu": "1000m"}},
        "env": [{"name": "EMPTY", "value": ""}],
    },
}
BUDGET = FACTS["PodDisruptionBudget"]
FILES = ("service", "deployment", "budget", "revision")


def recorded(name: str) -> dict[str, Any]:
    """One live object. Its hash of what was asked for is replaced by today's, which other names went into."""
    obj: dict[str, Any] = json.loads((FIXTURES / "drift" / f"{name}.json").read_text())
    service = World(an_llmservice(SPEC)).service()
    revision = json.loads((FIXTURES / "drift" / "revision.json").read_text())
    match = match_revision(service, [RevisionFacts.from_object(revision)])
    revision = desired_revision(service, match, match.chosen or NO_CHOICES, SETTINGS)
    children = desired_children(service, service.spec, revision, "Surge", SETTINGS)
    hashes = {child.id[0]: child.input_hash for child in children}
    obj["metadata"]["annotations"][APPLIED_HASH_ANNOTATION] = hashes[obj["kind"]]
    return obj


def decided(
    child: str = "",
    fixture: str = "",
    *,
    live: Any = None,
    without: str = "",
    records: dict[tuple[str, str], AppliedRecord] | None = None,
) -> Decision:
    """Decide about the recorded children, one of them replaced by a fixture or an object."""
    changed = {child: live or recorded(fixture)} if child else {}
    found = {name: recorded(name) for name in FILES if name != without} | changed
    observed = Observed(
        service=ServiceFacts.from_object(found["service"]) if "service" in found else None,
        workloads=(DeploymentFacts.from_object(found["deployment"]),) if "deployment" in found else (),
        others=(BUDGET.from_object(found["budget"]),) if "budget" in found else (),
        revisions=(RevisionFacts.from_object(found["revision"]),) if "revision" in found else (),
        applied=records or {},
    )
    return World(an_llmservice(SPEC)).decide(observed)


def test_children_with_all_their_defaults_are_as_asked_for() -> None:
    """The first pass after a start: no record of what was applied, and yet no write."""
    assert decided().apply == ()


DRIFTS = [
    pytest.param("deployment", "image", "containers[server].image", True, id="image"),
    pytest.param("deployment", "args", "containers[server].args", True, id="args"),
    pytest.param("deployment", "env-added", "containers[server].env[FOO]", True, id="added env variable"),
    pytest.param("deployment", "env-changed", "containers[server].env[HOME].value", True, id="changed env variable"),
    pytest.param("deployment", "env-removed", "containers[server].env[HOME]", False, id="removed env variable"),
    pytest.param("deployment", "replicas", "spec.replicas", True, id="replicas"),
    pytest.param("service", "selector-added", "spec.selector", True, id="key added to the selector"),
    pytest.param("service", "selector-changed", "spec.selector", True, id="changed selector"),
    pytest.param("deployment", "probe-changed", "readinessProbe.periodSeconds", True, id="changed probe"),
    pytest.param("deployment", "probe-removed", "livenessProbe", False, id="removed probe"),
    pytest.param("deployment", "sidecar", "containers[side]", True, id="added container, volume and hostNetwork"),
    pytest.param("deployment", "paused", "spec.paused", True, id="rollout paused"),
    pytest.param("deployment", "owners-reset", "field owners", True, id="managedFields reset"),
]


@pytest.mark.parametrize(("child", "fixture", "reason", "remove_foreign_fields"), DRIFTS)
def test_a_drift_is_put_right(child: str, fixture: str, reason: str, remove_foreign_fields: bool) -> None:
    (apply,) = decided(child, fixture).apply
    assert apply.kind == recorded(child)["kind"]
    assert reason in apply.reason
    assert apply.remove_foreign_fields is remove_foreign_fields
    assert apply.known_uid == recorded(child)["metadata"]["uid"]


@pytest.mark.parametrize("child", FILES)
def test_a_deleted_child_is_made_again(child: str) -> None:
    kind = recorded(child)["kind"]
    (apply, *others) = decided(without=child).apply
    assert (apply.kind, apply.known_uid) == (kind, None)
    # Without a record the template is today's, and the recorded pods are an earlier operator's.
    assert [other.kind for other in others] == (["Deployment"] if child == "revision" else [])


def test_what_others_write_into_metadata_stays() -> None:
    """An annotation, a label, and `kubectl rollout restart`."""
    live = recorded("metadata-of-others")
    assert "kubectl.kubernetes.io/restartedAt" in live["spec"]["template"]["metadata"]["annotations"]
    assert live["metadata"]["labels"]["cost"] == "1"
    assert decided("deployment", "metadata-of-others").apply == ()


def test_what_was_tried_once_is_not_tried_again() -> None:
    """A webhook that rewrites our images must not make the two of us write for ever."""
    (apply,) = decided("deployment", "image").apply
    record = AppliedRecord(apply.input_hash, FACTS["Deployment"].from_object(recorded("image")).managed_hash)
    assert decided("deployment", "image", records={("Deployment", "x"): record}).apply == ()
    assert decided("deployment", "args", records={("Deployment", "x"): record}).apply != ()


def test_a_field_that_is_no_longer_asked_for_is_applied_away() -> None:
    """Nothing of the manifest is missing in the live object then; only the hash tells."""
    earlier = recorded("deployment")
    earlier["metadata"]["annotations"][APPLIED_HASH_ANNOTATION] = "of an earlier manifest"
    (apply,) = decided("deployment", live=earlier).apply
    assert apply.kind == "Deployment"


@pytest.mark.parametrize(
    ("fixture", "removed"),
    [
        pytest.param(
            "env-added",
            ["/spec/template/spec/initContainers/0/env", "/spec/template/spec/containers/0/env/16"],
            id="env",
        ),
        pytest.param(
            "sidecar",
            ["/spec/template/spec/volumes/0", "/spec/template/spec/hostNetwork", "/spec/template/spec/containers/0"],
            id="container",
        ),
        pytest.param("paused", ["/spec/paused"], id="paused"),
        pytest.param("metadata-of-others", [], id="metadata stays"),
        pytest.param("deployment", [], id="nothing"),
    ],
)
def test_only_what_others_added_is_taken_out(fixture: str, removed: list[str]) -> None:
    live = recorded(fixture)
    operations = removal_patch(live)
    assert sorted(o["path"] for o in operations if o["op"] == "remove") == sorted(removed)
    for operation in operations:
        if operation["op"] == "test":
            assert _at(live, operation["path"]) == operation["value"]


def test_every_list_item_on_the_way_is_tested_before_anything_is_removed() -> None:
    operations = removal_patch(recorded("env-added"))
    kinds = [operation["op"] for operation in operations]
    assert kinds == sorted(kinds, reverse=True)
    tests = {o["path"]: o["value"] for o in operations if o["op"] == "test"}
    assert tests["/spec/template/spec/containers/0/name"] == "server"
    assert tests["/spec/template/spec/containers/0/env/16/name"] == "FOO"


def _at(obj: Any, pointer: str) -> Any:
    for token in pointer.split("/")[1:]:
        obj = obj[int(token)] if isinstance(obj, list) else obj[token]
    return obj
