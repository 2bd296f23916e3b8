"""Each failure that a pod shows has its own reason, tells what it was seen by, and stays as it is while it lasts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmservice_operator.api.reasons import Reason
from llmservice_operator.observe.failures.failure import failure_of
from llmservice_operator.observe.failures.status_failure import StatusFailure
from llmservice_runtime.contract import FailureReason

from tests.unit import failing_pods as pods
from tests.unit.failing_pods import REVISION, facts

Json = dict[str, Any]

NOW = "2026-01-02T03:04:05Z"
NONE_FITS = "0/2 nodes are available: {}. preemption: 0/2 nodes are available: 2 Preemption is not helpful."


def look(*shown: Json, before: StatusFailure | None = None, now: str = NOW) -> StatusFailure | None:
    return failure_of(None, facts(*shown), REVISION, before.to_object() if before else None, now)


def must(*shown: Json, before: StatusFailure | None = None, now: str = NOW) -> StatusFailure:
    found = look(*shown, before=before, now=now)
    assert found is not None
    return found


def waiting(reason: str, message: str) -> Json:
    return pods.pod(status=pods.server({"waiting": {"reason": reason, "message": message}}))


def ended(code: int, reason: str = "Error", message: str = "", **more: Any) -> Json:
    end = {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-01-02T03:01:00Z"}
    return pods.pod(status=pods.server({"terminated": end}, **more))


def told_by_runtime(reason: str, **more: Any) -> str:
    return json.dumps({"version": 1, "reason": reason, "message": "What it was.", "remedy": "Do this.", **more})


def init(name: str, **end: Any) -> Json:
    status = pods.setting_up()
    status["initContainerStatuses"][0] = {"name": name, "ready": False, "state": {"terminated": end}}
    return pods.pod(status=status)


PULL = 'failed to pull and unpack image "{0}": failed to resolve reference "{0}": {1}'
IMAGE = "10.244.0.1:5000/vllm:v0.32.0"
OOM = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-02T03:01:00Z"}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container=fetch"}}
RUNS = {"running": {"startedAt": "2026-01-02T03:02:00Z"}}
FAILURES = {
    "no GPU": (pods.unplaced(NONE_FITS.format("2 Insufficient nvidia.com/gpu")), "InsufficientGPUs", "nvidia.com/gpu"),
    "no CPU": (pods.unplaced(NONE_FITS.format("2 Insufficient cpu")), "InsufficientResources", "cpu"),
    "no place for pods": (pods.unplaced(NONE_FITS.format("2 Too many pods")), "InsufficientResources", "pods"),
    "a taint": (
        pods.unplaced(NONE_FITS.format("2 node(s) had untolerated taint(s)")),
        "UntoleratedTaint",
        "untolerated taint",
    ),
    "a taint, as older schedulers say it": (
        pods.unplaced(NONE_FITS.format("2 node(s) had untolerated taint {gpu: only, x}")),
        "UntoleratedTaint",
        "{gpu: only, x}",
    ),
    "cordoned": (pods.unplaced(NONE_FITS.format("2 node(s) were unschedulable")), "UntoleratedTaint", "unschedulable"),
    "a selector": (
        pods.unplaced(NONE_FITS.format("2 node(s) didn't match Pod's node affinity/selector")),
        "NoMatchingNode",
        "affinity/selector",
    ),
    "spreading": (
        pods.unplaced(NONE_FITS.format("2 node(s) didn't match pod topology spread constraints")),
        "NoMatchingNode",
        "spread",
    ),
    "GPUs are short where taints let it": (
        pods.unplaced(NONE_FITS.format("1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s)")),
        "InsufficientGPUs",
        "taint",
    ),
    "no claim": (pods.unplaced('persistentvolumeclaim "weights" not found'), "VolumeUnavailable", '"weights"'),
    "a claim without a volume": (
        pods.unplaced("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"),
        "VolumeUnavailable",
        "unbound",
    ),
    "a volume elsewhere": (
        pods.unplaced(NONE_FITS.format("2 node(s) didn't match PersistentVolume's node affinity")),
        "VolumeUnavailable",
        "PersistentVolume",
    ),
    "something new": (pods.unplaced(NONE_FITS.format("2 node(s) were out of luck")), "Unschedulable", "out of luck"),
    "no such image": (waiting("ErrImagePull", PULL.format(IMAGE, f"{IMAGE}: not found")), "ImageNotFound", IMAGE),
    "never to be pulled": (
        waiting("ErrImageNeverPull", f'Container image "{IMAGE}" is not present with pull policy of Never'),
        "ImageNotFound",
        "Never",
    ),
    "an image that is denied": (
        waiting("ErrImagePull", PULL.format(IMAGE, "unexpected status from HEAD request: 403 Forbidden")),
        "ImagePullDenied",
        "403",
    ),
    "a login is asked for": (
        waiting(
            "ImagePullBackOff",
            f'Back-off pulling image "{IMAGE}": ErrImagePull: '
            + PULL.format(
                IMAGE,
                "pull access denied, repository does not exist or may require authorization: authorization failed: no "
                "basic auth credentials",
            ),
        ),
        "ImagePullDenied",
        "authorization failed",
    ),
    "a registry that is away": (
        waiting("ErrImagePull", PULL.format(IMAGE, "dial tcp 10.244.0.1:5000: connect: connection refused")),
        "ImagePullFailed",
        "refused",
    ),
    "a Secret that is missing": (
        waiting("CreateContainerConfigError", 'secret "hf" not found'),
        "ContainerConfigInvalid",
        '"hf"',
    ),
    "an init container": (
        init("guest", exitCode=3, reason="Error", message="no\nway\n"),
        "InitContainerFailed",
        "guest",
    ),
    "the container that fetches": (
        pods.pod(status=pods.fetching(BACK_OFF, restarts=3, last=OOM)),
        "FetchContainerFailed",
        "fetch, which fetches models and adapters, ended with exit code 137 (OOMKilled)",
    ),
    "its Secret": (
        pods.pod(
            status=pods.fetching(
                {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}}
            )
        ),
        "ContainerConfigInvalid",
        'Container fetch: CreateContainerConfigError: secret "hf" not found',
    ),
    "the container's memory": (ended(137, "OOMKilled"), "MemoryLimitExceeded", "OOMKilled"),
    "no word": (ended(3), "Unknown", "exit code 3"),
    "no word three times": (ended(3, restarts=2), "CrashLoop", "again and again"),
    "the runtime's own word": (ended(1, message=told_by_runtime("KVCacheTooSmall")), "KVCacheTooSmall", "What it was"),
    "a lost node": (pods.pod(status=pods.lost(), node="node-b"), "NodeLost", "node-b"),
    "an eviction": (pods.pod(status=pods.evicted(), node="node-b"), "Evicted", "ephemeral-storage"),
    "a GPU that its plugin lost": (
        pods.pod(
            status={
                "phase": "Failed",
                "reason": "UnexpectedAdmissionError",
                "message": "Pod was rejected: Allocate failed due to no healthy devices present",
                "conditions": [pods.SCHEDULED],
            }
        ),
        "PodRejected",
        "no healthy devices",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_its_own_reason_its_evidence_and_a_remedy(case: str) -> None:
    shown, reason, word = FAILURES[case]
    found = must(shown)
    assert found.reason == reason
    assert word in found.message
    assert found.evidence
    assert found.remedy
    assert found.since
    assert found.to_object()["reason"] == reason


@pytest.mark.parametrize("case", FAILURES)
def test_it_stays_word_for_word_while_it_lasts(case: str) -> None:
    shown = FAILURES[case][0]
    first = must(shown)
    assert must(shown, before=first, now="2026-01-02T09:00:00Z").to_object() == first.to_object()


def test_every_reason_of_the_table_has_its_own_text() -> None:
    reasons = {Reason(reason) for _, reason, _ in FAILURES.values()}
    assert len({reason.remedy for reason in reasons}) == len(reasons)


def test_nothing_is_wrong_with_a_readiness_gate_that_waits() -> None:
    status = pods.lost()
    status["conditions"][1]["reason"] = "ReadinessGatesNotReady"
    assert look(pods.pod(status=status)) is None


def test_figures_of_an_eviction_are_left_out() -> None:
    texts = {must(pods.pod(status=pods.evicted(left=left))).message for left in ("1Ki", "1.5Gi", "0")}
    assert len(texts) == 1
    assert "available:" not in texts.pop()


def test_an_eviction_is_reported_until_what_replaces_the_pod_is_ready() -> None:
    out = pods.pod("x-0", status=pods.evicted())
    new = pods.pod("x-1", status=pods.running(started=False), creationTimestamp="2026-01-02T03:00:04Z")
    assert must(out, new).reason is Reason.EVICTED
    new["status"]["conditions"][1] = {"type": "Ready", "status": "True"}
    assert look(out, new) is None


def test_an_eviction_of_long_ago_says_nothing_of_a_pod_that_starts_now() -> None:
    out = pods.pod("x-0", status=pods.evicted(at="2026-01-01T03:00:00Z"))
    new = pods.pod("x-1", status=pods.running(started=False), creationTimestamp="2026-01-02T03:00:04Z")
    assert look(out, new) is None


def test_an_eviction_is_reported_while_no_pod_replaces_it_yet_unless_it_is_old() -> None:
    """A service that was at zero has no pod either at first, and what was put out once may lie there still."""
    assert look(pods.pod(status=pods.evicted(at="2026-01-01T03:00:00Z"))) is None
    recent = must(pods.pod(status=pods.evicted(at="2026-01-02T03:04:00Z")))
    assert recent.reason is Reason.EVICTED
    later = look(pods.pod(status=pods.evicted(at="2026-01-02T03:04:00Z")), before=recent, now="2026-01-02T09:00:00Z")
    assert later == recent, "nothing has come in its place since"


def test_the_replacement_s_own_failure_shows_more_than_the_eviction() -> None:
    out = pods.pod("x-0", status=pods.evicted())
    new = ended(1, message=told_by_runtime("KVCacheTooSmall"))
    new["metadata"]["name"] = "x-1"
    assert must(out, new).reason is Reason(FailureReason.KV_CACHE_TOO_SMALL)


def test_a_crash_loop_is_one_story_and_final() -> None:
    """Unknown at first; from the third end on a loop, which further restarts do not change."""
    told: StatusFailure | None = None
    stories = []
    for restarts in range(6):
        for shown in (
            ended(3, restarts=restarts),
            pods.pod(
                status=pods.server(
                    {"waiting": {"reason": "CrashLoopBackOff", "message": f"back-off {restarts}0s restarting failed"}},
                    restarts=restarts,
                    last={"exitCode": 3, "reason": "Error", "finishedAt": f"2026-01-02T03:0{restarts}:00Z"},
                )
            ),
        ):
            told = must(shown, before=told)
            stories.append(json.dumps(told.to_object()))
    assert len(set(stories)) == 2
    assert told is not None
    assert told.is_final


def test_a_back_off_that_does_not_repeat_the_registry_s_answer_changes_nothing() -> None:
    first = must(FAILURES["an image that is denied"][0])
    vague = waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')
    assert must(vague, before=first).to_object() == first.to_object()


def test_an_image_that_came_after_all_is_no_failure_while_its_init_container_works() -> None:
    """It may work for many minutes."""
    first = must(waiting("ImagePullBackOff", "503 Service Unavailable"))
    assert look(pods.pod(status=pods.setting_up()), before=first) == first, "the kubelet says nothing in between"
    working = pods.setting_up()
    working["initContainerStatuses"][0]["state"] = {"running": {"startedAt": NOW}}
    assert look(pods.pod(status=working), before=first) is None


def test_a_drain_s_report_is_no_line_of_a_log() -> None:
    found = must(ended(143, message='{"version":1,"drain":{"cut":2}}'))
    assert found.evidence == ("exit code 143 (Error)",)


def test_an_end_that_was_asked_for_is_no_failure() -> None:
    """SIGTERM from inside, or by a liveness probe: it drained, and is started again."""
    end = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-01-02T03:01:00Z"}
    again = pods.pod(status=pods.server({"running": {"startedAt": "2026-01-02T03:01:02Z"}}, restarts=1, last=end))
    assert look(ended(0, "Completed")) is None
    assert look(again) is None


def test_a_server_that_reports_a_cut_counts_it_once_it_has_ended() -> None:
    (gone,) = facts(ended(0, "Completed", message='{"version":1,"drain":{"cut":2}}'))
    (strange,) = facts(ended(0, "Completed", message='{"version":1,"drain":{"cut":-7}}'))
    (log,) = facts(ended(0, "Completed", message="killed"))
    assert (gone.cut, strange.cut, log.cut) == (2, 0, 0)


def test_an_end_without_a_time_began_now() -> None:
    """A kubelet that starts again may not find a container any more: the API server would refuse `None` as a time."""
    lost = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
    shown = pods.pod(status=pods.server({"running": {"startedAt": None}}, last=lost, restarts=1))
    assert must(shown).to_object()["since"] == NOW


def test_a_failure_reported_without_a_time_is_reported_anew() -> None:
    told = must(pods.unplaced(NONE_FITS.format("2 Insufficient nvidia.com/gpu"))).to_object()
    found = failure_of(
        None,
        facts(pods.unplaced(NONE_FITS.format("2 Insufficient nvidia.com/gpu"))),
        REVISION,
        told | {"since": "yesterday"},
        NOW,
    )
    assert found is not None
    assert found.since == NOW


def test_no_more_lines_are_reported_than_a_status_takes() -> None:
    """Each team's nodes have a taint of their own."""
    causes = ", ".join(f"1 node(s) had untolerated taint {{team: t{n}}}" for n in range(100))
    told = must(pods.unplaced(NONE_FITS.format(causes)))
    assert len(told.to_object()["evidence"]) <= 64
    again = must(pods.unplaced(NONE_FITS.format(causes)), before=told)
    assert again.to_object() == told.to_object()


@pytest.mark.parametrize("name", ["runtime", "fetch"])
def test_an_image_of_the_operator_s_own_is_the_chart_s_matter(name: str) -> None:
    status = pods.setting_up()
    state = {"waiting": {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{IMAGE}"'}}
    status["initContainerStatuses"][0] = {"name": name, "ready": False, "state": state}
    found = must(pods.pod(status=status))
    assert name in found.message
    assert "services.imagePullSecrets" in found.remedy
    assert "spec.runtime.image" not in found.remedy


def test_a_fetch_container_that_runs_again_is_no_failure_and_no_restart_of_the_server() -> None:
    again = pods.pod(status=pods.fetching(RUNS, restarts=2, last=OOM, ready=True))
    again["spec"]["initContainers"] = [{"name": "fetch", "restartPolicy": "Always"}]
    assert look(again) is None
    (facts,) = pods.facts(again)
    assert facts.restarts == 0
    assert not facts.is_initializing
    again["status"]["containerStatuses"][0]["restartCount"] = 1
    (facts,) = pods.facts(again)
    assert facts.restarts == 1


def test_a_fetch_container_that_ends_again_and_again_is_final() -> None:
    once = must(pods.pod(status=pods.fetching({"terminated": OOM})))
    assert not once.is_final
    assert must(pods.pod(status=pods.fetching(BACK_OFF, restarts=3, last=OOM)), before=once).is_final


def test_what_the_server_says_of_itself_comes_before_a_fetch_container_that_runs() -> None:
    status = pods.fetching(RUNS, ready=True)
    end = {"exitCode": 1, "reason": "Error", "message": told_by_runtime("ModelAccessDenied")}
    status["containerStatuses"][0]["state"] = {"terminated": end}
    assert must(pods.pod(status=status)).reason is Reason(FailureReason.MODEL_ACCESS_DENIED)
