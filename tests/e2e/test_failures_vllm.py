"""What a real vLLM fails with is reported everywhere: its own words and a remedy, one Event, a metric, within 10 s.

test_failures.py has these stories, and all others, with the stand-in, whose logs were recorded from vLLM;
test_stand_in.py holds further starts that fail against vLLM.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from llmservice_runtime.contract import HTTP_PORT, SERVER_CONTAINER

from localcluster.paths import ClusterPaths
from localcluster.tinymodel.cache import cached_model
from tests.e2e.conftest import own_namespace
from tests.e2e.failing_services import (
    LOG,
    ended,
    env,
    serves,
    unready_again,
)
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.host import engine_of, processes_of, supervisor_of
from tests.support.measured import Record
from tests.support.models import claim_folder, release_folder
from tests.support.patience import PATIENCE, at_latest
from tests.support.reported import REPORTED_WITHIN, Reported, before, reported_everywhere
from tests.support.rolling import restarts
from tests.support.services import llmservice

NAMESPACE = "e2e-failures-vllm"
ENGINE = "vLLM"
START_WITHIN = 240.0
CLAIM = "broken"
UNKNOWN = "NoSuchModelForCausalLM"


@dataclass(frozen=True)
class Broken:
    """A spec that vLLM ends on, and what the status must say then."""

    spec: Mapping[str, Any]
    reason: str
    words: str
    """In the message."""
    remedy: str
    """In the remedy."""


BROKEN = {
    "an-unreadable-weights-file": Broken(
        {"model": {"uri": f"pvc://{CLAIM}/unreadable"}}, "WeightsUnreadable", "model.safetensors", "chmod"
    ),
    "an-unknown-architecture": Broken(
        {"model": {"uri": f"pvc://{CLAIM}/unknown"}}, "UnsupportedArchitecture", UNKNOWN, "newer vLLM"
    ),
    "an-impossible-length": Broken(
        {"batching": {"maxModelLen": 1_000_000}}, "MaxModelLenTooLarge", "1000000", "spec.batching.maxModelLen"
    ),
}


@pytest.fixture(scope="module")
def failures(cluster: Cluster) -> Iterator[str]:
    with own_namespace(cluster, NAMESPACE):
        yield NAMESPACE


@pytest.fixture(scope="module")
def claim(cluster: Cluster, failures: str) -> Iterator[None]:
    """Models that are broken: weights that only root may read, as save_pretrained leaves them, and a stranger."""
    folder = ClusterPaths.of_this_clone().models / CLAIM
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("unreadable", "unknown"):
        shutil.copytree(cached_model(print), folder / name)
    (folder / "unreadable" / "model.safetensors").chmod(0o600)
    make_unknown(folder / "unknown" / "config.json")
    claim_folder(cluster, failures, CLAIM, folder)
    yield
    release_folder(cluster, failures, CLAIM)


def make_unknown(config: Path) -> None:
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": [UNKNOWN]}))


@pytest.mark.full
@pytest.mark.parametrize("case", BROKEN)
def test_a_start_that_fails_is_reported(
    cluster: Cluster, failures: str, claim: None, case: str, record: Record
) -> None:
    broken = BROKEN[case]
    since = before(cluster)
    cluster.apply(llmservice(case, **broken.spec), failures)
    end = eventually("the end of the container", lambda: moment_of(cluster, case, ended), 180)
    reported = reported_everywhere(cluster, failures, case, broken.reason, since)
    assert broken.words in reported.failure["message"], reported.failure
    assert broken.remedy in reported.failure["remedy"], reported.failure
    cluster.wait_condition(failures, case, "Ready", "False", reason=broken.reason, timeout=0)
    note(record, reported, end)
    cluster.kubectl("delete", "llms", case, "-n", failures)


def moment_of(cluster: Cluster, service: str, cause: Callable[[JSON], float | None]) -> float | None:
    """When it went wrong with the only pod of this service; None where there is none yet, or nothing wrong."""
    pods = cluster.list("pods", NAMESPACE, f"llmservice.dev/service={service}")
    return cause(pods[0]) if pods else None


def note(record: Record, reported: Reported, cause: float) -> None:
    """Keep what it took, in seconds of the epoch, and judge it."""
    seconds = reported.at - cause
    record(engine=ENGINE, reason=reported.failure["reason"], seconds=round(seconds, 1))
    assert seconds <= at_latest(REPORTED_WITHIN)


FIRST = "dies-on-its-first-request"


@pytest.mark.full
def test_a_death_on_the_first_request_is_reported(cluster: Cluster, failures: str, record: Record) -> None:
    """The engine is held from before the first request is sent, so that this is what it dies on."""
    since = before(cluster)
    cluster.apply(llmservice(FIRST), failures)
    pod = eventually("a pod with vLLM in it", lambda: running_pod(cluster, FIRST), 120)
    with held(supervisor_of(pod)):
        eventually("vLLM is healthy", lambda: is_healthy(cluster, FIRST), START_WITHIN)
        engine = process_of(pod, "EngineCore")
        os.kill(engine, signal.SIGSTOP)
    log = ("logs", pod["metadata"]["name"], "-n", failures, "-c", SERVER_CONTAINER)
    eventually("the first request", lambda: "sending a first request" in cluster.kubectl(*log), 60)
    os.kill(engine, signal.SIGKILL)
    end = eventually("the end of the container", lambda: moment_of(cluster, FIRST, ended), 60)
    reported = reported_everywhere(cluster, failures, FIRST, "EngineDied", since)
    assert "vLLM ended with exit code 0" in reported.failure["message"]
    assert LOG in reported.failure["remedy"]
    note(record, reported, end)
    cluster.kubectl("delete", "llms", FIRST, "-n", failures)


def is_healthy(cluster: Cluster, service: str) -> bool:
    """What vLLM itself says, whatever its supervisor makes of it."""
    pod = cluster.pod(NAMESPACE, service)
    try:
        return httpx.get(f"http://{pod['status']['podIP']}:{HTTP_PORT}/health", timeout=5, trust_env=False).is_success
    except httpx.ConnectError:
        return False


def running_pod(cluster: Cluster, service: str) -> JSON | None:
    """The only pod of a service, once vLLM's first process runs in it."""
    pods = cluster.list("pods", NAMESPACE, f"llmservice.dev/service={service}")
    return pods[0] if pods and engine_of(pods[0]) else None


@contextlib.contextmanager
def held(pid: int | None) -> Iterator[None]:
    """A process that gets no processor for a while. It may be gone afterwards."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


ALIVE = "alive"
# A token takes milliseconds: enough of them for the engine to be held in the middle.
TOKENS = 480


@pytest.fixture(scope="module")
def alive(cluster: Cluster, failures: str) -> str:
    """The URL of a service to which the stories below happen, one after the other."""
    cluster.apply(llmservice(ALIVE, **env(LLMSERVICE_HANG_UNREADY_SECONDS="5")), failures)
    cluster.wait_condition(failures, ALIVE, "Ready", "True", timeout=START_WITHIN)
    return f"{cluster.service_url(NAMESPACE, ALIVE)}/v1/completions"


@pytest.mark.full
def test_a_hang_is_reported_and_over_when_the_engine_moves_again(
    cluster: Cluster, failures: str, alive: str, record: Record
) -> None:
    """Held in the middle of a stream, which is whole all the same: nobody restarts what may still come back."""
    pod, since = cluster.pod(NAMESPACE, ALIVE), before(cluster)
    body = {"model": ALIVE, "prompt": "go on", "max_tokens": TOKENS, "ignore_eos": True}
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", alive, json=asked, timeout=PATIENCE, trust_env=False) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: {")
        with held(process_of(pod, "EngineCore")):
            unready = eventually("unready", lambda: moment_of(cluster, ALIVE, unready_again), 60)
            reported = reported_everywhere(cluster, failures, ALIVE, "EngineHung", since)
        rest = [line.removeprefix("data: ") for line in lines if line]
    assert "does not move" in reported.failure["message"]
    assert "spec.batching.maxNumSeqs" in reported.failure["remedy"]
    note(record, reported, unready)
    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["usage"]["completion_tokens"] == TOKENS
    eventually("over", lambda: serves(cluster.must_get("llmservices", NAMESPACE, ALIVE)), 30)
    assert httpx.post(alive, json={**body, "max_tokens": 4}, timeout=PATIENCE, trust_env=False).status_code == 200
    assert restarts(cluster.pod(NAMESPACE, ALIVE)) == 0


@pytest.mark.full
def test_an_instruction_that_the_processor_lacks_is_reported(
    cluster: Cluster, failures: str, alive: str, record: Record
) -> None:
    """The kernel's answer to one, as the worker gets it; with which instruction depends on the processor."""
    since = before(cluster)
    os.kill(process_of(cluster.pod(NAMESPACE, ALIVE), "Worker"), signal.SIGILL)
    end = eventually("the end of the container", lambda: moment_of(cluster, ALIVE, ended), 60)
    reported = reported_everywhere(cluster, NAMESPACE, ALIVE, "IllegalInstruction", since)
    assert "float32" in reported.failure["remedy"]
    note(record, reported, end)


def process_of(pod: JSON, name: str) -> int:
    """One of vLLM's further processes, by the title that it gives itself."""
    (pid,) = [pid for pid, line in processes_of(pod).items() if f"VLLM::{name}" in line]
    return pid


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a-precision-that-the-gpu-cannot-do": (
        {"accelerator": {"type": "nvidia", "products": ["Tesla-T4"]}, "precision": {"dtype": "bfloat16"}},
        "PrecisionUnsupported",
        "spec.precision.dtype",
    ),
    "heads-that-cannot-be-divided": (
        {
            "accelerator": {"type": "nvidia"},
            "parallelism": {"tensorParallelSize": 3},
            "model": {"architecture": {"numAttentionHeads": 8}},
        },
        "TensorParallelSizeInvalid",
        "spec.parallelism.tensorParallelSize",
    ),
    "a-flag-that-this-vllm-does-not-know": (
        {"runtime": {"extraArgs": ["--no-such-flag"]}},
        "UnknownFlag",
        "spec.runtime.extraArgs",
    ),
}


@pytest.mark.parallel
@pytest.mark.parametrize("case", REFUSED)
def test_what_the_schema_cannot_know_is_refused_before_any_pod(cluster: Cluster, failures: str, case: str) -> None:
    spec, reason, named = REFUSED[case]
    cluster.apply(llmservice(case, **spec), failures)
    refused = cluster.wait_condition(failures, case, "Accepted", "False", reason=reason, timeout=15)
    assert named in refused["message"]
    cluster.must_have(failures, case, Ready="False")
    assert cluster.get("deployments", failures, case) is None
