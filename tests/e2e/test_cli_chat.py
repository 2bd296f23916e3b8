"""`llmservice chat` on a real cluster: through a port-forward with the Secret's key, and by somebody at a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, eventually
from tests.support.patience import PATIENCE
from tests.support.services import stand_in

pytestmark = pytest.mark.parallel

KEY = "sk-of-the-secret"
GUARDED = {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}


def chat(cluster: Cluster, *words: str, expect: int = 0) -> str:
    return cluster.run(sys.executable, "-m", "llmservice_cli", "chat", *words, stdin="", expect=expect)


def test_an_answer_with_the_key_of_the_secret_and_refusals_without_it(cluster: Cluster, namespace: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"api-key": KEY}}
    cluster.apply(secret, namespace)
    cluster.apply(stand_in("guarded", endpoint=GUARDED, scaling={"replicas": 0}), namespace)
    words = ("guarded", "-n", namespace, "-m", "Hello", "--max-tokens", "5")
    assert "guarded has no ready replica: " in chat(cluster, *words, expect=1)
    cluster.kubectl("scale", "llms/guarded", "--replicas=1", "-n", namespace)
    found: Any = json.loads(chat(cluster, *words, "-o", "json", "--wait", "--timeout", "2m"))
    assert (found["answer"], found["finishReason"]) == ("The answer has as many", "length")
    assert (found["tokens"]["answer"], found["error"]) == (5, None)
    assert 0 < found["timings"]["firstTokenSeconds"] < PATIENCE
    with_another = chat(cluster, *words, "--api-key-env", "PATH", expect=1)
    assert "Incorrect API key provided" in with_another
    assert os.environ["PATH"] not in with_another
    assert "does not exist" in chat(cluster, *words, "--model", "nobody", expect=1)


class Terminal:
    """What somebody at a terminal sees and types."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor, self._process, self.seen = descriptor, process, ""

    def until(self, is_there: Callable[[str], bool]) -> str:
        """What came since the last time, once it is there."""
        deadline = time.monotonic() + PATIENCE
        while not is_there(self.seen):
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"not within {PATIENCE:g} s; seen: {self.seen!r}"
            self.seen += os.read(self._descriptor, 4096).decode(errors="replace")
        seen, self.seen = self.seen, ""
        return seen

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def interrupt_at_the_prompt(self) -> int:
        """Ctrl-C once a key is waited for, as of a person; the exit status. One that comes between the prompt and the
        `select` behind it is seen by CPython's readline at the next key only (Modules/readline.c)."""
        status = Path(f"/proc/{self._process.pid}/status")
        eventually("the chat waits for a key", lambda: "State:\tS" in status.read_text() or None, PATIENCE)
        self.type("\x03")
        return self._process.wait(PATIENCE)


@contextmanager
def terminal(cluster: Cluster, *words: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    command = (sys.executable, "-m", "llmservice_cli", "chat", *words)
    environment = {**cluster.environment, "TERM": "xterm", "NO_COLOR": "1"}

    def own_terminal() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first one that a session opens is its own

    process = subprocess.Popen(
        command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=own_terminal
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_somebody_at_a_terminal_stops_an_answer_and_goes_on(cluster: Cluster, namespace: str) -> None:
    cluster.apply(stand_in("plain", {"tokens_per_second": 20.0}), namespace)
    cluster.wait_condition(namespace, "plain", "Ready", "True")
    with terminal(cluster, "plain", "-n", namespace, "--max-tokens", "400") as screen:
        assert f"plain of {namespace}/plain" in screen.until(lambda seen: seen.endswith("> "))
        screen.type("Hello\r")
        screen.until(lambda seen: "The answer" in seen)
        screen.type("\x03")
        assert "stopped; Ctrl-C again ends the chat" in screen.until(lambda seen: seen.endswith("> "))
        screen.type("/reset\r")
        assert "a new conversation" in screen.until(lambda seen: seen.endswith("> "))
        assert screen.interrupt_at_the_prompt() == 130
