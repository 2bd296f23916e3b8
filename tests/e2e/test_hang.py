"""What is a hang and what only looks like one: all of it at once, since each takes as long as the thresholds are.

That a hang is reported as EngineHung within seconds is a row of failing_services.py.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx
import pytest
from llmservice_runtime.contract import HANG_RESTART_SECONDS, HANG_UNREADY_SECONDS, HTTP_PORT, SERVER_CONTAINER

from tests.support import rolling
from tests.support.client import Answer, ClientPod
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.host import pause, processes_of, throttled
from tests.support.measured import Record
from tests.support.patience import PATIENCE, at_most
from tests.support.services import llmservice, stand_in
from tests.support.serving import requests_in_flight

SAID = "requests wait but the engine makes no progress: not ready"
PREFILL_SECONDS = 2 * HANG_UNREADY_SECONDS
STARVED_SECONDS = HANG_UNREADY_SECONDS + 10
# Longer than the starvation: the stream goes on after it. A token every two seconds is far from a hang.
TOKENS, TOKENS_PER_SECOND = 30, 0.5


@pytest.fixture
def client(cluster: Cluster, namespace: str) -> ClientPod:
    for name, behaviour in (
        ("prefilling", {}),
        ("starved", {"tokens_per_second": TOKENS_PER_SECOND}),
        ("hung", {}),
    ):
        cluster.apply(stand_in(name, behaviour), namespace)
    started = ClientPod.start(cluster, namespace)
    for name in ("prefilling", "starved", "hung"):
        cluster.wait_condition(namespace, name, "Ready", "True", timeout=90)
    return started


@pytest.mark.full
def test_a_hung_engine_goes_unready_and_a_slow_or_a_starved_one_does_not(
    cluster: Cluster, namespace: str, client: ClientPod
) -> None:
    with ThreadPoolExecutor(3) as beside:
        long_prefill = beside.submit(ask, client, "prefilling", f"@slow:{PREFILL_SECONDS}", 3)
        stream = beside.submit(ask, client, "starved", "go on", TOKENS)
        stuck = beside.submit(client.request, address("hung"), request("hung", "@hang", 3))
        eventually("the stream under way", lambda: requests_in_flight(cluster.pod(namespace, "starved")) == 1, 30)

        with stopped(cluster.pod(namespace, "starved")):
            pause(STARVED_SECONDS)

        eventually("the hung one is unready", lambda: not is_ready(cluster.pod(namespace, "hung")), 30)
        assert whole(long_prefill, 3)
        assert whole(stream, TOKENS)
        for name in ("prefilling", "starved"):
            assert_no_hang(cluster, namespace, name)
        hung = partial(cluster.pod, namespace, "hung")
        assert SAID in log_of(cluster, hung())
        eventually("it is restarted", lambda: rolling.restarts(hung()) == 1, HANG_RESTART_SECONDS + 30)
        eventually("and serves", lambda: is_ready(hung()), 60)
        cluster.kubectl("delete", "llms", "hung", "-n", namespace, "--wait=false")
        cluster.kubectl(
            "delete", "pod", "-n", namespace, "-l", "llmservice.dev/service=hung", "--grace-period=0", "--force"
        )
        stuck.exception(timeout=PATIENCE)


# A token takes some milliseconds of a processor.
VLLM_TOKENS, SHARE = 480, 0.02


@pytest.mark.full
def test_vllm_itself_without_a_processor_is_no_hang(cluster: Cluster, namespace: str, record: Record) -> None:
    """In the middle of a stream, for longer than a hang needs: it goes on, and nobody has restarted anything."""
    cluster.apply(llmservice("starved"), namespace)
    cluster.wait_condition(namespace, "starved", "Ready", "True", timeout=300)
    pod = cluster.pod(namespace, "starved")
    url = f"http://{pod['status']['podIP']}:{HTTP_PORT}/v1/completions"
    body = {**request("starved", "go on", VLLM_TOKENS), "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", url, json=body, timeout=PATIENCE, trust_env=False) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: {")
        with throttled(pod, SHARE):
            began = time.monotonic()
            meanwhile = itertools.takewhile(lambda _: time.monotonic() - began < STARVED_SECONDS, lines)
            tokens = sum(line.startswith("data: {") for line in meanwhile)
        rest = [line.removeprefix("data: ") for line in lines if line]
    record(engine="vLLM", seconds=STARVED_SECONDS, share=SHARE, tokens=tokens)
    assert 0 < tokens < VLLM_TOKENS / 2, "it was starved, and it moved"
    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["usage"]["completion_tokens"] == VLLM_TOKENS
    assert_no_hang(cluster, namespace, "starved")


def log_of(cluster: Cluster, pod: JSON) -> str:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    return cluster.kubectl("logs", "-n", namespace, name, "-c", SERVER_CONTAINER)


def assert_no_hang(cluster: Cluster, namespace: str, service: str) -> None:
    pod = cluster.pod(namespace, service)
    assert SAID not in log_of(cluster, pod)
    assert rolling.restarts(pod) == 0


def request(service: str, prompt: str, tokens: int) -> JSON:
    return {"model": service, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}


def address(service: str) -> str:
    return f"http://{service}/v1/completions"


def ask(client: ClientPod, service: str, prompt: str, tokens: int) -> Answer:
    return client.request(address(service), request(service, prompt, tokens))


def whole(answer: Future[Answer], tokens: int) -> bool:
    got = answer.result(timeout=at_most(150))
    assert got.status == 200, got.body
    used: int = got.json["usage"]["completion_tokens"]
    return used == tokens


@contextmanager
def stopped(pod: JSON) -> Iterator[None]:
    """No process of the pod gets the processor, as where others take all of it."""
    pids = [pid for pid, line in processes_of(pod).items() if "pause" not in line]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
