"""The operator's next version renders pods otherwise, and no model restarts for it: until it is asked for, in turns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial

import pytest

from localcluster.install import STAND_IN_IMAGE
from tests.e2e.conftest import own_namespace
from tests.support import next_version, rolling
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.nodes import FIRST, SECOND, AddedNode, added_node, await_condition, cordoned, spread
from tests.support.patience import PATIENCE
from tests.support.rolling import restarts, rollout
from tests.support.services import idle, merge, stand_in
from tests.support.simulated_node import TOLERATION, SimulatedNode, give_up, simulated_node

NAMESPACE, OTHER = "e2e-upgrade", "e2e-upgrade-other"
SPREAD = "one"
# Whose turn it is is decided for the whole cluster.
NAMES = {SPREAD: NAMESPACE, "two": NAMESPACE, "three": OTHER}
EDITED = "edited"
SIMULATED = "e2e-upgrade-lost"
DEFAULTED, DROPPED, FORGOTTEN = "defaulted", "dropped", "forgotten"
"""Services without pods: of the installation's own image, one of them with a method of speculation that the next one's
vLLM has not, and of a vLLM that the next version does not know."""
NEXT_IMAGE = "registry.local/vllm-cpu:v0.33.0"
MEDUSA = {"method": "medusa", "model": {"uri": "file:///models/heads"}, "numSpeculativeTokens": 2}
BLOCKED = {DROPPED: "medusa of --speculative-config", FORGOTTEN: "spec.runtime.version"}
"""What the status says of the update that waits."""


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Services that the present version started: their pods' uids by name."""
    everywhere = merge(spread(SPREAD), {"spec": {"tolerations": [TOLERATION]}})
    quick = partial(stand_in, behaviour={"start_seconds": 1}, drain={"timeoutSeconds": 0})
    old = {"image": STAND_IN_IMAGE, "version": f"{next_version.FORGOTTEN}.0"}
    services = [
        quick(SPREAD, podTemplate=everywhere),
        quick("two"),
        quick(EDITED),
        idle(DEFAULTED, fitPolicy="Ignore"),
        idle(DROPPED, fitPolicy="Ignore", speculativeDecoding=MEDUSA),
        idle(FORGOTTEN, fitPolicy="Ignore", runtime=old),
    ]
    with own_namespace(cluster, NAMESPACE), own_namespace(cluster, OTHER):
        cluster.apply_all(services, NAMESPACE)
        cluster.apply(quick("three"), OTHER)
        cluster.wait_condition(OTHER, "three", "Ready", "True", timeout=60)
        for service in services:
            cluster.wait_condition(NAMESPACE, service["metadata"]["name"], "Ready", "True", timeout=60)
        yield {name: next(iter(pods(cluster, name))) for name in NAMES}


@pytest.fixture(scope="module")
def next_one(cluster: Cluster, served: dict[str, str]) -> Iterator[ExitStack]:
    """The next version leads, with a limit of the administrator's own; the present one again once this is closed."""
    with ExitStack() as leads:
        values = ("operator.maxConcurrentUpdates=2", f"services.defaultCpuImage={NEXT_IMAGE}")
        leads.enter_context(next_version.leading(cluster, *(word for value in values for word in ("--set", value))))
        yield leads


def pods(cluster: Cluster, name: str) -> dict[str, JSON]:
    return rolling.pods(cluster, NAMES.get(name, NAMESPACE), name)


def is_of_next(pod: JSON) -> bool:
    return bool(pod["spec"].get("hostname") == next_version.HOSTNAME)


def is_of_present(pod: JSON) -> bool:
    return not is_of_next(pod)


def await_pending(cluster: Cluster) -> None:
    for name, namespace in NAMES.items():
        eventually(f"an update pending of {name}", partial(rolling.is_pending, cluster, namespace, name), 60)


def runs_on_as_it_was(cluster: Cluster, name: str, served: dict[str, str]) -> None:
    """Its first pod, and every other one, is of the version that the service was started with."""
    cluster.wait_condition(NAMES[name], name, "Ready", "True", timeout=60)
    there = pods(cluster, name)
    assert served[name] in there
    assert restarts(there[served[name]]) == 0
    assert not any(map(is_of_next, there.values())), "as recorded, added replicas too"
    assert rollout(cluster, NAMES[name], name)["updatePending"] is True


def test_an_upgrade_restarts_nothing_whatever_else_changes(
    cluster: Cluster, served: dict[str, str], next_one: ExitStack
) -> None:
    await_pending(cluster)
    cluster.patch("llmservices", NAMESPACE, "two", {"spec": {"drain": {"timeoutSeconds": 1}}})
    for name in NAMES:
        runs_on_as_it_was(cluster, name, served)


def test_the_status_names_what_runs_and_not_what_would_be_made_now(
    cluster: Cluster, served: dict[str, str], next_one: ExitStack
) -> None:
    eventually("an update pending", partial(rolling.is_pending, cluster, NAMESPACE, DEFAULTED), 60)
    (container,) = cluster.must_get("deployments", NAMESPACE, DEFAULTED)["spec"]["template"]["spec"]["containers"]
    assert container["image"] != NEXT_IMAGE
    runtime = cluster.status(NAMESPACE, DEFAULTED)["effective"]["runtime"]
    assert (runtime["image"], runtime["version"]) == (container["image"], "0.32.0")
    assert cluster.status(NAMESPACE, "two")["effective"]["drain"] == {"timeoutSeconds": 0}, (
        "the edit waits for the next rollout"
    )


@pytest.mark.parametrize("name", BLOCKED)
def test_what_it_would_refuse_now_stays_accepted(
    cluster: Cluster, served: dict[str, str], next_one: ExitStack, name: str
) -> None:
    def blocked() -> str:
        return str(rollout(cluster, NAMESPACE, name).get("updateBlocked") or "")

    assert BLOCKED[name] in eventually("what blocks an update", blocked, 60)
    for condition in ("Accepted", "Ready"):
        cluster.wait_condition(NAMESPACE, name, condition, "True", timeout=10)


def test_a_version_that_it_does_not_know_any_more_is_scaled(
    cluster: Cluster, served: dict[str, str], next_one: ExitStack
) -> None:
    try:
        cluster.kubectl("scale", f"llms/{FORGOTTEN}", "--replicas=2", "-n", NAMESPACE)
        eventually(
            "two replicas",
            lambda: cluster.must_get("deployments", NAMESPACE, FORGOTTEN)["spec"]["replicas"] == 2,
            30,
        )
    finally:
        cluster.kubectl("scale", f"llms/{FORGOTTEN}", "--replicas=0", "-n", NAMESPACE)


def a_simulated_node(cluster: Cluster) -> AbstractContextManager[SimulatedNode]:
    return simulated_node(cluster, SIMULATED)


LOSSES = [
    pytest.param(a_simulated_node, SIMULATED, id="an object without a kubelet"),
    pytest.param(added_node, SECOND, id="a real node", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("a_node", "name"), LOSSES)
def test_what_a_lost_node_takes_along_comes_again_as_it_was(
    cluster: Cluster,
    served: dict[str, str],
    next_one: ExitStack,
    a_node: Callable[[Cluster], AbstractContextManager[SimulatedNode | AddedNode]],
    name: str,
) -> None:
    with a_node(cluster) as node:
        # The scheduler may hear of the node later than the test: the other one is closed meanwhile.
        with cordoned(cluster, FIRST):
            cluster.kubectl("scale", f"llms/{SPREAD}", "--replicas=2", "-n", NAMESPACE)
            (taken,) = eventually("a pod on it", lambda: on_node(cluster, name), 30)
        assert is_of_present(pods(cluster, SPREAD)[taken])
        node.lose()
        await_condition(cluster, name, "Ready", "Unknown", 60)
        give_up(cluster, name)
        eventually("another in its place", lambda: is_replaced(cluster, taken), 30)
        runs_on_as_it_was(cluster, SPREAD, served)
        assert on_node(cluster, name) == []
    cluster.kubectl("scale", f"llms/{SPREAD}", "--replicas=1", "-n", NAMESPACE)
    eventually("one pod", lambda: len(pods(cluster, SPREAD)) == 1, 30)


def is_replaced(cluster: Cluster, taken: str) -> bool:
    there = pods(cluster, SPREAD)
    return taken not in there and len(there) == 2


def on_node(cluster: Cluster, node: str) -> list[str]:
    return [uid for uid, pod in pods(cluster, SPREAD).items() if pod["spec"].get("nodeName") == node]


def test_it_takes_effect_with_the_next_change_that_needs_a_restart(cluster: Cluster, next_one: ExitStack) -> None:
    assert not any(map(is_of_next, pods(cluster, EDITED).values()))
    cluster.patch("llmservices", NAMESPACE, EDITED, {"spec": {"batching": {"maxNumSeqs": 7}}})
    cluster.wait_condition(NAMESPACE, EDITED, "Ready", "True", timeout=60)
    assert all(map(is_of_next, pods(cluster, EDITED).values()))


@dataclass
class Turns:
    """What was seen of an update of all services."""

    most: int = 0
    """Services that were under way at one look."""
    waited: set[str] = field(default_factory=set)


def asked_for(cluster: Cluster, word: str, is_done: Callable[[JSON], bool]) -> Turns:
    """All services are asked at once to take what this operator renders; watched until all have."""
    asked = {"metadata": {"annotations": {"llmservice.dev/update-requested": word}}}
    for name, namespace in NAMES.items():
        cluster.patch("llmservices", namespace, name, asked)
    seen, done = Turns(), set[str]()
    deadline = time.monotonic() + PATIENCE
    while done != set(NAMES):
        assert time.monotonic() < deadline, f"only {done} are done"
        under_way = set[str]()
        for name, namespace in NAMES.items():
            there = pods(cluster, name).values()
            if rollout(cluster, namespace, name).get("updateWaiting"):
                seen.waited.add(name)
            if any(map(is_done, there)):
                (done if all(is_done(p) and is_ready(p) for p in there) else under_way).add(name)
        seen.most = max(seen.most, len(under_way - done))
        time.sleep(0.1)
    for name, namespace in NAMES.items():
        cluster.wait_condition(namespace, name, "Ready", "True", timeout=60)
        eventually(f"nothing pending of {name}", partial(rolling.is_settled, cluster, namespace, name), 30)
    return seen


def test_it_takes_effect_on_request_as_many_at_a_time_as_the_limit_says(cluster: Cluster, next_one: ExitStack) -> None:
    seen = asked_for(cluster, "now", is_of_next)
    assert seen.most == 2
    assert len(seen.waited) == 1


def test_one_at_a_time_in_all_namespaces_where_no_limit_is_set(cluster: Cluster, next_one: ExitStack) -> None:
    """The way back to the present version is an upgrade too."""
    before = {name: set(pods(cluster, name)) for name in NAMES}
    next_one.close()
    await_pending(cluster)
    assert {name: set(pods(cluster, name)) for name in NAMES} == before
    seen = asked_for(cluster, "again", is_of_present)
    assert seen.most == 1
    assert len(seen.waited) == 2
    cluster.run(sys.executable, "-m", "llmservice_cli", "update", EDITED, "-n", NAMESPACE)
    eventually("the one that a command asked for", lambda: all(map(is_of_present, pods(cluster, EDITED).values())), 60)
