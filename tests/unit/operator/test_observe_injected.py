"""Containers that others add to a pod: what fails is named as theirs, and what waits for them says so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_api.reasons import Reason
from llmservice_operator.observe.failures.failure import FailureContext
from llmservice_operator.observe.failures.pod_events import PodEvents
from llmservice_runtime.contract import FailureReason

from tests.unit.decide_world import a_pod
from tests.unit.operator import failing_pods as pods
from tests.unit.operator.failing_pods import failure, must_fail, reports
from tests.unit.status_states import edited, served

Json = dict[str, Any]

OURS = FailureContext({}, containers=frozenset({"runtime", "licence", "fetch", "server"}))
RUNS: Json = {"running": {"startedAt": "2026-01-02T03:00:05Z"}}
ENDED: Json = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-02T03:01:00Z"}}
DENIED: Json = {"waiting": {"reason": "ErrImagePull", "message": "pull access denied"}}
NO_MAP: Json = {"waiting": {"reason": "CreateContainerConfigError", "message": 'configmap "istio-ca" not found'}}
BACK_OFF: Json = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container=x"}}


def with_container(
    name: str, state: Json, *, kind: str = "plain", server_state: Json | None = None, **more: Any
) -> Json:
    """A pod with one more container: plain, init or sidecar; by default its server is ready."""
    is_ready = server_state is None
    status = pods.server(server_state or RUNS, ready=is_ready, started=is_ready)
    status["conditions"][1]["lastTransitionTime"] = "2026-01-02T03:00:00Z"
    container = {"name": name, "state": state, "ready": False, "started": False, "restartCount": 0} | more
    where = "containerStatuses" if kind == "plain" else "initContainerStatuses"
    status[where] = [*status[where], container]
    shown = pods.pod(status=status)
    if kind == "sidecar":
        shown["spec"]["initContainers"] = [{"name": name, "restartPolicy": "Always"}]
    return shown


CASES: dict[str, tuple[Json, str]] = {
    "a plain one ended": (with_container("agent", ENDED), "ended with exit code 1 (Error)"),
    "it cannot be pulled": (with_container("agent", DENIED), "does not start: ErrImagePull: pull access denied"),
    "it lacks a ConfigMap": (
        with_container("agent", NO_MAP),
        'does not start: CreateContainerConfigError: configmap "istio-ca" not found',
    ),
    "it is not ready": (with_container("agent", RUNS), "is not ready"),
    "it ends again and again": (
        with_container("agent", BACK_OFF, lastState=ENDED, restartCount=3),
        "ended with exit code 1 (Error)",
    ),
    "a sidecar ended": (with_container("agent", ENDED, kind="sidecar"), "ended with exit code 1 (Error)"),
    "a sidecar is not ready": (with_container("agent", RUNS, kind="sidecar", started=True), "is not ready"),
    "an init container ended": (
        with_container("agent", ENDED, kind="init", server_state={"waiting": {"reason": "PodInitializing"}}),
        "ended with exit code 1 (Error)",
    ),
    "a sidecar cannot be pulled": (
        with_container("agent", DENIED, kind="sidecar", server_state={"waiting": {"reason": "PodInitializing"}}),
        "does not start: ErrImagePull: pull access denied",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_container_of_others_is_named_as_theirs(case: str) -> None:
    shown, words = CASES[case]
    found = must_fail(shown, context=OURS)
    assert str(found.reason) == "InjectedContainerFailed"
    assert f"Container agent {words}" in found.message
    assert "is not of this service" in found.message
    is_ready = shown["status"]["containerStatuses"][0]["ready"]
    assert ("The server itself is ready" in found.message) is is_ready
    assert "spec.runtime.image" not in found.remedy
    assert found.evidence
    assert found.is_final is (case == "it ends again and again")
    assert must_fail(shown, before=found, context=OURS).to_object() == found.to_object()


def test_a_server_that_got_ready_meanwhile_is_said_to_be() -> None:
    early = must_fail(with_container("agent", BACK_OFF, lastState=ENDED, server_state=RUNS), context=OURS)
    late = must_fail(with_container("agent", BACK_OFF, lastState=ENDED), before=early, context=OURS)
    assert "The server itself is ready" not in early.message
    assert "The server itself is ready" in late.message


def test_the_users_own_container_is_the_services() -> None:
    shown = with_container("licence", ENDED, kind="init", server_state={"waiting": {"reason": "PodInitializing"}})
    assert must_fail(shown, context=OURS).reason is Reason.INIT_CONTAINER_FAILED


def test_what_the_server_reports_comes_first() -> None:
    message = json.dumps({"version": 1, "reason": "KVCacheTooSmall", "message": "What.", "remedy": "Do this."})
    end = {"terminated": {"exitCode": 1, "reason": "Error", "message": message}}
    for kind in ("plain", "sidecar"):
        shown = with_container("agent", BACK_OFF, kind=kind, lastState=ENDED, restartCount=7, server_state=end)
        found = must_fail(shown, context=OURS)
        assert (found.reason, found.restarts) == (Reason(FailureReason.KV_CACHE_TOO_SMALL), 0)


def test_probes_of_others_are_not_the_server_s() -> None:
    """Their Events are about the same pod."""
    said = 'Readiness probe failed: Get "http://10.244.0.9:15021/healthz/ready": dial tcp: i/o timeout'
    event = {"reason": "Unhealthy", "message": said, "lastTimestamp": "2026-01-02T03:03:00Z"}
    was_ready = pods.pod(status=pods.running(started=True, unready_since="2026-01-02T03:03:00Z"))
    found: dict[str, str | None] = {}
    for name in ("agent", "server"):
        about = event | {"involvedObject": {"fieldPath": f"spec.containers{{{name}}}"}}
        context = FailureContext(reports(None), PodEvents.of({"x-0": [about]}))
        shown = failure(was_ready, context=context)
        found[name] = None if shown is None else str(shown.reason)
    assert found == {"agent": None, "server": "ProbeBlocked"}


def test_the_operator_knows_its_own_containers_from_what_it_built() -> None:
    """By the record of the revision; the status says what the pod waits for, and not that the model is loaded."""
    world = served()
    edited(world)
    world.settle()
    new = a_pod("x-new", world.revision())
    new["status"] = with_container("agent", ENDED)["status"]
    world.pods["x-new"] = new
    world.roll_out(updated=1, replicas=2)
    world.settle()
    assert world.condition("Ready")[1] == "InjectedContainerFailed"
    new["status"] = with_container("fetch", RUNS, kind="sidecar")["status"]
    world.settle()
    assert world.condition("Ready")[1] != "InjectedContainerFailed"


STAGES: dict[str, tuple[Json, str]] = {
    "a container of the user's is not ready": (
        with_container("licence", RUNS, kind="sidecar", started=True),
        "The server is ready; container licence of its pod is not.",
    ),
    "a readiness gate": (
        with_container("licence", RUNS, kind="sidecar", started=True, ready=True),
        "The server is ready; a readiness gate of its pod is not met.",
    ),
    "an init container runs": (
        with_container("agent", RUNS, kind="init", server_state={"waiting": {"reason": "PodInitializing"}}),
        "the server waits for container agent.",
    ),
    "a sidecar is not up": (
        with_container("agent", RUNS, kind="sidecar", server_state={"waiting": {"reason": "PodInitializing"}}),
        "the server waits for container agent.",
    ),
}


SIDECAR = {"name": "licence", "image": "licences:1", "restartPolicy": "Always"}


@pytest.mark.parametrize("case", STAGES)
def test_the_progress_names_the_container_that_is_waited_for(case: str) -> None:
    shown, words = STAGES[case]
    world = served()
    edited(world, podTemplate={"spec": {"initContainers": [SIDECAR]}})
    new = a_pod("x-new", world.revision(), address="10.244.0.9")
    new["status"], new["spec"] = shown["status"], new["spec"] | {"nodeName": "node-a", **shown["spec"]}
    world.pods["x-new"] = new
    world.roll_out(updated=1, replicas=2)
    world.settle()
    assert words in world.conditions()["Ready"]["message"]
