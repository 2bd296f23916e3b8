"""`llmservice logs` on a real cluster: who wrote a line, and following across a restart and a rollout."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

import pytest

from tests.support.cluster import JSON, Cluster
from tests.support.patience import PATIENCE
from tests.support.services import stand_in

pytestmark = pytest.mark.parallel

SECONDS = PATIENCE
PATH = "/models/tiny-chat"
"""vLLM prints it; as the value of a variable that is named like a secret it is hidden."""


def logs(cluster: Cluster, namespace: str, *words: str, expect: int = 0) -> str:
    command = (sys.executable, "-m", "llmservice_cli", "logs", *words, "-n", namespace)
    return cluster.run(*command, expect=expect, timeout=SECONDS)


@contextmanager
def following(cluster: Cluster, namespace: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-m", "llmservice_cli", "logs", *words, "-f", "-o", "json")
    process = subprocess.Popen(
        (*command, "-n", namespace), env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    limit = Timer(SECONDS, process.kill)
    limit.start()
    try:
        yield process
    finally:
        limit.cancel()
        process.kill()
        process.communicate()


def until(process: subprocess.Popen[str], text: str, *, other_than: str = "") -> JSON:
    """The next line with this text, of a pod other than this."""
    assert process.stdout is not None
    for line in process.stdout:
        found: JSON = json.loads(line)
        if text in found["text"] and found["pod"] != other_than:
            return found
    raise AssertionError(process.communicate())


def test_the_supervisors_lines_and_vllms_are_told_apart(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("chat", runtime={"env": [{"name": "DEMO_TOKEN", "value": PATH}]}), namespace)
    cluster.wait_condition(namespace, "chat", "Ready", "True")
    (pod,) = cluster.pods(namespace, "chat")
    short = pod["metadata"]["name"].rpartition("-")[2]
    ours = logs(cluster, namespace, "chat", "--source", "supervisor").splitlines()
    theirs = logs(cluster, namespace, "chat", "--source", "vllm").splitlines()
    assert f"{short} supervisor  Serving" in ours
    assert any(line.endswith("Application startup complete.") for line in theirs)
    assert all(line.startswith(f"{short} vllm        ") for line in theirs)
    both = logs(cluster, namespace, "chat", "--pod", short)
    assert len(both.splitlines()) == len(ours) + len(theirs)
    assert PATH not in both
    assert "***" in both
    assert "runtime     installed" in logs(cluster, namespace, "chat", "-c", "runtime")


def test_it_is_followed_across_a_rollout_from_before_the_first_pod(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("chat", scaling={"replicas": 0}), namespace)
    cluster.wait_condition(namespace, "chat", "Ready", "True")
    with following(cluster, namespace, "chat") as process:
        assert process.stderr is not None
        assert "chat has no pod: ScaledToZero" in process.stderr.readline()
        cluster.patch("llmservices", namespace, "chat", {"spec": {"scaling": {"replicas": 1}}})
        first = until(process, "Serving")
        assert (first["source"], first["level"]) == ("supervisor", "INFO")
        cluster.patch("llmservices", namespace, "chat", {"spec": {"batching": {"maxModelLen": 256}}})
        second = until(process, "Serving", other_than=first["pod"])
        assert second["pod"] != first["pod"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=SECONDS) == 0


def test_a_restart_is_followed_and_the_run_before_can_be_read(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("chat"), namespace)
    cluster.wait_condition(namespace, "chat", "Ready", "True")
    (pod,) = cluster.pods(namespace, "chat")
    with following(cluster, namespace, "chat", "--source", "supervisor") as process:
        first = until(process, "Serving")
        end = ("python3", "-c", "import os, signal; os.kill(1, signal.SIGTERM)")
        cluster.kubectl("exec", pod["metadata"]["name"], "-c", "server", "-n", namespace, "--", *end)
        second = until(process, "Serving")
    assert second["time"] > first["time"]
    assert second["pod"] == first["pod"]
    before = logs(cluster, namespace, "chat", "--previous", "-o", "json").splitlines()
    assert all(json.loads(line)["time"] < second["time"] for line in before)
    assert first["text"] in {json.loads(line)["text"] for line in before}


def test_why_there_is_nothing_to_read(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("flag", runtime={"extraArgs": ["--no-such-flag"]}), namespace)
    cluster.wait_condition(namespace, "flag", "Stalled", "True")
    refused = logs(cluster, namespace, "flag", expect=1)
    assert "flag has no pod: UnknownFlag" in refused
    assert "what to do: Correct the flag" in refused
