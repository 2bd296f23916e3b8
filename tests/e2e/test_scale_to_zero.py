"""No replica while nobody asks, with KEDA and the stand-in for vLLM: what is held, answered, and never lost."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from llmservice_cli.app import make_parser
from llmservice_cli.init.command import roles
from llmservice_cli.probe.row import Mode
from llmservice_operator.decide.gap import HELD

from tests.e2e import disturbances
from tests.e2e.conftest import own_namespace
from tests.support import rolling
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.keda import autoscaling_installed
from tests.support.measured import Record
from tests.support.on_demand import (
    ANSWERED_WITHIN,
    ON_DEMAND,
    ZERO_WITHIN,
    OnDemand,
    activators,
    clients,
    counted,
    held,
    on_demand,
)
from tests.support.operator import OPERATOR_NAMESPACE
from tests.support.services import llmservice, stand_in
from tests.support.serving import requests_in_flight
from tests.support.traffic import traffic
from tests.support.watching import watching

NAMESPACE = "e2e-zero"
AT_ONCE = 8
KEY = "of-the-team"
QUIET_SECONDS = 10.0
"""A wake takes less than a second, and KEDA looks each 15 s: what would start a pod is seen in the spec before."""

SERVICES = (
    on_demand("first"),
    on_demand("crowd", {"tokens_per_second": 50}, batching={"maxNumSeqs": AT_ONCE}),
    on_demand("narrow", {"start_seconds": 3}, {"maxRequests": 1}),
    on_demand("rounds"),
    on_demand("quiet", holding={"maxBytes": "64Ki"}),
    on_demand("guarded", endpoint={"apiKeySecretRef": {"name": "keys", "key": "api-key"}}),
    on_demand("direct"),
    on_demand("slow", {"start_seconds": 12}),
)


@pytest.fixture(scope="module")
def there(cluster: Cluster) -> Iterator[str]:
    """A namespace with the services of all stories, each on its way to zero."""
    with autoscaling_installed(cluster), own_namespace(cluster, NAMESPACE):
        cluster.apply_all([keys("keys"), *granted("guarded"), *SERVICES], NAMESPACE)
        yield NAMESPACE
        # While KEDA has rights, and the operator too, to let go of them.
        cluster.kubectl("delete", "llms", "--all", "-n", NAMESPACE, "--wait=true", "--timeout=60s")
        eventually("no ScaledObject is left", lambda: not cluster.list("scaledobjects", NAMESPACE), 60)


def granted(name: str, secret: str = "keys") -> Sequence[JSON]:
    """The Role and its binding, as the command line writes them."""
    words = ["init", name, "-n", NAMESPACE, "--model", "hf://a/b", "--min-replicas", "0"]
    return list(roles(make_parser(["init"]).parse_args([*words, "--api-key-secret", f"{secret}/api-key"])))


def keys(name: str) -> JSON:
    """A Secret with KEY."""
    data = {"api-key": base64.b64encode(KEY.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


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


def of_service(obj: JSON, service: OnDemand) -> bool:
    labels = obj["metadata"].get("labels", {})
    return service.name in (labels.get("llmservice.dev/service"), obj["metadata"]["name"])


@of("crowd")
def test_a_hundred_at_once_are_answered_by_one_replica_a_few_at_a_time(
    cluster: Cluster, at_zero: OnDemand, record: Record
) -> None:
    most, began = 0.0, time.monotonic()
    with watching(cluster, "pods", NAMESPACE) as pods, clients(at_zero) as asking:
        asking.send(100)
        held(at_zero, 100)
        eventually("no room for one more", lambda: at_zero.ask().status_code == 429, 5)
        while asking.waiting():
            most = max([most, *map(requests_in_flight, cluster.pods(NAMESPACE, at_zero.name))])
        assert asking.lost() == []
        started = {seen.obj["metadata"]["uid"] for seen in pods.seen if of_service(seen.obj, at_zero)}
    record(seconds=round(time.monotonic() - began, 1), mostAtOnce=most)
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


PHASES = ("no pod is left", "the slice is made", "the last pod ends")


@of("rounds")
@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.full)])
def test_rounds_of_up_and_down_lose_nothing(at_zero: OnDemand, rounds: int, record: Record) -> None:
    up_and_down(at_zero, rounds, record)


@pytest.mark.full
def test_rounds_of_vllm_lose_nothing(cluster: Cluster, there: str, record: Record) -> None:
    cluster.apply(llmservice("vllm", **ON_DEMAND), there)
    service = OnDemand(cluster, there, "vllm")
    service.at_zero(2 * ZERO_WITHIN)
    up_and_down(service, 3, record)


def up_and_down(service: OnDemand, rounds: int, record: Record) -> None:
    """Streamed and whole, on kept and on fresh connections, and each time also into another phase of the way down."""
    began = time.monotonic()
    with clients(service) as asking:
        for number in range(rounds):
            service.down()
            asking.send(8)
            asking.rows()
            service.serves()
            for _ in range(2):  # the second time over connections that the replica kept
                asking.send(4)
                asking.rows()
            into(PHASES[number % len(PHASES)], service)
            asking.send(8)
            asking.rows()
        sent, lost = len(asking.sent), asking.lost()
        reused = sum(row.reused is True for row in asking.rows())
    record(rounds=rounds, sent=sent, lost=len(lost), reused=reused, seconds=round(time.monotonic() - began))
    assert lost == []
    assert reused, "no connection was kept"


def into(phase: str, service: OnDemand) -> None:
    """On the way down until it is there, however often KEDA takes it back for a request of a moment ago."""

    def reached() -> bool:
        if service.replicas:
            service.scale(0)
        pods = service.pods()
        return {
            "no pod is left": not pods,
            "the slice is made": bool(service.slices()),
            "the last pod ends": bool(pods) and all("deletionTimestamp" in pod["metadata"] for pod in pods),
        }[phase]

    eventually(f"{service.name}: {phase}", reached, 120)


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
            answer = httpx.request(method, at_zero.url + path, content=content, timeout=10, trust_env=False)
            assert answer.status_code == status, (what, answer.text)
            if status >= 400:
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, what
        names = httpx.get(at_zero.url + "/v1/models", headers={"Host": "first"}, timeout=10, trust_env=False).json()
        assert {model["id"] for model in names["data"]} == {"quiet"}, "the port says which service, not the Host"
        vanish(at_zero)
        other = services.first(
            lambda obj: of_service(obj, at_zero) and obj["spec"]["scaling"]["replicas"], QUIET_SECONDS
        )
    assert other is None
    assert at_zero.is_at_zero()


def vanish(service: OnDemand) -> None:
    """A client sends a part of its body, and goes."""
    host = service.url.removeprefix("http://")
    with socket.create_connection((host, 80), timeout=10) as connection:
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        connection.sendall(head.encode() + b'{"model": "quiet"')


@of("guarded")
def test_a_wrong_key_wakes_nobody_and_a_right_one_does(cluster: Cluster, at_zero: OnDemand) -> None:
    with watching(cluster, "llmservices", NAMESPACE) as services:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
            answer = at_zero.post({"model": "guarded", "prompt": "Hello"}, headers=headers)
            assert (answer.status_code, set(answer.json()["error"])) == (401, {"message", "type", "param", "code"})
        other = services.first(
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


@pytest.mark.full
def test_a_flood_in_one_namespace_does_not_delay_another(cluster: Cluster, there: str, record: Record) -> None:
    """Both at zero; the one request of the other is among the first that are answered after its pod is ready."""
    slow = {"start_seconds": 8, "tokens_per_second": 5}
    with own_namespace(cluster, "e2e-zero-flood") as theirs:
        cluster.apply(on_demand("flood", slow, {"maxRequests": 2000}, batching={"maxNumSeqs": 2}), theirs)
        cluster.apply(on_demand("other"), there)
        flood, other = OnDemand(cluster, theirs, "flood"), OnDemand(cluster, there, "other")
        flood.at_zero()
        other.at_zero()
        with clients(flood) as many:
            many.send(400, [Mode.WHOLE_FRESH], [4])
            held(flood, 400)
            with clients(other) as one:
                one.send(1)
                (row,) = one.rows()
            assert one.lost() == []
            assert many.waiting() > 200, "the flood was over before"
            cluster.kubectl("delete", "llms", "flood", "-n", theirs, "--wait=true", "--timeout=60s")
            many.rows()
    record(secondsToAnswer=round(row.ended - row.sent, 2))
    assert row.ended - row.sent < ANSWERED_WITHIN / 4


@pytest.mark.full
def test_two_services_never_have_one_port(cluster: Cluster, there: str) -> None:
    ports = {name: cluster.status(there, name)["holding"]["port"] for name in ("first", "crowd", "narrow", "direct")}
    assert len(set(ports.values())) == len(ports)
    for name, port in ports.items():
        (uid,) = (cluster.must_get("llmservices", there, name)["metadata"]["uid"],)
        lease = cluster.must_get("leases", OPERATOR_NAMESPACE, f"llmservice-port-{port}")
        assert lease["spec"]["holderIdentity"] == f"{there}/{name}/{uid}"


@pytest.mark.full
def test_keys_that_nobody_granted_keep_a_replica(cluster: Cluster, there: str) -> None:
    """The condition says which Role; with it the service goes to zero."""
    reference = {"endpoint": {"apiKeySecretRef": {"name": "their-keys", "key": "api-key"}}}
    cluster.apply_all([keys("their-keys"), on_demand("ungranted", **reference)], there)
    said = cluster.wait_condition(there, "ungranted", "Autoscaled", "False", reason="HoldingUnavailable", timeout=120)
    assert "their-keys" in said["message"]
    service = OnDemand(cluster, there, "ungranted")
    assert len(cluster.pods(there, "ungranted")) == 1
    assert service.post({}, headers={"Authorization": "Bearer wrong"}).status_code == 401
    cluster.apply_all(granted("ungranted", "their-keys"), there)
    service.at_zero()


@pytest.mark.full
@pytest.mark.parametrize(("strategy", "replicas"), [("Recreate", 2), ("Replace", 1)])
def test_a_rollout_that_leaves_no_replica_loses_nothing(
    cluster: Cluster, there: str, strategy: str, replicas: int, record: Record
) -> None:
    """Without autoscaling; the same without holding is in test_no_request_lost.py, with the requests that it costs."""
    name, within, load = disturbances.NAME, 90, ("--rate", "8", "--output-tokens", "10,20,80")
    scaling = {"replicas": replicas, "holding": {"rollouts": True, "maxRequests": 1000}}
    behaviour = {"start_seconds": 2, "tokens_per_second": 30}
    cluster.apply(stand_in(name, behaviour, scaling=scaling, rollout={"strategy": strategy}), there)
    cluster.wait_condition(there, name, "Ready", "True", timeout=within)
    service = OnDemand(cluster, there, name)
    with (
        watching(cluster, "llmservices", there) as services,
        traffic(cluster, there, name, "--duration", "1h", *load) as probe,
    ):
        world = disturbances.World(cluster, there, disturbances.STAND_IN, load, probe, within, replicas)
        world.settled()
        disturbances.nothing_is_lost(world, disturbances.rolling_update, record)
        assert services.first(lambda obj: of_service(obj, service) and gap_of(obj) == HELD), "the status tells of it"
        eventually("the activators are out of the path", lambda: not service.slices(), 30)
    assert probe.unaccounted() == [], "after the rollout"
    assert gap_of(cluster.must_get("llmservices", there, name)) == ""


def gap_of(obj: JSON) -> str:
    return str(obj.get("status", {}).get("rollout", {}).get("gap", ""))
