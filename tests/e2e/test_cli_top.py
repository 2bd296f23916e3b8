"""`llmservice top` on a real cluster: the rates of an engine that works, and what may not be read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, eventually
from tests.support.services import idle, stand_in

pytestmark = pytest.mark.parallel

RATE = 10.0
"""An answer of 480 tokens lasts longer than the command takes on a busy machine."""
INTERVAL = 2.0


def top(cluster: Cluster, *words: str, expect: int = 0) -> str:
    return cluster.run(sys.executable, "-m", "llmservice_cli", "top", *words, expect=expect)


@contextmanager
def asking(cluster: Cluster, namespace: str) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody who gets a long answer."""
    words = ("chat", "busy", "-n", namespace, "-m", "Go on.", "--max-tokens", "480")
    process = subprocess.Popen(
        (sys.executable, "-m", "llmservice_cli", *words), env=cluster.environment, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.read(1)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_rate_of_an_engine_that_answers(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("busy", {"tokens_per_second": RATE}), namespace)
    cluster.apply(idle("at-rest"), namespace)
    cluster.wait_condition(namespace, "busy", "Ready", "True")
    with asking(cluster, namespace):
        found: Any = json.loads(top(cluster, "-n", namespace, "-o", "json", "--interval", f"{INTERVAL:g}s"))
    busy, rest = found["services"]
    assert (busy["name"], busy["requestsRunning"], busy["ready"]) == ("busy", 1, "1/1")
    assert RATE / 3 < busy["generationTokensPerSecond"] < RATE * 1.5, "by the machine's load"
    assert [pod["ready"] for pod in busy["pods"]] == [True]
    assert (rest["name"], rest["pods"], rest["generationTokensPerSecond"]) == ("at-rest", [], None)
    assert found["intervalSeconds"] == pytest.approx(INTERVAL, abs=1.5)
    assert found["cost"]["requests"] >= 1


def test_a_name_that_there_is_not_and_a_user_who_may_not(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    assert "there is no LLMService 'nobody'" in top(cluster, "nobody", "-n", namespace, expect=1)
    cluster.apply(idle("at-rest"), namespace)
    cluster.kubectl("create", "serviceaccount", "reader", "-n", namespace)
    rules = ("--verb=get,list", "--resource=llmservices.llmservice.dev")
    cluster.kubectl("create", "role", "reader", *rules, "-n", namespace)
    account = f"--serviceaccount={namespace}:reader"
    cluster.kubectl("create", "rolebinding", "reader", "--role=reader", account, "-n", namespace)
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    token = cluster.kubectl("create", "token", "reader", "-n", namespace).strip()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    words = (sys.executable, "-m", "llmservice_cli", "top", "--kubeconfig", str(kubeconfig), "-n", namespace)

    def seen() -> str:
        said = cluster.run(*words, "--interval", "0.5s", expect=None)
        return said if "at-rest" in said else ""

    said = eventually("the right holds", seen, 30)
    assert "pods are not listed: needs list pods in namespace" in said
    assert "the API server was asked" in said
