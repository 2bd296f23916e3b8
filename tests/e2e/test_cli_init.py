"""`llmservice init` on a real cluster: what it prints is taken by the API server, and says what the cluster has."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest
import yaml

from tests.support.cluster import Cluster
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.parallel

WORDS = ("chat", "--model", "pvc://models/tiny")


def init(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    command = (sys.executable, "-m", "llmservice_cli", "init", *words)
    ran = subprocess.run(
        command,
        env=cluster.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--cpu", "--replicas", "1"),
        ("--gpu", "L4,L40S", "--max-model-len", "16K", "--quantization", "fp8"),
        ("--min-replicas", "0", "--max-replicas", "3", "--api-key-secret", "keys/api-key"),
    ],
    ids=["CPUs", "GPUs", "to zero"],
)
def test_what_it_prints_is_taken_by_the_api_server(words: tuple[str, ...], cluster: Cluster, namespace: str) -> None:
    code, out, err = init(cluster, *WORDS, "-n", namespace, *words)
    assert code == 0, err
    applied = cluster.kubectl("apply", "--dry-run=server", "-f", "-", "-n", namespace, stdin=out)
    assert "llmservice.llmservice.dev/chat created (server dry run)" in applied
    assert ("rolebinding" in applied) == ("0" in words)
    for document in yaml.safe_load_all(out):
        assert document["metadata"]["namespace"] == namespace


def test_at_a_terminal_one_interrupt_ends_its_questions(cluster: Cluster) -> None:
    terminal, other_end = pty.openpty()
    command = (sys.executable, "-m", "llmservice_cli", "init", "--offline")
    with subprocess.Popen(
        command, env=cluster.environment, stdin=other_end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert process.stderr.read(len("model:")) == "model:"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 130
        assert process.stdout.read() == ""
    os.close(terminal)
    os.close(other_end)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "pvc://models/tiny"), "NAME must be given"),
        ((*WORDS, "--min-replicas", "3", "--max-replicas", "2"), "maxReplicas"),
        ((*WORDS, "--context", "nobody"), "nobody"),
    ],
    ids=["no name", "bounds that cross", "a context that is not there"],
)
def test_what_cannot_be_made_is_an_error(words: tuple[str, ...], message: str, cluster: Cluster) -> None:
    code, out, err = init(cluster, *words)
    assert (code, out, message in err) == (2, "", True), err
