"""`llmservice wait` on a real cluster: it ends when a service is Ready, and when it cannot become it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.cluster import JSON, Cluster
from tests.support.services import MILLION_TOKENS, llmservice, stand_in

pytestmark = pytest.mark.parallel

SHORTER_THAN_ITS_TIMEOUT = 120.0
"""Seconds in which a command must end that would wait for 30 minutes."""


@contextmanager
def waiting(cluster: Cluster, namespace: str, name: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-m", "llmservice_cli", "wait", name, "-n", namespace, *words)
    process = subprocess.Popen(
        command, env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=SHORTER_THAN_ITS_TIMEOUT)
    return process.returncode, out, err


def too_long(name: str) -> JSON:
    """A model that takes a million tokens, where a CPU engine has a GiB of KV cache."""
    return llmservice(name, model={"architecture": MILLION_TOKENS}, batching={"maxModelLen": None})


def test_it_is_begun_before_the_service_exists_and_ends_when_it_is_ready(cluster: Cluster, namespace: str) -> None:
    with waiting(cluster, namespace, "chat") as process:
        assert process.stderr is not None
        assert "There is no such LLMService yet." in process.stderr.readline()
        cluster.apply(stand_in("chat"), namespace)
        code, out, _ = end_of(process)
    assert (code, out.startswith("chat is Ready: RolledOut")) == (0, True)
    ready = cluster.condition(namespace, "chat", "Ready")
    assert ready is not None
    assert ready["status"] == "True"


def test_a_model_that_does_not_fit_ends_it_at_once(cluster: Cluster, namespace: str) -> None:
    cluster.apply(too_long("large"), namespace)
    with waiting(cluster, namespace, "large") as process:
        code, out, err = end_of(process)
    assert (code, out) == (1, "")
    assert "large cannot become Ready: DoesNotFit" in err
    assert "what to do: " in err
    assert cluster.list("pods", namespace, "llmservice.dev/service=large") == []


def test_an_edit_is_waited_for_although_the_revision_before_is_ready(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("chat"), namespace)
    cluster.wait_condition(namespace, "chat", "Ready", "True")
    cluster.patch("llmservices", namespace, "chat", {"spec": {"runtime": {"extraArgs": ["--no-such-flag"]}}})
    with waiting(cluster, namespace, "chat") as process:
        code, _, err = end_of(process)
    assert (code, "UnknownFlag" in err) == (1, True)
    with waiting(cluster, namespace, "chat", "--for", "Available") as process:
        assert end_of(process)[0] == 0


def test_a_service_that_is_deleted_ends_it(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("chat", {"start_seconds": 600.0}), namespace)
    with waiting(cluster, namespace, "chat") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("chat: "), "it has seen the service"
        cluster.kubectl("delete", "llms", "chat", "-n", namespace, "--wait=false")
        code, _, err = end_of(process)
    assert code == 1
    assert "It was deleted." in err or "It is being deleted." in err


@pytest.mark.parametrize("words", [("--timeout", "0"), ("--timeout", "2s")], ids=" ".join)
def test_what_is_not_known_in_time_has_a_code_of_its_own(
    words: tuple[str, ...], cluster: Cluster, namespace: str
) -> None:
    with waiting(cluster, namespace, "nobody", *words) as process:
        assert end_of(process)[0] == 3
