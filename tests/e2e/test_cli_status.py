"""`llmservice status`, `explain` and `logs` on a real cluster: three broken services are understood by what they print,
and mended by it; and a start is watched."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.support.cluster import Cluster, eventually
from tests.support.patience import PATIENCE
from tests.support.services import MILLION_TOKENS, llmservice, stand_in

pytestmark = pytest.mark.parallel

SECONDS = PATIENCE


def run(cluster: Cluster, *words: str, expect: int | None = 0) -> str:
    """What the command prints, errors included where it fails."""
    command = (sys.executable, "-m", "llmservice_cli", *words)
    return cluster.run(*command, expect=expect, timeout=SECONDS)


def reason_in(screen: str) -> str:
    """The word that the first line ends with."""
    return screen.splitlines()[0].rpartition(" ")[2]


def test_a_model_that_does_not_exist_is_understood_and_mended(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("chat", model={"uri": "file:///models/tiny-chatt"}), namespace)
    cluster.wait_condition(namespace, "chat", "Stalled", "True")
    screen = run(cluster, "status", "chat", "-n", namespace)
    assert reason_in(screen) == "ModelNotFound"
    assert "what to do: Check the path in spec.model.uri" in screen
    assert "/models holds: tiny-chat." in screen
    assert re.search(r"failing +# 1", screen)
    assert re.search(r"LLMService +ModelNotFound", screen), "the Event"
    explained = run(cluster, "explain", reason_in(screen))
    assert "what to do    Check spec.model.uri" in explained
    # The server starts again and again: its log is empty for a moment.
    why = "supervisor  ModelNotFound: There is no /models/tiny-chatt"
    words = ("logs", "chat", "--level", "error", "-n", namespace)
    eventually("why it ended", lambda: why in run(cluster, *words, expect=None), 30)
    cluster.patch("llmservices", namespace, "chat", {"spec": {"model": {"uri": "file:///models/tiny-chat"}}})
    cluster.wait_condition(namespace, "chat", "Ready", "True")
    screen = run(cluster, "status", "chat", "-n", namespace)
    assert reason_in(screen) == "RolledOut"
    assert re.search(r"ready +# 1", screen)


def test_a_model_that_does_not_fit_is_mended_by_the_printed_command(cluster: Cluster, namespace: str) -> None:
    cluster.apply(
        llmservice("large", model={"architecture": MILLION_TOKENS}, batching={"maxModelLen": None}), namespace
    )
    cluster.wait_condition(namespace, "large", "Stalled", "True")
    screen = run(cluster, "status", "large", "-n", namespace)
    assert reason_in(screen) == "DoesNotFit"
    assert re.search(r"longest request, tokens +1,048,576 +- +-", screen)
    assert "status.plan.remedies" in run(cluster, "explain", "doesnotfit")
    refused = run(cluster, "logs", "large", "-n", namespace, expect=1)
    assert "large has no pod: DoesNotFit" in refused
    (first, *_) = [line.strip() for line in screen.splitlines() if line.strip().startswith("kubectl patch")]
    cluster.kubectl(*shlex.split(first)[1:])
    cluster.wait_condition(namespace, "large", "Fits", "True")


def test_a_start_that_fails_is_understood_by_vllms_own_lines(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("chat", {"fails": "kv-cache-too-small"}), namespace)
    cluster.wait_condition(namespace, "chat", "Stalled", "True")
    screen = run(cluster, "status", "chat", "-n", namespace)
    reason = reason_in(screen)
    failure = screen[screen.index("\nfailure\n") :]
    assert "what to do: " in failure
    assert "  | " in failure, "vLLM's lines"
    explained = run(cluster, "explain", reason, "-o", "json")
    assert json.loads(explained)["reportedIn"]["failure"] is True
    words = ("logs", "chat", "-n", namespace, "-o", "json")

    def ended() -> list[dict[str, str]] | None:
        """The lines of a run that is over. It restarts meanwhile, and the kubelet has no run before at times."""
        printed = run(cluster, *words, "--previous", expect=None)
        found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        return found if {line["source"] for line in found} == {"supervisor", "vllm"} else None

    lines = eventually("both sources' lines in the run before", ended, SECONDS)
    assert any(line["level"] == "ERROR" and line["source"] == "vllm" for line in lines)
    assert any(line["text"].startswith(reason) and line["source"] == "supervisor" for line in lines)


def test_a_change_is_a_line_of_watch_and_an_interruption_no_error(cluster: Cluster, namespace: str) -> None:
    command = (sys.executable, "-m", "llmservice_cli", "status", "chat", "-w", "-n", namespace)
    process = subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        cluster.apply(stand_in("chat"), namespace)
        lines, deadline, seen = process.stdout, time.monotonic() + SECONDS, list[str]()

        def until(text: str) -> None:
            while not seen or text not in seen[-1]:
                assert time.monotonic() < deadline, seen
                seen.append(lines.readline())

        until("RolledOut, 1/1 ready")
        cluster.kubectl("scale", "llms/chat", "--replicas=0", "-n", namespace)
        until("ScaledToZero")
        assert len(seen) == len(set(seen)) > 1
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def test_all_services_have_a_line_and_one_that_is_not_there_is_an_error(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("chat", scaling={"replicas": 0}), namespace)
    cluster.wait_condition(namespace, "chat", "Ready", "True")
    header, line = run(cluster, "status", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "PROGRESS", "GPUS", "MODEL", "URL", "AGE"]
    assert line.split()[:3] == ["chat", "0/0", "ScaledToZero"]
    assert "choose one of: chat" in run(cluster, "status", "nobody", "-n", namespace, expect=1)
