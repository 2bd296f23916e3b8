"""No replica while nobody asks, with KEDA and the stand-in for vLLM: what is held, answered, and never lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import httpx
import pytest
from llmservice_cli.probe import Mode

from tests.e2e.scaled_to_zero import (
    KEY,
    granted,
    half_a_request,
    keys,
    namespace_with,
    of_service,
)
from tests.support import rolling
from tests.support.cluster import SOMEBODY, Cluster, eventually, is_ready
from tests.support.measured import Record
from tests.support.on_demand import (
    ANSWERED_WITHIN,
    OnDemand,
    activators,
    clients,
    counted,
    held,
    on_demand,
)
from tests.support.patience import PATIENCE, SLOWNESS
from tests.support.serving import requests_in_flight
from tests.support.watching import watching

pytestmark = pytest.mark.autoscaling
NAMESPACE = "e2e-zero"
AT_ONCE = 8
QUIET_SECONDS = 10.0
"""A wake takes less than a second, and KEDA looks each 15 s: what would start a pod is seen in the spec before."""

SERVICES = (
    on_demand("first"),
    on_demand("crowd", {"tokens_per_second": 50, "start_seconds": 5 * SLOWNESS}, batching={"maxNumSeqs": AT_ONCE}),
    on_demand("narrow", {"start_seconds": 3 * SLOWNESS}, {"maxRequests": 1}),
    on_demand("quiet", holding={"maxBytes": "64Ki"}),
    on_demand("guarded", endpoint={"apiKeySecretRef": {"name": "keys", "key": "api-key"}}),
    on_demand("direct"),
    on_demand("slow", {"start_seconds": 12}),
    on_demand("talked"),
)


@pytest.fixture(scope="module")
def there(cluster: Cluster) -> Iterator[str]:
    """A namespace with the services of all stories, each on its way to zero."""
    with namespace_with(cluster, NAMESPACE, [keys("keys"), *granted(NAMESPACE, "guarded"), *SERVICES]):
        yield NAMESPACE


@pytest.fixture
def at_zero(cluster: Cluster, there: str, request: pytest.FixtureRequest) -> OnDemand:
    """The story's service, by KEDA alone, without a pod."""
    service = OnDemand(cluster, there, request.param)
    service.at_zero()
    return service


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("at_zero", [name], indirect=True, ids=[name])


@of("first")
def test_the_first_request_after_a_while_is_answered_by_one_start(
    cluster: Cluster, at_zero: OnDemand, record: Record
) -> None:
    """Idle, then none, then one request: seconds of each phase."""
    assert at_zero.replicas == 0
    with watching(cluster, "pods", NAMESPACE) as pods, watching(cluster, "llmservices", NAMESPACE) as services:
        began = time.time()
        with clients(at_zero) as asking:
            asking.send(1, [Mode.WHOLE_FRESH])
            (row,) = asking.rows()
        assert asking.lost() == []
        woken = services.first(lambda obj: of_service(obj, at_zero) and obj["spec"]["scaling"]["replicas"] == 1)
        made = pods.first(lambda obj: of_service(obj, at_zero))
        ready = pods.first(lambda obj: of_service(obj, at_zero) and is_ready(obj))
        pod = at_zero.serves()
        started = {seen.obj["metadata"]["uid"] for seen in pods.seen if of_service(seen.obj, at_zero)}
    assert started == {pod["metadata"]["uid"]}, "one start"
    assert rolling.events(cluster, NAMESPACE, "first", "Scaled"), "an Event says why"
    phases = {"toScale": woken, "toPod": made, "toReady": ready}
    seconds = {
        f"seconds{name[0].upper()}{name[1:]}": round(seen.at - began, 2) for name, seen in phases.items() if seen
    }
    assert len(seconds) == len(phases)
    record(**seconds, secondsToAnswer=round(row.ended - row.sent, 2), secondsToZero=at_zero.at_zero())
    last = datetime.fromisoformat(status_of(at_zero)["lastUse"]["at"]).timestamp()
    assert made is not None
    assert last >= int(made.at), "by the pod's own count, which the activators keep once it is gone"


def status_of(service: OnDemand) -> Any:
    """What `llmservice status` shows."""
    words = ("status", service.name, "-n", NAMESPACE, "-o", "json")
    (found,) = json.loads(service.cluster.run(sys.executable, "-m", "llmservice_cli", *words))["services"]
    return found


@contextmanager
def peak(service: OnDemand) -> Iterator[list[float]]:
    """Requests in flight of its pods, at one look after another until the end."""
    counts, is_over = [0.0], threading.Event()

    def look() -> None:
        while not is_over.wait(0.02):
            counts.extend(map(requests_in_flight, service.cluster.pods(service.namespace, service.name)))

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield counts
        finally:
            is_over.set()
            looking.result()


@of("crowd")
def test_a_hundred_at_once_are_answered_by_one_replica_a_few_at_a_time(
    cluster: Cluster, at_zero: OnDemand, record: Record
) -> None:
    began = time.monotonic()
    with watching(cluster, "pods", NAMESPACE) as pods, clients(at_zero) as asking, peak(at_zero) as counts:
        asking.send(100)
        held(at_zero, 100)
        # Both while the replica starts, which takes as many times as long as this machine is slow.
        seen_by_command = status_of(at_zero)
        assert at_zero.ask().status_code == 429, "no room for one more"
        eventually("all are answered", lambda: not asking.waiting(), PATIENCE)
        assert asking.lost() == []
        started = {seen.obj["metadata"]["uid"] for seen in pods.seen if of_service(seen.obj, at_zero)}
    most = max(counts)
    record(seconds=round(time.monotonic() - began, 1), mostAtOnce=most)
    waits = seen_by_command["held"]
    assert (waits["requests"], waits["activators"]) == (100, len(activators(cluster)))
    assert 0 < waits["oldestSeconds"] < ANSWERED_WITHIN
    assert (seen_by_command["lastUse"]["method"], seen_by_command["lastUse"]["path"]) == ("POST", "/v1/completions")
    assert len(started) == 1
    assert 1 < most <= AT_ONCE


@of("narrow")
def test_over_the_bound_clients_are_told_to_come_again(cluster: Cluster, at_zero: OnDemand) -> None:
    """Each activator holds one, as they are asked at once; the others get 429 at once, and what is held is answered."""
    sent = 6
    with ThreadPoolExecutor(sent) as pool:
        answers = [each.result() for each in [pool.submit(at_zero.ask) for _ in range(sent)]]
    refused = [each for each in answers if each.status_code != 200]
    assert sent - len(activators(cluster)) <= len(refused) < sent
    for each in refused:
        assert each.status_code == 429
        assert int(each.headers["Retry-After"]) > 0
        assert each.headers["Connection"].lower() == "close"
        assert set(each.json()["error"]) == {"message", "type", "param", "code"}


COMPLETION = {"model": "quiet", "prompt": "Hello", "max_tokens": 3}
UNWOKEN: dict[str, tuple[str, str, Any, int]] = {
    "health": ("GET", "/health", None, 200),
    "ping": ("GET", "/ping", None, 200),
    "names": ("GET", "/v1/models", None, 200),
    "metrics": ("GET", "/metrics", None, 404),
    "an unknown path": ("POST", "/v1/nothing", COMPLETION, 404),
    "what manages a server": ("POST", "/sleep", {}, 404),
    "a page": ("GET", "/v1/completions", None, 405),
    "an unknown model": ("POST", "/v1/completions", COMPLETION | {"model": "other"}, 404),
    "no JSON": ("POST", "/v1/completions", b"{", 400),
    "a list": ("POST", "/v1/completions", b"[]", 400),
    "a body over the bound": ("POST", "/v1/completions", COMPLETION | {"prompt": "x" * 65_536}, 413),
}


@of("quiet")
def test_what_needs_no_replica_is_answered_without_one(cluster: Cluster, at_zero: OnDemand) -> None:
    """And a client that goes before its request is complete, or names another Host, starts nothing either."""
    with watching(cluster, "llmservices", NAMESPACE) as services:
        for what, (method, path, body, status) in UNWOKEN.items():
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            answer = httpx.request(method, at_zero.url + path, content=content, timeout=PATIENCE, trust_env=False)
            assert answer.status_code == status, (what, answer.text)
            if status >= 400:
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, what
        names = httpx.get(
            at_zero.url + "/v1/models", headers={"Host": "first"}, timeout=PATIENCE, trust_env=False
        ).json()
        assert {model["id"] for model in names["data"]} == {"quiet"}, "the port says which service, not the Host"
        half_a_request(at_zero).close()
        other = services.unwanted(
            lambda obj: of_service(obj, at_zero) and obj["spec"]["scaling"]["replicas"], QUIET_SECONDS
        )
    assert other is None
    assert at_zero.is_at_zero()


@of("quiet")
def test_a_gitops_tool_sees_no_drift_at_zero(cluster: Cluster, at_zero: OnDemand) -> None:
    """What it applied, it applies again: no field of it differs, nothing starts, and the service is healthy."""
    (manifest,) = [each for each in SERVICES if each["metadata"]["name"] == at_zero.name]
    words = ("--server-side", "--field-manager", SOMEBODY, "-n", NAMESPACE, "-f", "-")
    cluster.kubectl("apply", "--force-conflicts", *words, stdin=json.dumps(manifest))
    before = cluster.must_get("llmservices", NAMESPACE, at_zero.name)["metadata"]
    assert cluster.kubectl("diff", *words, stdin=json.dumps(manifest)) == ""
    cluster.kubectl("apply", *words, stdin=json.dumps(manifest))
    after = cluster.must_get("llmservices", NAMESPACE, at_zero.name)
    assert after["metadata"]["generation"] == before["generation"]
    assert after["status"]["observedGeneration"] == before["generation"]
    assert at_zero.is_at_zero()


@of("guarded")
def test_a_wrong_key_wakes_nobody_and_a_right_one_does(cluster: Cluster, at_zero: OnDemand) -> None:
    with watching(cluster, "llmservices", NAMESPACE) as services:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
            answer = at_zero.post({"model": "guarded", "prompt": "Hello"}, headers=headers)
            assert (answer.status_code, set(answer.json()["error"])) == (401, {"message", "type", "param", "code"})
        other = services.unwanted(
            lambda obj: of_service(obj, at_zero) and obj["spec"]["scaling"]["replicas"], QUIET_SECONDS
        )
    assert other is None
    body = {"model": "guarded", "prompt": "Hello", "max_tokens": 3}
    assert at_zero.post(body, headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


@of("direct")
def test_while_a_replica_serves_no_request_passes_the_activators(cluster: Cluster, at_zero: OnDemand) -> None:
    """By what they count, once the node's kube-proxy knows that the slice is gone."""
    counters = ("held_total", "forwarded_total", "answered_total", "lost_total")

    def counts() -> dict[str, float]:
        return {name: counted(cluster, name, at_zero) for name in counters}

    with clients(at_zero) as asking:

        def is_passed_by() -> bool:
            before = counts()
            asking.send(8)
            asking.rows()
            return counts() == before

        asking.send(4)
        asking.rows()
        at_zero.serves()
        eventually("requests go to the replica alone", is_passed_by, 30)
        before = counts()
        asking.send(40)
        assert asking.lost() == []
        assert counts() == before
    assert before["held_total"] >= 4, "what was sent at zero was held"


@of("slow")
def test_a_stream_that_waits_gets_comments_until_it_begins(at_zero: OnDemand) -> None:
    """An SSE client sees the head and comments soon, whatever the start takes."""
    body = {"model": "slow", "prompt": "Hello", "max_tokens": 4, "stream": True}
    lines: list[str] = []
    with httpx.stream(
        "POST", at_zero.url + "/v1/completions", json=body, timeout=ANSWERED_WITHIN, trust_env=False
    ) as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    comments = [line for line in lines if line.startswith(":")]
    assert len(comments) >= 2
    assert lines.index(comments[-1]) < next(index for index, line in enumerate(lines) if line.startswith("data:"))
    assert lines[-1] == "data: [DONE]"
    at_zero.serves()


@of("talked")
def test_a_chat_at_zero_says_that_it_waits_and_is_answered(cluster: Cluster, at_zero: OnDemand) -> None:
    """By a port-forward to an activator, which holds the request until a replica answers it."""
    command = (sys.executable, "-m", "llmservice_cli", "chat", "talked", "-n", NAMESPACE, "-m", "hello")
    done = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, bool(done.stdout.strip())) == (0, True), done.stderr
    assert "holds the request and starts one" in done.stderr
