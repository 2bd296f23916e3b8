"""vLLM itself over two nodes, by tensor and by pipeline parallelism: it says what one process says, and comes back."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import own_namespace
from tests.support.agreement import QUESTIONS, Spoken, greedy, taught
from tests.support.cluster import Cluster, eventually, is_ready
from tests.support.groups import TWO_NODES, WideService, cut, groups_installed, kill_vllm, seconds_until
from tests.support.measured import Record
from tests.support.nodes import NODES, added_node
from tests.support.patience import PATIENCE, at_latest, at_most
from tests.support.services import one_of_several
from tests.support.serving import READY_WITHIN, Endpoint, serving

pytestmark = pytest.mark.full
NAMESPACE = "e2e-groups-vllm"
# Several engines share the processors: none binds its threads.
FLOATING = one_of_several("any")["spec"]["runtime"]
SPLITS: Mapping[str, Mapping[str, Any]] = {
    "tensor-parallel": {"parallelism": TWO_NODES},
    # Compiled: an eager engine with stages dies of its first request on CPUs.
    "pipeline-parallel": {
        "parallelism": {"nodes": 2, "pipelineParallelSize": 2},
        "compilation": {"enforceEager": False},
    },
}
GONE_WITHIN = 5.0


@pytest.fixture(scope="module")
def plain(cluster: Cluster) -> Iterator[Mapping[str, Spoken]]:
    """What one process answers."""
    with groups_installed(cluster), added_node(cluster, engine=True), own_namespace(cluster, NAMESPACE):
        with serving(cluster, NAMESPACE, "plain", runtime=FLOATING) as server:
            said = greedy(server)
        assert taught(said) == len(QUESTIONS)
        yield said


@pytest.mark.parametrize("name", SPLITS)
def test_two_nodes_say_the_same_tokens_and_come_back_from_a_killed_worker(
    cluster: Cluster, plain: Mapping[str, Spoken], name: str, record: Record
) -> None:
    began = time.monotonic()
    with serving(cluster, NAMESPACE, name, runtime=FLOATING, **SPLITS[name]) as server:
        ready = time.monotonic() - began
        wide = WideService(cluster, NAMESPACE, name)
        assert {pod["spec"]["nodeName"] for pod in wide.members().values()} == set(NODES)
        assert greedy(server) == plain
        runs, began = wide.runs(), kill_vllm(wide.members()[1])
        gone = seconds_until("its endpoint is gone", lambda: not is_ready(wide.members()[0]), began)
        eventually("it is served", lambda: wide.is_ready() and wide.answers(), at_most(READY_WITHIN))
        back = time.monotonic() - began
        record(ready_seconds=round(ready, 1), gone_seconds=round(gone, 1), back_seconds=round(back, 1))
        assert gone <= at_latest(GONE_WITHIN)
        assert wide.runs() == runs, "no pod and no container was replaced"
        assert greedy(server) == plain


ENDS_WITHIN = 20.0
"""Seconds until a stream ends whose other rank cannot be reached: 10 until that is lost, 2 in which the others may say
more, and the end of vLLM, which waits for it."""


def test_a_stream_ends_soon_after_the_network_between_its_ranks_was_cut(
    cluster: Cluster, plain: Mapping[str, Spoken], record: Record
) -> None:
    """vLLM alone lets it hang until its step's time is over, a minute here and five by its default."""
    with serving(cluster, NAMESPACE, "cut", runtime=FLOATING, parallelism=TWO_NODES) as server:
        wide = WideService(cluster, NAMESPACE, "cut")
        pods, runs = wide.members(), wide.runs()
        stream = Stream(server)
        eventually("its first words", lambda: stream.events > 2, PATIENCE)
        with cut(pods[0], pods[1]):
            began = time.monotonic()
            eventually("no more words", lambda: not stream.is_alive(), at_most(PATIENCE))
            ended = time.monotonic() - began
            assert not stream.is_whole
            eventually("its endpoint is gone", lambda: not wide.has_endpoint(), PATIENCE)
            assert "has not been heard of" in eventually("the cause", lambda: wide.group().get("cause"), PATIENCE)
        began = time.monotonic()
        eventually("it is served", lambda: wide.is_ready() and wide.answers(), at_most(READY_WITHIN))
        record(stream_ended_seconds=round(ended, 1), back_seconds=round(time.monotonic() - began, 1))
        assert ended <= at_latest(ENDS_WITHIN)
        assert wide.runs() == runs, "no pod and no container was replaced"
        assert greedy(server) == plain


class Stream(threading.Thread):
    """One long answer, read as it comes."""

    def __init__(self, server: Endpoint) -> None:
        super().__init__(daemon=True)
        self.events, self.is_whole, self._server = 0, False, server
        self.start()

    def run(self) -> None:
        body = {"model": self._server.name, "prompt": "once", "max_tokens": 480, "ignore_eos": True, "stream": True}
        with (
            contextlib.suppress(httpx.TransportError),
            httpx.Client(trust_env=False, timeout=at_most(PATIENCE)) as client,
            client.stream("POST", f"{self._server.url}/v1/completions", json=body) as answer,
        ):
            failed = False
            for line in answer.iter_lines():
                failed = failed or '"error"' in line
                self.events += line.startswith("data: ")
                self.is_whole |= line == "data: [DONE]" and not failed
