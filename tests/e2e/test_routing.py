"""Prompts that are routed: the Service leads to a router, past it while none is ready, and nothing is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from llmservice_api.constants import ROUTER_LABEL
from llmservice_cli.load.answer import Loss

from localcluster import addednode
from localcluster.install import ROUTER_IMAGE
from tests.e2e.disturbances import (
    BLIND_STORIES,
    KILLS,
    NAME,
    ROUTED,
    Story,
    Victim,
    World,
    delete_pod,
    nothing_is_lost,
    only_what_kubernetes_cannot_save,
    operator_restart,
    patient,
    rolling_update,
    term_while_serving,
    words,
    world,
)
from tests.support.audit import Right, since_installed
from tests.support.client import ClientPod
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.host import without
from tests.support.measured import Record
from tests.support.nodes import FIRST, SECOND, added_node
from tests.support.operator import scale_operator
from tests.support.patience import KUBECTL_TIMEOUT, PATIENCE, at_latest, at_most
from tests.support.routing import addresses, leads_to, program_of, ready_routers, routers, routing_installed
from tests.support.services import stand_in

PAST_WITHIN = 5.0


@pytest.fixture(scope="module", autouse=True)
def routing(cluster: Cluster) -> Iterator[None]:
    with routing_installed(cluster):
        yield


@pytest.fixture(scope="module")
def routed(cluster: Cluster, routing: None) -> Iterator[World]:
    with world(cluster, "e2e-routing", ROUTED) as made:
        made.cluster.wait_condition(made.namespace, NAME, "RoutingReady", "True", timeout=PATIENCE)
        yield made


def leads_to_routers(routed: World) -> bool:
    pods = ready_routers(routed.cluster, routed.namespace, NAME)
    return bool(pods) and leads_to(routed.cluster, routed.namespace, NAME) == addresses(pods)


def off_and_on(routed: World) -> None:
    cluster, namespace = routed.cluster, routed.namespace
    routed.strike()
    routed.change(routing=None)
    eventually("no pod of the router", lambda: not routers(cluster, namespace, NAME), PATIENCE)
    assert leads_to(cluster, namespace, NAME) == addresses(routed.pods())
    routed.change(routing={"mode": "router"})
    eventually("it leads to the router", lambda: leads_to_routers(routed), PATIENCE)


def a_router_is_deleted(routed: World) -> None:
    struck = ready_routers(routed.cluster, routed.namespace, NAME)[0]
    routed.strike()
    routed.cluster.kubectl("delete", "pod", struck["metadata"]["name"], "-n", routed.namespace, "--wait=false")
    eventually("two routers", lambda: len(ready_routers(routed.cluster, routed.namespace, NAME)) == 2, PATIENCE)


def another_policy(routed: World) -> None:
    """Which replaces the router's pods, and no replica."""
    before = {pod["metadata"]["uid"] for pod in routed.pods()}
    old = {pod["metadata"]["uid"] for pod in routers(routed.cluster, routed.namespace, NAME)}
    routed.strike()
    routed.change(routing={"mode": "router", "policy": "power_of_two"})

    def are_new() -> bool:
        found = ready_routers(routed.cluster, routed.namespace, NAME)
        return len(found) == 2 and old.isdisjoint(pod["metadata"]["uid"] for pod in found)

    eventually("new routers", are_new, PATIENCE)
    assert {pod["metadata"]["uid"] for pod in routed.pods()} == before


STORIES: list[Story] = [off_and_on, a_router_is_deleted, delete_pod, rolling_update, another_policy, term_while_serving]


@pytest.mark.parametrize("story", STORIES, ids=words)
def test_nothing_is_lost(routed: World, story: Story, record: Record) -> None:
    nothing_is_lost(routed, story, record)
    eventually("it leads to the router", lambda: leads_to_routers(routed), PATIENCE)


def envoy(pod: JSON) -> int:
    return program_of(pod, "envoy")


def vllm_router(pod: JSON) -> int:
    return program_of(pod, "vllm::router")  # as it titles itself


def the_first_process(pod: JSON) -> int:
    return program_of(pod, "llmservice_router")


def struck_router(routed: World) -> JSON:
    """One of two that choose by prompts."""
    routed.change(routing={"mode": "router", "policy": "cache_aware"})
    eventually("two that choose by prompts", lambda: len(by_prompts(routed)) == 2, PATIENCE)
    return min(by_prompts(routed), key=lambda pod: pod["status"]["containerStatuses"][0]["restartCount"])


@pytest.mark.parametrize("victim", [envoy, pytest.param(vllm_router, marks=pytest.mark.full)], ids=words)
def test_a_killed_program_is_started_again_and_loses_no_later_request(
    routed: World, victim: Victim, record: Record
) -> None:
    """In its container, so that its port is closed for a moment, or prompts go to any replica."""
    struck = struck_router(routed)
    killed, restarts = victim(struck), struck["status"]["containerStatuses"][0]["restartCount"]

    def is_back(world: World, struck: JSON) -> None:
        def look() -> bool:
            name = struck["metadata"]["name"]
            now = next((each for each in by_prompts(world) if each["metadata"]["name"] == name), None)
            assert now is None or now["status"]["containerStatuses"][0]["restartCount"] == restarts
            return now is not None and runs(victim, now) not in (None, killed)

        eventually("the program again", look, PATIENCE)

    only_what_kubernetes_cannot_save(routed, victim, record, struck, is_back)


def runs(victim: Victim, pod: JSON) -> int | None:
    try:
        return victim(pod)
    except ValueError:  # there is none
        return None


@pytest.mark.full
def test_a_killed_router_loses_no_later_request(routed: World, record: Record) -> None:
    """With its first process the container ends; the other pod goes on."""
    only_what_kubernetes_cannot_save(routed, the_first_process, record, struck_router(routed))


def by_prompts(routed: World) -> list[JSON]:
    """Ready pods of the router with vllm-router in them."""
    pods = ready_routers(routed.cluster, routed.namespace, NAME)
    return [pod for pod in pods if "--policy=cache_aware" in pod["spec"]["containers"][0]["args"]]


def up_and_down(routed: World) -> None:
    routed.strike()
    routed.scale(4)
    routed.settled()
    routed.scale(1)
    routed.settled()
    routed.scale(2)


def test_no_request_is_lost_between_one_replica_and_four(routed: World, record: Record) -> None:
    nothing_is_lost(routed, up_and_down, record)


@pytest.mark.full
@pytest.mark.parametrize("victim", KILLS, ids=words)
def test_a_killed_replica_loses_no_later_request(routed: World, victim: Victim, record: Record) -> None:
    only_what_kubernetes_cannot_save(routed, victim, record)


@pytest.mark.full
@pytest.mark.parametrize("story", [operator_restart, *BLIND_STORIES], ids=words)
def test_nothing_is_lost_without_a_control_plane(routed: World, story: Story, record: Record) -> None:
    nothing_is_lost(routed, story, record)


def the_routers_nodes_are_drained(routed: World) -> None:
    """One and then the other, which has the routers by then; their budget has them go one after the other."""
    with added_node(routed.cluster):
        addednode.copy_images(routed.cluster.paths, SECOND, (ROUTER_IMAGE,))
        routed.strike()
        for node, other in ((FIRST, SECOND), (SECOND, FIRST)):
            whose = ("--delete-emptydir-data", f"--pod-selector={ROUTER_LABEL}={NAME}")
            routed.cluster.kubectl("drain", node, *whose, KUBECTL_TIMEOUT, timeout=at_most(PATIENCE))
            eventually(f"two routers on {other}", lambda on=other: nodes_of_routers(routed) == [on, on], PATIENCE)  # type: ignore[misc]
            routed.cluster.kubectl("uncordon", node)


def nodes_of_routers(routed: World) -> list[str]:
    return [pod["spec"]["nodeName"] for pod in ready_routers(routed.cluster, routed.namespace, NAME)]


@pytest.mark.full
def test_nothing_is_lost_where_nodes_are_drained(routed: World, record: Record) -> None:
    nothing_is_lost(routed, the_routers_nodes_are_drained, record)


def test_without_a_ready_router_it_leads_to_the_replicas(routed: World, record: Record) -> None:
    """Both are stopped, and so not killed: their probes get no answer, and what they hold is answered. Between the
    last one's end as an endpoint and the first replica connections are refused, which a client tries again."""
    cluster, namespace, story = routed.cluster, routed.namespace, "no router is ready"
    eventually("both routers", lambda: len(ready_routers(cluster, namespace, NAME)) == 2, PATIENCE)
    stopped = [program_of(pod, "llmservice_router") for pod in ready_routers(cluster, namespace, NAME)]
    with patient(routed, story) as tries_again, routed.probe.during(story):
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            eventually("past it", lambda: leads_to(cluster, namespace, NAME) == addresses(routed.pods()), PATIENCE)
            cluster.wait_condition(namespace, NAME, "RoutingReady", "False", reason="RouterNotReady", timeout=PATIENCE)
            cluster.must_have(namespace, NAME, Ready="True", Available="True")
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        eventually("it leads to the router", lambda: leads_to_routers(routed), PATIENCE)
    felt = routed.probe.stories[story].ended
    record(lost=dict(felt.by_kind), longestGap=round(felt.longest_gap, 2))
    assert set(felt.by_kind) <= {Loss.NOT_CONNECTED}, routed.probe.of(story)
    assert felt.longest_gap < at_latest(PAST_WITHIN)
    assert tries_again.lost(story) == 0, tries_again.of(story)
    cluster.wait_condition(namespace, NAME, "RoutingReady", "True", timeout=PATIENCE)


def test_the_router_follows_the_replicas_without_operator_and_api_server(routed: World, record: Record) -> None:
    cluster, namespace = routed.cluster, routed.namespace
    with scale_operator(cluster, 0), routed.story("a replica goes, and no operator runs"):
        struck = routed.answering()[0]
        moment = routed.strike(struck)
        cluster.kubectl("delete", "pod", struck["metadata"]["name"], "-n", namespace, "--wait=false")
        eventually("another replica", lambda: len([pod for pod in routed.pods() if is_ready(pod)]) == 2, PATIENCE)
        with without(cluster, "kube-apiserver"):
            routed.probe.await_everything_before(moment + 10)
    routed.probe.assert_nothing_lost("a replica goes, and no operator runs")


def test_a_client_cannot_add_a_replica_of_its_own(cluster: Cluster, routed: World) -> None:
    client = ClientPod.start(cluster, routed.namespace)
    for path in ("workers", "add_worker?url=http://10.0.0.1:8000"):
        answer = client.request(f"http://{NAME}/{path}", {"url": "http://10.0.0.1:8000"})
        assert answer.status == 404, "of a replica"


def test_the_operator_uses_the_rights_that_routing_gives(cluster: Cluster, routed: World) -> None:
    used, refused = since_installed(cluster)
    assert refused == set()
    assert {Right("discovery.k8s.io", "endpointslices", verb) for verb in ("create", "patch", "delete")} <= used


def test_at_zero_and_back_by_hand(cluster: Cluster, namespace: str) -> None:
    service = stand_in("slow", {"start_seconds": 1}, routing={"mode": "router"}, scaling={"replicas": 1})
    cluster.apply(service, namespace)
    cluster.wait_condition(namespace, "slow", "RoutingReady", "True", timeout=PATIENCE)
    cluster.patch("llmservices", namespace, "slow", {"spec": {"scaling": {"replicas": 0}}})
    eventually("nothing", lambda: not leads_to(cluster, namespace, "slow"), PATIENCE)
    cluster.wait_condition(namespace, "slow", "RoutingReady", "Unknown", timeout=PATIENCE)
    cluster.patch("llmservices", namespace, "slow", {"spec": {"scaling": {"replicas": 1}}})
    cluster.wait_condition(namespace, "slow", "RoutingReady", "True", timeout=PATIENCE)
    assert leads_to(cluster, namespace, "slow") == addresses(ready_routers(cluster, namespace, "slow"))
