"""Each failure of a pod has its own reason and evidence, and its report stays unchanged while it lasts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llmservice_api.reasons import Reason
from llmservice_operator.observe.failures.failure import FailureContext
from llmservice_operator.observe.failures.pod_failure import StatusFailure
from llmservice_planner.room import NodeRoom, Room
from llmservice_runtime.contract import FailureReason

from tests.unit.operator import failing_pods as pods
from tests.unit.operator.failing_pods import NOW, facts, failure, must_fail

Json = dict[str, Any]

NONE_FITS = "0/2 nodes are available: {}. preemption: 0/2 nodes are available: 2 Preemption is not helpful."


def waiting(reason: str, message: str) -> Json:
    return pods.pod(status=pods.server({"waiting": {"reason": reason, "message": message}}))


def ended(code: int, reason: str = "Error", message: str = "", **more: Any) -> Json:
    end = {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-01-02T03:01:00Z"}
    return pods.pod(status=pods.server({"terminated": end}, **more))


def reported(reason: str) -> str:
    return json.dumps({"version": 1, "reason": reason, "message": "What it was.", "remedy": "Do this."})


def unplaced(cause: str) -> Json:
    return pods.unplaced(NONE_FITS.format(cause))


def init(name: str, **state: Any) -> Json:
    status = pods.setting_up()
    status["initContainerStatuses"][0] = {"name": name, "ready": False, "state": state}
    return pods.pod(status=status)


def pull(answer: str) -> Json:
    return waiting("ErrImagePull", f'failed to pull and unpack image "{IMAGE}": failed to resolve reference: {answer}')


IMAGE = "10.244.0.1:5000/vllm:v0.32.0"
NO_LOGIN = "pull access denied, repository does not exist or may require authorization: no basic auth credentials"
OOM = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-02T03:01:00Z"}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container=fetch"}}
NO_SECRET = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}}
FETCH_ENDS = pods.fetching(BACK_OFF, restarts=3, last=OOM)
RUNS = {"running": {"startedAt": "2026-01-02T03:02:00Z"}}
UNHEALTHY = {
    "phase": "Failed",
    "reason": "UnexpectedAdmissionError",
    "message": "Pod was rejected: Allocate failed due to no healthy devices present",
    "conditions": [pods.SCHEDULED],
}
FAILURES = {
    "no GPU": (unplaced("2 Insufficient nvidia.com/gpu"), "InsufficientGPUs", "nvidia.com/gpu"),
    "no CPU": (unplaced("2 Insufficient cpu"), "InsufficientResources", "cpu"),
    "no place for pods": (unplaced("2 Too many pods"), "InsufficientResources", "pods"),
    "a taint": (unplaced("2 node(s) had untolerated taint(s)"), "UntoleratedTaint", "untolerated taint"),
    "a taint with its key": (unplaced("2 node(s) had untolerated taint {a: b, x}"), "UntoleratedTaint", "{a: b, x}"),
    "cordoned": (unplaced("2 node(s) were unschedulable"), "UntoleratedTaint", "unschedulable"),
    "a selector": (unplaced("2 node(s) didn't match Pod's node affinity/selector"), "NoMatchingNode", "affinity"),
    "spreading": (unplaced("2 node(s) didn't match pod topology spread constraints"), "NoMatchingNode", "spread"),
    "no GPU, and a taint": (
        unplaced("1 Insufficient nvidia.com/gpu, 1 node(s) had taint"),
        "InsufficientGPUs",
        "taint",
    ),
    "no claim": (pods.unplaced('persistentvolumeclaim "weights" not found'), "VolumeUnavailable", '"weights"'),
    "an unbound claim": (unplaced("pod has unbound immediate PersistentVolumeClaims"), "VolumeUnavailable", "unbound"),
    "a volume elsewhere": (
        unplaced("2 node(s) didn't match PersistentVolume's node affinity"),
        "VolumeUnavailable",
        "V",
    ),
    "an unknown cause": (unplaced("2 node(s) were out of luck"), "Unschedulable", "out of luck"),
    "no such image": (pull(f"{IMAGE}: not found"), "ImageNotFound", IMAGE),
    "never to be pulled": (waiting("ErrImageNeverPull", "pull policy of Never"), "ImageNotFound", "Never"),
    "an image that is denied": (pull("unexpected status: 403 Forbidden"), "ImagePullDenied", "403"),
    "no login": (waiting("ImagePullBackOff", f"Back-off: {NO_LOGIN}"), "ImagePullDenied", "no basic auth"),
    "a registry that is away": (pull("dial tcp: connect: connection refused"), "RegistryUnavailable", "refused"),
    "a missing Secret": (pods.pod(status=pods.server(NO_SECRET)), "ContainerConfigInvalid", '"hf"'),
    "an init container": (init("guest", terminated={"exitCode": 3, "message": "no\n"}), "InitContainerFailed", "guest"),
    "the fetch container": (
        pods.pod(status=FETCH_ENDS),
        "FetchContainerFailed",
        "fetch, which fetches models and adap",
    ),
    "how it ended": (pods.pod(status=FETCH_ENDS), "FetchContainerFailed", "ended with exit code 137 (OOMKilled)"),
    "its Secret": (
        pods.pod(status=pods.fetching(NO_SECRET)),
        "ContainerConfigInvalid",
        "Container fetch: CreateContai",
    ),
    "the container's memory": (ended(137, "OOMKilled"), "MemoryLimitExceeded", "OOMKilled"),
    "no report": (ended(3), "Unknown", "exit code 3"),
    "no report three times": (ended(3, restarts=2), "CrashLoop", "again and again"),
    "the runtime's report": (ended(1, message=reported("KVCacheTooSmall")), "KVCacheTooSmall", "What it was"),
    "a lost node": (pods.pod(status=pods.lost(), node="node-b"), "NodeLost", "node-b"),
    "an eviction": (pods.pod(status=pods.evicted(), node="node-b"), "Evicted", "ephemeral-storage"),
    "a GPU that its plugin lost": (pods.pod(status=UNHEALTHY), "PodRejected", "no healthy devices"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_each_failure_has_its_reason_evidence_and_remedy_and_lasts_unchanged(case: str) -> None:
    shown, reason, text = FAILURES[case]
    found = must_fail(shown)
    assert found.reason == found.to_object()["reason"] == reason
    assert text in found.message
    assert all((found.evidence, found.remedy, found.since))
    assert must_fail(shown, before=found, now="2026-01-02T09:00:00Z").to_object() == found.to_object()


def test_every_reason_of_the_table_has_its_own_remedy() -> None:
    reasons = {Reason(reason) for _, reason, _ in FAILURES.values()}
    assert len({reason.remedy for reason in reasons}) == len(reasons)


def test_a_readiness_gate_that_is_open_is_no_failure() -> None:
    status = pods.lost()
    status["conditions"][1]["reason"] = "ReadinessGatesNotReady"
    assert failure(pods.pod(status=status)) is None


def test_figures_of_an_eviction_are_left_out() -> None:
    (text,) = {must_fail(pods.pod(status=pods.evicted(left=left))).message for left in ("1Ki", "1.5Gi", "0")}
    assert "available:" not in text


def replacement() -> Json:
    return pods.pod("x-1", status=pods.running(started=False), creationTimestamp="2026-01-02T03:00:04Z")


def test_an_eviction_is_reported_until_its_replacement_is_ready_or_fails_itself() -> None:
    out, new = pods.pod(status=pods.evicted()), replacement()
    assert must_fail(out, new).reason is Reason.EVICTED
    new["status"]["conditions"][1] = {"type": "Ready", "status": "True"}
    assert failure(out, new) is None
    failed = ended(1, message=reported("KVCacheTooSmall"))
    failed["metadata"]["name"] = "x-1"
    assert must_fail(out, failed).reason is Reason(FailureReason.KV_CACHE_TOO_SMALL)


def test_an_old_eviction_is_no_failure_of_a_new_pod_or_of_a_service_without_pods() -> None:
    """A service that was at zero has no pod either at first, and an evicted one may lie there still."""
    old = pods.pod(status=pods.evicted(at="2026-01-01T03:00:00Z"))
    assert failure(old) is None
    assert failure(old, replacement()) is None
    out = pods.pod(status=pods.evicted(at="2026-01-02T03:04:00Z"))
    recent = must_fail(out)
    assert recent.reason is Reason.EVICTED
    assert failure(out, before=recent, now="2026-01-02T09:00:00Z") == recent, "nothing has replaced it since"


def test_a_crash_loop_is_reported_twice_and_final() -> None:
    """Unknown at first; from the third end on a loop, which further restarts do not change."""
    before: StatusFailure | None = None
    reports = set()
    for restarts in range(6):
        message = f"back-off {restarts}0s restarting failed"
        end = {"exitCode": 3, "reason": "Error", "finishedAt": f"2026-01-02T03:0{restarts}:00Z"}
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
        looping = pods.pod(status=pods.server(state, restarts=restarts, last=end))
        for shown in (ended(3, restarts=restarts), looping):
            before = must_fail(shown, before=before)
            reports.add(json.dumps(before.to_object()))
    assert len(reports) == 2
    assert before is not None
    assert before.is_final


def test_a_back_off_that_does_not_repeat_the_registry_s_answer_changes_nothing() -> None:
    first = must_fail(FAILURES["an image that is denied"][0])
    vague = waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')
    assert must_fail(vague, before=first).to_object() == first.to_object()


def test_an_image_that_was_pulled_at_last_is_no_failure_while_its_init_container_runs() -> None:
    first = must_fail(waiting("ImagePullBackOff", "503 Service Unavailable"))
    assert failure(pods.pod(status=pods.setting_up()), before=first) == first, "the kubelet reports nothing in between"
    assert failure(init("runtime", running={"startedAt": NOW}), before=first) is None


def test_a_drain_s_report_is_no_log_line() -> None:
    assert must_fail(ended(143, message='{"version":1,"drain":{"cut":2}}')).evidence == ("exit code 143 (Error)",)


def test_an_exit_on_request_is_no_failure() -> None:
    """SIGTERM from inside, or by a liveness probe: it drained, and is started again."""
    end = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-01-02T03:01:00Z"}
    assert failure(ended(0, "Completed")) is None
    assert failure(pods.pod(status=pods.server(RUNS, restarts=1, last=end))) is None


@pytest.mark.parametrize(
    ("message", "cut"), [('{"version":1,"drain":{"cut":2}}', 2), ('{"version":1,"drain":{"cut":-7}}', 0), ("killed", 0)]
)
def test_cut_streams_are_counted_once_the_server_has_ended(message: str, cut: int) -> None:
    (projection,) = facts(ended(0, "Completed", message=message))
    assert projection.cut == cut


def test_a_failure_without_a_time_begins_now() -> None:
    """A kubelet that starts again may not find a container any more: the API server would refuse `None` as a time."""
    lost = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
    shown = pods.pod(status=pods.server({"running": {"startedAt": None}}, last=lost, restarts=1))
    assert must_fail(shown).to_object()["since"] == NOW
    first = must_fail(unplaced("2 Insufficient nvidia.com/gpu"), now="2026-01-02T03:00:00Z")
    assert must_fail(unplaced("2 Insufficient nvidia.com/gpu"), before=replace(first, since="yesterday")).since == NOW


def test_no_more_lines_are_reported_than_a_status_takes() -> None:
    """Each team's nodes have a taint of their own."""
    shown = unplaced(", ".join(f"1 node(s) had untolerated taint {{team: t{n}}}" for n in range(100)))
    first = must_fail(shown)
    assert len(first.to_object()["evidence"]) <= 64
    assert must_fail(shown, before=first).to_object() == first.to_object()


@pytest.mark.parametrize("name", ["runtime", "fetch"])
def test_a_missing_image_of_the_operator_refers_to_the_chart(name: str) -> None:
    found = must_fail(
        init(name, waiting={"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{IMAGE}"'})
    )
    assert name in found.message
    assert "services.imagePullSecrets" in found.remedy
    assert "spec.runtime.image" not in found.remedy


def test_restarts_of_a_fetch_container_that_runs_again_are_no_failure_and_not_the_server_s() -> None:
    again = pods.pod(status=pods.fetching(RUNS, restarts=2, last=OOM, ready=True))
    again["spec"]["initContainers"] = [{"name": "fetch", "restartPolicy": "Always"}]
    assert failure(again) is None
    (before,) = facts(again)
    assert (before.restarts, before.is_initializing) == (0, False)
    again["status"]["containerStatuses"][0]["restartCount"] = 1
    assert facts(again)[0].restarts == 1


def test_a_fetch_container_that_ends_again_and_again_is_final() -> None:
    once = must_fail(pods.pod(status=pods.fetching({"terminated": OOM})))
    assert not once.is_final
    assert must_fail(pods.pod(status=pods.fetching(BACK_OFF, restarts=3, last=OOM)), before=once).is_final


def test_the_server_s_own_report_comes_before_a_fetch_container_that_runs() -> None:
    status = pods.fetching(RUNS, ready=True)
    end = {"exitCode": 1, "reason": "Error", "message": reported("ModelAccessDenied")}
    status["containerStatuses"][0]["state"] = {"terminated": end}
    assert must_fail(pods.pod(status=status)).reason is Reason(FailureReason.MODEL_ACCESS_DENIED)


def test_memory_of_the_container_that_copies_the_supervisor_is_the_chart_s() -> None:
    found = must_fail(init("runtime", terminated=OOM))
    assert (found.reason, "services.helperMemory" in found.remedy) == (Reason.INIT_CONTAINER_FAILED, True)
    assert "services.helperMemory" not in must_fail(init("guest", terminated=OOM)).remedy


LIMITED = "LimitRanger plugin set: cpu, memory limit for {}; cpu request for container server"
KILLED = {"terminated": OOM}
# Who was killed, what LimitRanger noted on the pod (plugin/pkg/admission/limitranger/admission.go), whether it is named
MEMORY = {
    "the server, by a default": (pods.server(KILLED), LIMITED.format("container server"), True),
    "the server, by its own limit": (pods.server(KILLED), LIMITED.format("container agent"), False),
    "only the CPU has a default": (
        pods.server(KILLED),
        "LimitRanger plugin set: cpu limit for container server",
        False,
    ),
    "only the request has": (pods.server(KILLED), "LimitRanger plugin set: memory request for container server", False),
    "a guest, by a default": (init("guest", **KILLED)["status"], LIMITED.format("init container guest"), True),
    "the fetch container": (pods.fetching(KILLED), LIMITED.format("init container fetch"), True),
}


@pytest.mark.parametrize("case", MEMORY)
def test_a_memory_limit_that_a_limit_range_gave_is_said_to_be_its_default(case: str) -> None:
    status, note, is_named = MEMORY[case]
    shown = pods.pod(status=status, annotations={"kubernetes.io/limit-ranger": note})
    limits = {"resources": {"limits": {"memory": "512Mi"}}}
    shown["spec"] |= {
        "containers": [{"name": "server", **limits}],
        "initContainers": [{"name": "guest", **limits}, {"name": "fetch", **limits}],
    }
    found = must_fail(shown)
    assert ("memory limit of 512Mi is the default of a LimitRange" in found.message) is is_named


OLDER = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver"
LABELS = {"nvidia.com/cuda.driver-version.full": "550.54.15", "nvidia.com/cuda.runtime-version.full": "12.4"}
LABELLED = FailureContext({}, room=Room((NodeRoom("node-b"), NodeRoom("node-a", labels=LABELS))))
UNLABELLED = FailureContext({}, room=Room((NodeRoom("node-a"), NodeRoom("node-b", labels=LABELS))))
NO_RIGHT = FailureContext({}, room=Room(unknown="the operator has no right to list nodes"))
NAMED = " (node node-a has driver 550.54.15, which supports CUDA 12.4)"
SAID = reported("DriverMismatch").replace("What it was.", "Too old. (Here the node's driver is 550.54.15.)")
DRIVERS: dict[str, tuple[Json, FailureContext, str]] = {
    "by the node's labels": (ended(128, "StartError", OLDER), LABELLED, f"please update your driver{NAMED}"),
    "the server did not see it": (ended(1, message=reported("DriverMismatch")), LABELLED, f"What it was.{NAMED}"),
    "the server has said it": (ended(1, message=SAID), LABELLED, "Too old. (Here the node's driver is 550.54.15.)"),
    "no label": (ended(128, "StartError", OLDER), UNLABELLED, "please update your driver"),
    "no right to read labels": (ended(128, "StartError", OLDER), NO_RIGHT, "please update your driver"),
    "no node was read": (ended(128, "StartError", OLDER), FailureContext({}), "please update your driver"),
    "another failure": (ended(1, message=reported("KVCacheTooSmall")), LABELLED, "What it was."),
}


@pytest.mark.parametrize("case", DRIVERS)
def test_where_driver_and_image_do_not_go_together_the_node_s_driver_is_said(case: str) -> None:
    pod, context, end = DRIVERS[case]
    assert must_fail(pod, context=context).message.endswith(end)


@pytest.mark.parametrize(("first", "later"), [(LABELLED, UNLABELLED), (UNLABELLED, LABELLED), (LABELLED, NO_RIGHT)])
def test_labels_that_come_or_go_later_change_no_message(first: FailureContext, later: FailureContext) -> None:
    pod = ended(128, "StartError", OLDER)
    found = must_fail(pod, context=first)
    assert must_fail(pod, before=found, context=later).to_object() == found.to_object()
