"""Containers that do not start: each sentence of a kubelet, a container runtime or a registry leads to its reason.

The source of each line is named beside it. [sentence, of the state waiting or terminated, reason, words of the message
or the remedy]
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from llmservice_api.reasons import Reason

from tests.unit.decide_world import a_pod
from tests.unit.operator import failing_pods as pods
from tests.unit.operator.failing_pods import failure, must_fail
from tests.unit.status_states import edited, served

Json = dict[str, Any]

IMAGE = "registry.example:5000/vllm:v0.32.0"
BLOB = "https://registry.example:5000/v2/vllm/blobs/sha256:" + "a" * 64
PULL = f'failed to pull and unpack image "{IMAGE}": '  # containerd internal/cri/server/images/image_pull.go
RESOLVE = f'{PULL}failed to resolve reference "{IMAGE}": '
HEAD = 'failed to do request: Head "https://registry.example:5000/v2/vllm/manifests/v0.32.0": '  # remotes/docker
TASK = (  # containerd container_start.go, runc's create, go-runc
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: "
)
HOOK = f"{TASK}error during container init: error running createRuntime hook #0: exit status 1, stdout: , stderr: "
CLI = f"{HOOK}Auto-detected mode as 'legacy'\nnvidia-container-cli: "
CUDA = (
    "requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version, or use an "
    "earlier cuda container: unknown"
)
NO_DEVICE = 'failed to generate container "{}" spec: failed to generate spec: unresolvable CDI devices {}'


def waiting(reason: str, message: str) -> Json:
    return pods.pod(status=pods.server({"waiting": {"reason": reason, "message": message}}))


def ended(reason: str, message: str, code: int = 128, restarts: int = 0) -> Json:
    end = {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-01-02T03:01:00Z"}
    return pods.pod(status=pods.server({"terminated": end | {"startedAt": "1970-01-01T00:00:00Z"}}, restarts=restarts))


def back_off(message: str, restarts: int = 1) -> Json:
    """Between two tries."""
    wait = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container=server"}}
    end = {"exitCode": 128, "reason": "StartError", "message": message, "finishedAt": "2026-01-02T03:01:00Z"}
    return pods.pod(status=pods.server(wait, restarts=restarts, last=end))


STARTS: dict[str, tuple[Json, str, str]] = {
    # libnvidia-container src/nvc_container.c and src/cli/configure.c: by the hook of the legacy mode.
    "the image wants a newer CUDA": (ended("StartError", CLI + CUDA), "DriverMismatch", "cuda>=12.8, please update"),
    "the same, between two tries": (back_off(CLI + CUDA), "DriverMismatch", "cuda>=12.8, please update your driver"),
    "the same, of a runtime without that word": (waiting("RunContainerError", CLI + CUDA), "DriverMismatch", "12.8"),
    # nvidia-container-toolkit internal/requirements/requirements.go: it has the driver's version too.
    "both versions": (
        ended("StartError", HOOK + "requirements not met: unsatisfied condition: cuda>=13.0 (cuda=12.8)"),
        "DriverMismatch",
        "cuda>=13.0 (cuda=12.8)",
    ),
    # containerd internal/cri/server/container_create.go, container-device-interface pkg/cdi/cache.go.
    "no CDI device": (
        waiting("CreateContainerError", NO_DEVICE.format("b" * 64, "nvidia.com/gpu=GPU-0f1e")),
        "DriverUnavailable",
        "unresolvable CDI devices nvidia.com/gpu=GPU-0f1e",
    ),
    "how to have CDI devices": (
        waiting("CreateContainerError", NO_DEVICE.format("b" * 64, "nvidia.com/gpu=0")),
        "DriverUnavailable",
        "nvidia-ctk cdi generate",
    ),
    # NVML's nvmlErrorString, quoted by libnvidia-container src/error.c.
    "an updated driver": (
        ended("StartError", CLI + "initialization error: nvml error: driver/library version mismatch: unknown"),
        "DriverUnavailable",
        "reboot the node",
    ),
    "no driver in the kernel": (
        ended("StartError", CLI + "initialization error: nvml error: driver not loaded: unknown"),
        "DriverUnavailable",
        "load its kernel module",
    ),
    "no driver's library": (
        ended(
            "StartError",
            CLI + "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no "
            "such file or directory: unknown",
        ),
        "DriverUnavailable",
        "libnvidia-ml.so.1",
    ),
    "no libcuda": (
        ended("StartError", CLI + "initialization error: load library failed: libcuda.so.1: cannot open shared object"),
        "DriverUnavailable",
        "libcuda.so.1",
    ),
    "any other failure of the driver": (
        ended("StartError", CLI + "initialization error: cuda error: unknown error: unknown"),
        "DriverUnavailable",
        "cuda error: unknown error",
    ),
    # nvidia-container-toolkit internal/oci/runtime_modifier.go: its runtime, before runc.
    "a CDI specification that cannot be made": (
        ended(
            "StartError",
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: could not apply "
            "required modification to OCI specification: error modifying OCI spec: failed to create the automatic CDI "
            "modifier: failed to generate CDI spec: error getting device handle",
        ),
        "DriverUnavailable",
        "error getting device handle",
    ),
    "a GPU that is gone": (
        ended("StartError", CLI + "device error: GPU-0f1e: unknown device: unknown"),
        "AcceleratorMissing",
        "GPU-0f1e: unknown device",
    ),
    # runc libcontainer/rootfs_linux.go.
    "a mount below /proc": (
        ended(
            "StartError",
            f'{TASK}error during container init: error mounting "/var/lib/kubelet/pods/1/volumes/v" to rootfs at '
            '"/proc/v": check proc-safety of /proc/v mount: "/proc/v" cannot be mounted because it is inside /proc: '
            "unknown",
        ),
        "ContainerNotStarted",
        '"/proc/v" cannot be mounted because it is inside /proc',
    ),
    # Go os/exec, by runc libcontainer/standard_init_linux.go.
    "a missing binary": (
        ended("StartError", f'{TASK}exec: "python3": executable file not found in $PATH: unknown', 128),
        "ContainerNotStarted",
        'exec: "python3": executable file not found in $PATH',
    ),
    "cri-dockerd's word for it": (
        ended("ContainerCannotRun", 'OCI runtime create failed: exec: "/x": permission denied: unknown', 126),
        "ContainerNotStarted",
        'exec: "/x": permission denied',
    ),
    # kubelet kuberuntime_container.go: ErrCreateContainer, ErrPreCreateHook, ErrPreStartHook, ErrRunContainer.
    "a path that cannot be made": (
        waiting("CreateContainerError", 'failed to mkdir "/dev/null/x": mkdir /dev/null: not a directory'),
        "ContainerNotStarted",
        "mkdir /dev/null: not a directory",
    ),
    "a hook before its creation": (waiting("PreCreateHookError", "no CPUs left"), "ContainerNotStarted", "no CPUs"),
    "a hook before its start": (waiting("PreStartHookError", "no CPUs left"), "ContainerNotStarted", "no CPUs left"),
    "any other start": (waiting("RunContainerError", "context deadline exceeded"), "ContainerNotStarted", "deadline"),
    "cri-api's prefix for a volume": (
        waiting("CreateContainerError", "ImageVolumeMountFailed: failed to mount image volume: no subPath x"),
        "ContainerNotStarted",
        "no subPath x",
    ),
    "a missing Secret": (  # kubelet_pods.go
        waiting("CreateContainerConfigError", 'secret "hf" not found'),
        "ContainerConfigInvalid",
        'secret "hf" not found',
    ),
    "a disk that is full while it starts": (  # syscall.ENOSPC, by the overlayfs snapshotter
        waiting(
            "CreateContainerError", "failed to create containerd container: mkdir /var/lib/x: no space left on device"
        ),
        "NodeDiskFull",
        "Free space on node node-a",
    ),
    "a quota of the disk": (  # syscall.EDQUOT
        waiting("CreateContainerError", "failed to create containerd container: mkdir /x: disk quota exceeded"),
        "NodeDiskFull",
        "disk quota exceeded",
    ),
    # syscall.ENOEXEC: of runc's create, or of its last step, which is in the container's log already.
    "another architecture's program": (
        ended("StartError", f"{TASK}exec /usr/bin/python3: exec format error: unknown"),
        "ImageArchitectureMismatch",
        "kubernetes.io/arch",
    ),
    "the same, by the log": (
        ended("Error", "exec /usr/bin/python3: exec format error\n", 255),
        "ImageArchitectureMismatch",
        "node-a",
    ),
}


@pytest.mark.parametrize("case", STARTS)
def test_a_container_that_never_ran_has_the_runtime_s_sentence_and_no_log_to_read(case: str) -> None:
    shown, reason, words = STARTS[case]
    found = must_fail(shown)
    assert str(found.reason) == reason
    assert words in f"{found.message} {found.remedy}"
    assert found.evidence
    assert "--previous" not in found.sentence()
    assert "\n" not in found.message
    assert "b" * 64 not in found.message
    assert must_fail(shown, before=found, now="2026-01-02T09:00:00Z").to_object() == found.to_object()


def test_a_mismatch_of_driver_and_image_is_final_at_once() -> None:
    found = must_fail(ended("StartError", CLI + CUDA))
    assert found.is_final
    assert "spec.runtime.image" in found.remedy


@pytest.mark.parametrize("case", [case for case, row in STARTS.items() if row[1] == "DriverUnavailable"])
def test_a_node_whose_driver_is_not_up_yet_has_ten_minutes_however_often_a_container_is_tried(case: str) -> None:
    first = must_fail(STARTS[case][0])
    end = STARTS[case][0]["status"]["containerStatuses"][0]["state"].get("terminated")
    shown = STARTS[case][0] if end is None else back_off(end["message"], restarts=6)
    soon = must_fail(shown, before=first, now="2026-01-02T03:10:00Z")
    late = must_fail(shown, before=first, now="2026-01-02T03:14:05Z")
    assert (first.is_final, soon.is_final, late.is_final) == (False, False, True)


def test_a_revision_on_a_node_whose_driver_is_not_up_yet_is_not_given_up() -> None:
    world = served()
    edited(world, rollout={"autoRollback": True})
    revision = world.revision()
    world.roll_out(updated=1, replicas=2)
    message = CLI + "initialization error: nvml error: driver not loaded: unknown"
    end = {"exitCode": 128, "reason": "StartError", "message": message, "finishedAt": "2026-01-02T03:01:00Z"}
    world.pods["x-new"] = a_pod("x-new", revision, state={"terminated": end})
    world.settle()
    assert world.condition("Ready")[1] == "DriverUnavailable"
    assert "Stalled" not in world.conditions()
    world.now += timedelta(minutes=11)
    world.settle()
    assert world.condition("Stalled")[1] == "DriverUnavailable"
    assert ("failedRevision" in world.rollout, world.revision()) == (False, revision)


FINAL_AT_ONCE = ("ImageArchitectureMismatch", "ImagePullDenied", "ImageNotFound")
PULLS: dict[str, tuple[str, str, str]] = {
    # containerd core/images/handlers.go and image.go.
    "not for this architecture": (
        f"{PULL}no match for platform in manifest: not found",
        "ImageArchitectureMismatch",
        "no build for the architecture of node node-a",
    ),
    "the same, with its digest": (
        f"{PULL}no match for platform in manifest sha256:{'a' * 64}: not found",
        "ImageArchitectureMismatch",
        "spec.podTemplate.spec.nodeSelector",
    ),
    "the same, by CRI-O": (  # containers/image internal/manifest/oci_index.go
        'choosing image instance: no image found in image index for architecture "arm64", variant "v8", OS "linux"',
        "ImageArchitectureMismatch",
        '"arm64"',
    ),
    "the same, by Docker": (  # moby distribution/pull_v2.go
        f"no matching manifest for linux/arm64/v8 in the manifest list entries: {IMAGE}",
        "ImageArchitectureMismatch",
        "linux/arm64/v8",
    ),
    "a full disk": (
        f"{PULL}failed to extract layer sha256:{'a' * 64}: write /var/lib/containerd/x: no space left on device",
        "NodeDiskFull",
        "Free space on node node-a",
    ),
    "a disk's quota": (f"{PULL}write /var/lib/containerd/x: disk quota exceeded", "NodeDiskFull", "disk quota"),
    # containerd core/remotes/errors/errors.go and docker/fetcher.go.
    "too many requests": (
        f"{PULL}failed to copy: httpReadSeeker: failed open: unexpected status from GET request to {BLOB}: 429 Too "
        "Many Requests\ntoomanyrequests: You have reached your unauthenticated pull rate limit.",
        "RegistryUnavailable",
        "429",
    ),
    "the body alone": (f"{PULL}toomanyrequests: retry-after: 1ms", "RegistryUnavailable", "toomanyrequests"),
    "unavailable": (
        f"{RESOLVE}unexpected status from HEAD request to {BLOB}: 503 Service Unavailable",
        "RegistryUnavailable",
        "503",
    ),
    "a bad gateway": (
        f"{RESOLVE}unexpected status from HEAD request to {BLOB}: 502 Bad Gateway",
        "RegistryUnavailable",
        "502",
    ),
    "a gateway's timeout": (
        f"{RESOLVE}unexpected status from HEAD request to {BLOB}: 504 Gateway Timeout",
        "RegistryUnavailable",
        "504",
    ),
    "an error of its own": (
        f"{RESOLVE}unexpected status from HEAD request to {BLOB}: 500 Internal Server Error",
        "RegistryUnavailable",
        "500",
    ),
    "its login is unavailable": (
        f"{RESOLVE}failed to authorize: failed to fetch anonymous token: unexpected status from GET request to "
        "https://auth.example/token: 503 Service Unavailable",
        "RegistryUnavailable",
        "auth.example",
    ),
    # Go net, net/http, crypto/tls and crypto/x509.
    "nobody listens": (
        f"{RESOLVE}{HEAD}dial tcp 10.0.0.1:5000: connect: connection refused",
        "RegistryUnavailable",
        "refused",
    ),
    "no answer": (f"{RESOLVE}{HEAD}dial tcp 10.0.0.1:5000: i/o timeout", "RegistryUnavailable", "i/o timeout"),
    "no route": (
        f"{RESOLVE}{HEAD}dial tcp 10.0.0.1:5000: connect: no route to host",
        "RegistryUnavailable",
        "no route",
    ),
    "no network": (
        f"{RESOLVE}{HEAD}dial tcp 10.0.0.1:5000: connect: network is unreachable",
        "RegistryUnavailable",
        "unreachable",
    ),
    "reset": (
        f"{RESOLVE}{HEAD}read tcp 10.0.0.2:4->10.0.0.1:5000: read: connection reset by peer",
        "RegistryUnavailable",
        "reset",
    ),
    "a name that nobody knows": (
        f"{RESOLVE}{HEAD}dial tcp: lookup registry.example on 10.96.0.10:53: no such host",
        "ImagePullFailed",
        "Check the host in",
    ),
    "a name server that fails": (
        f"{RESOLVE}{HEAD}dial tcp: lookup registry.example on 10.96.0.10:53: server misbehaving",
        "RegistryUnavailable",
        "server misbehaving",
    ),
    "TLS that does not come about": (
        f"{RESOLVE}{HEAD}net/http: TLS handshake timeout",
        "RegistryUnavailable",
        "TLS handshake",
    ),
    "TLS that is refused": (
        f"{RESOLVE}{HEAD}remote error: tls: internal error",
        "RegistryUnavailable",
        "tls: internal",
    ),
    "a certificate that the node does not trust": (
        f"{RESOLVE}{HEAD}tls: failed to verify certificate: x509: certificate signed by unknown authority",
        "ImagePullFailed",
        "CA",
    ),
    "late headers": (
        f"{RESOLVE}{HEAD}net/http: request canceled (Client.Timeout exceeded while awaiting headers)",
        "RegistryUnavailable",
        "Client.Timeout",
    ),
    "a transfer that stands still": (f"{PULL}context canceled", "RegistryUnavailable", "context canceled"),
    "a deadline": (f"{PULL}context deadline exceeded", "RegistryUnavailable", "deadline exceeded"),
    "a transfer that breaks off": (
        f"{PULL}failed to copy: httpReadSeeker: unexpected EOF",
        "RegistryUnavailable",
        "EOF",
    ),
    # containerd core/remotes/docker/resolver.go and authorizer.go.
    "denied": (
        f"{RESOLVE}pull access denied, repository does not exist or may require authorization: server message: "
        "insufficient_scope: authorization failed",
        "ImagePullDenied",
        "pull access denied",
    ),
    "too little scope": (f"{RESOLVE}server message: insufficient_scope: x", "ImagePullDenied", "insufficient_scope"),
    "forbidden": (f"{RESOLVE}unexpected status from HEAD request to {BLOB}: 403 Forbidden", "ImagePullDenied", "403"),
    "unauthorized": (
        f"{RESOLVE}failed to authorize: failed to fetch oauth token: unexpected status from POST request to "
        "https://auth.example/token: 401 Unauthorized",
        "ImagePullDenied",
        "401",
    ),
    "unauthorized, by CRI-O": ("reading manifest v1 in registry.example/x: unauthorized: no", "ImagePullDenied", "no"),
    "a failed login": (f"{RESOLVE}authorization failed", "ImagePullDenied", "authorization failed"),
    "no credentials": (f"{RESOLVE}authorization failed: no basic auth credentials", "ImagePullDenied", "basic auth"),
    "no credentials alone": (f"{RESOLVE}no basic auth credentials", "ImagePullDenied", "basic auth"),
    "a login asked for": ("reading manifest: authentication required", "ImagePullDenied", "authentication required"),
    "denied, by CRI-O": (
        "reading manifest v1 in quay.io/x: denied: requested access is denied",
        "ImagePullDenied",
        "denied",
    ),
    "denied, in a repository named like an end of a file": (
        'failed to pull image "quay.io/eof/x": unexpected status from HEAD request: 403 Forbidden',
        "ImagePullDenied",
        "403",
    ),
    "a body that breaks off in a refusal": (
        f"{PULL}denied: requested access is denied: EOF",
        "ImagePullDenied",
        "denied",
    ),
    "a login that times out": (f"{RESOLVE}failed to authorize: {HEAD}i/o timeout", "RegistryUnavailable", "i/o"),
    "not found, in a repository named like an end of a file": (
        'failed to pull image "quay.io/eof/x": quay.io/eof/x: not found',
        "ImageNotFound",
        "eof",
    ),
    "no such tag": (f"{RESOLVE}{IMAGE}: not found", "ImageNotFound", "not found"),
    "no such manifest": ("reading manifest v1 in quay.io/x: manifest unknown", "ImageNotFound", "manifest unknown"),
    "no such repository": ("reading manifest v1 in quay.io/x: name unknown: no", "ImageNotFound", "name unknown"),
    "no such image": (f"Error response from daemon: No such image: {IMAGE}", "ImageNotFound", "No such image"),  # moby
    "plain HTTP": (  # net/http: it answers, and goes on doing so
        f"{RESOLVE}{HEAD}http: server gave HTTP response to HTTPS client",
        "ImagePullFailed",
        "gave HTTP response",
    ),
}


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
@pytest.mark.parametrize("case", PULLS)
def test_a_pull_that_fails_has_the_reason_of_what_the_registry_or_the_node_said(case: str, reason: str) -> None:
    said, expected, words = PULLS[case]
    text = said if reason == "ErrImagePull" else f'Back-off pulling image "{IMAGE}": ErrImagePull: {said}'
    found = must_fail(waiting(reason, text))
    assert (str(found.reason), found.is_final) == (expected, expected in FINAL_AT_ONCE)
    assert words in f"{found.message} {found.remedy}"


WORDS_OF_ITS_OWN = {  # kubelet images/image_manager.go and types.go, cri-api pkg/errors
    "RegistryUnavailable": ("image pull failed for x because the registry is unavailable", "RegistryUnavailable"),
    "SignatureValidationFailed": ("image pull failed for x because the signature validation failed", "ImagePullFailed"),
    "InvalidImageName": ('Failed to apply default image tag "X": couldn\'t parse image name "X"', "ImageNotFound"),
    "ErrImageNeverPull": ('Container image "x" is not present with pull policy of Never', "ImageNotFound"),
    "ImageInspectError": ('Failed to inspect image "x": rpc error', "ImagePullFailed"),
}


@pytest.mark.parametrize("word", WORDS_OF_ITS_OWN)
def test_a_pull_that_the_kubelet_has_a_word_for(word: str) -> None:
    text, reason = WORDS_OF_ITS_OWN[word]
    assert str(must_fail(waiting(word, text)).reason) == reason


@pytest.mark.parametrize(
    "shown",
    [
        waiting("ErrImagePull", PULLS["unavailable"][0]),
        waiting("ErrImagePull", PULLS["a full disk"][0]),
        waiting("ErrImagePull", PULLS["a name that nobody knows"][0]),
        waiting("ErrImagePull", PULLS["a certificate that the node does not trust"][0]),
        waiting("CreateContainerError", "context deadline exceeded"),
    ],
    ids=["a registry", "a disk", "a host", "a CA", "a runtime"],
)
def test_what_may_pass_is_final_once_it_has_lasted(shown: Json) -> None:
    first = must_fail(shown)
    soon = must_fail(shown, before=first, now="2026-01-02T03:13:00Z")
    late = must_fail(shown, before=first, now="2026-01-02T03:14:05Z")
    assert (first.is_final, soon.is_final, late.is_final) == (False, False, True)
    assert late.to_object() == first.to_object(), "its record is not written again"


def test_a_start_that_fails_again_and_again_is_final() -> None:
    assert not must_fail(back_off(f"{TASK}no", restarts=2)).is_final
    assert must_fail(back_off(f"{TASK}no", restarts=3)).is_final


def test_a_registry_that_answers_in_the_end_has_another_reason_or_none() -> None:
    away = must_fail(waiting("ErrImagePull", PULLS["no answer"][0]))
    vague = must_fail(waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'), before=away)
    assert vague.to_object() == away.to_object()
    assert must_fail(waiting("ErrImagePull", PULLS["no such tag"][0]), before=away).reason is Reason.IMAGE_NOT_FOUND
    assert failure(pods.pod(status=pods.running(started=False)), before=away) is None


def test_a_model_s_image_that_cannot_be_pulled_is_not_the_runtime_s() -> None:
    shown = waiting("ImagePullBackOff", 'Back-off pulling image "hub.example/weights:1": ErrImagePull: not found')
    shown["spec"]["volumes"] = [{"name": "source", "image": {"reference": "hub.example/weights:1"}}]
    shown["spec"]["containers"] = [{"name": "server", "image": IMAGE}]
    found = must_fail(shown)
    assert found.reason is Reason.IMAGE_NOT_FOUND
    assert "spec.model.uri" in found.remedy
    assert "Correct spec.runtime.image" not in found.remedy


def test_a_service_whose_registry_is_away_is_stalled_after_ten_minutes_and_goes_on_once_it_answers() -> None:
    """Nothing else wakes the operator in between, and nothing is written for each look."""
    world = served()
    edited(world)
    world.roll_out(updated=1, replicas=2)
    state = {"waiting": {"reason": "ErrImagePull", "message": PULLS["unavailable"][0]}}
    world.pods["x-new"] = a_pod("x-new", world.revision(), state=state)
    world.settle()
    began, writes = world.now, world.status_writes
    for minute in range(10):
        world.now = began + timedelta(minutes=minute)
        wait = world.step().requeue_after
        assert wait is not None
        assert wait <= 60.0
        assert "Stalled" not in world.conditions()
    assert world.status_writes == writes
    world.now = began + timedelta(minutes=10)
    world.step()
    assert world.condition("Stalled")[1] == "RegistryUnavailable"
    assert "failedRevision" not in world.rollout, "it is no fault of the revision's"
    world.pods["x-new"] = a_pod("x-new", world.revision())
    world.step()
    assert "Stalled" not in world.conditions()
