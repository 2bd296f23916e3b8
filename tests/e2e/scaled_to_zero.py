"""Services without a replica, for several files of stories: their namespace, their keys, and rounds up and down."""

from __future__ import annotations

import base64
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.sharedctypes import Synchronized
from typing import NamedTuple

from llmservice_cli.app import options_of
from llmservice_cli.init.command import roles

from benchmarks.autoscaling import attacked
from tests.e2e.conftest import own_namespace
from tests.support.cluster import JSON, Cluster, eventually
from tests.support.keda import autoscaling_installed
from tests.support.measured import Record
from tests.support.on_demand import OnDemand, clients, on_demand
from tests.support.patience import KUBECTL_TIMEOUT, PATIENCE

KEY = "of-the-team"


@contextmanager
def namespace_with(cluster: Cluster, namespace: str, manifests: Iterable[JSON]) -> Iterator[str]:
    """A namespace with these objects, on a cluster with KEDA."""
    with autoscaling_installed(cluster), another_namespace_with(cluster, namespace, manifests):
        yield namespace


@contextmanager
def another_namespace_with(cluster: Cluster, namespace: str, manifests: Iterable[JSON]) -> Iterator[str]:
    """The same where KEDA is there already."""
    with own_namespace(cluster, namespace):
        cluster.apply_all(manifests, namespace)
        yield namespace
        # While KEDA has rights, and the operator too, to let go of them.
        cluster.kubectl("delete", "llms", "--all", "-n", namespace, "--wait=true", KUBECTL_TIMEOUT)
        eventually("no ScaledObject is left", lambda: not cluster.list("scaledobjects", namespace), 180)


def granted(namespace: str, name: str, secret: str = "keys") -> Sequence[JSON]:
    """The Role and its binding, as the command line writes them."""
    words = ["init", name, "-n", namespace, "--model", "hf://a/b", "--min-replicas", "0"]
    return list(roles(options_of([*words, "--api-key-secret", f"{secret}/api-key"])))


def keys(name: str) -> JSON:
    """A Secret with KEY."""
    data = {"api-key": base64.b64encode(KEY.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def of_service(obj: JSON, service: OnDemand) -> bool:
    labels = obj["metadata"].get("labels", {})
    return service.name in (labels.get("llmservice.dev/service"), obj["metadata"]["name"])


def half_a_request(service: OnDemand) -> socket.socket:
    """The connection of a client that sent a part of its body."""
    connection = socket.create_connection((service.url.removeprefix("http://"), 80), timeout=PATIENCE)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    connection.sendall(f'{head}{{"model": "{service.name}"'.encode())
    return connection


ATTACKED = 4
"""Namespaces."""


@contextmanager
def attack(cluster: Cluster, polled: Sequence[OnDemand]) -> Iterator[Callable[[], int]]:
    """Beside the block: clients of services at zero in namespaces of their own, whose bodies take long to look through
    and whose connections stay idle, and one that lists the models of `polled` each second. None of it wakes anything.
    Gives the number of bodies that were answered so far.
    """
    processes = multiprocessing.get_context("spawn")
    answers: Synchronized[int] = processes.Value("q", 0)
    with ExitStack() as stack:
        names = [f"e2e-zero-attack-{number}" for number in range(ATTACKED)]
        for name in names:
            stack.enter_context(another_namespace_with(cluster, name, [on_demand("attacked")]))
        services = [OnDemand(cluster, name, "attacked") for name in names]
        for service in services:
            service.at_zero()
        attackers = [processes.Process(target=attacked.attack, args=(service.url, answers)) for service in services]
        poller = processes.Process(target=attacked.poll, args=([service.url for service in polled],))
        with attacked.started(*attackers, poller):
            eventually("all attack", lambda: answers.value >= len(attacked.BODIES) * ATTACKED, 300)
            before = answers.value
            yield lambda: answers.value - before
            assert answers.value > before, "the attack ended early"
            assert all(each.is_alive() for each in (*attackers, poller))
        for service in services:
            assert service.is_at_zero(), "what nobody can answer started a replica"


PHASES = ("no pod is left", "the slice is made", "the last pod ends")


class Rounds(NamedTuple):
    """Of one service. `sent` counts requests, `reused` those on a connection that was kept, `lost` is in words."""

    rounds: int
    sent: int
    reused: int
    seconds: float
    lost: Sequence[str]


def reported(record: Record, each: Sequence[Rounds], **more: int) -> None:
    lost = [request for one in each for request in one.lost]
    sums = {name: sum(getattr(one, name) for one in each) for name in ("rounds", "sent", "reused")}
    record(**sums, lost=len(lost), seconds=round(max(one.seconds for one in each)), **more)
    assert lost == []
    assert sums["reused"], "no connection was kept"


def up_and_down(service: OnDemand, rounds: int) -> Rounds:
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
        reused = sum(row.reused is True for row in asking.rows())
        return Rounds(rounds, len(asking.sent), reused, time.monotonic() - began, asking.lost())


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
