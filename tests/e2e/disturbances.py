"""What happens to the pods of a service, to the operator and to the control plane while requests run, and what is lost.

One service, one `llmservice probe` beside it all the time, and one story after the other, each a row of the table that
the figures make: disturbance, requests sent, requests lost. A story ends when as many replicas as wanted are ready; a
server that is draining then drains on during the next one, which makes that one harder.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from llmservice_api.constants import REVISION_LABEL, has_api
from llmservice_cli.load.answer import Loss

from localcluster.progress import Progress
from tests.e2e.conftest import own_namespace
from tests.support import next_version, rolling, routing
from tests.support.cluster import JSON, Cluster, eventually, is_ready
from tests.support.groups import HYBRID_ENGINES, TWO_NODES
from tests.support.host import engine_of, pause, supervisor_of, terminate, without
from tests.support.measured import Record
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE, leader, operator_pods
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import one_of_several, stand_in
from tests.support.traffic import Traffic, in_figures, traffic

NAME = "steady"
STAND_IN, VLLM, GROUPS, HYBRID, ROUTED = "stand-in", "vLLM", "groups", "hybrid", "routed"
"""The last three of the stand-in: each replica on two nodes, of which with hybrid balancing both answer requests; and
with a router."""


@dataclass
class World:
    """A service with requests on it."""

    cluster: Cluster
    namespace: str
    engine: str
    load: Sequence[str]
    probe: Traffic
    settles_within: float
    gone: dict[str, float] = field(default_factory=dict)
    """When each pod that went was first seen to go, by its name."""

    def pods(self) -> list[JSON]:
        """Those that are to stay, oldest first."""
        for pod in self.cluster.list("pods", self.namespace, f"llmservice.dev/service={NAME}"):
            if "deletionTimestamp" in pod["metadata"]:
                self.gone.setdefault(pod["metadata"]["name"], time.time())
        return self.cluster.pods(self.namespace, NAME)

    def answering(self) -> list[JSON]:
        """Those that requests go to: of a replica over several nodes its leader, with hybrid balancing all."""
        return [pod for pod in self.pods() if has_api(pod["metadata"]["labels"])]

    def strike(self, *pods: JSON) -> float:
        """The moment of a story's blow, at which these pods answer somebody; whichever pods, if none are named."""
        return self.probe.strike(*(pods or self.answering()))

    def change(self, **spec: object) -> None:
        self.cluster.patch("llmservices", self.namespace, NAME, {"spec": spec})

    def scale(self, replicas: int) -> None:
        self.change(scaling={"replicas": replicas})

    def settled(self) -> None:
        """As many pods as wanted, of the current template, all ready."""

        def look() -> bool:
            service = self.cluster.must_get("llmservices", self.namespace, NAME)
            spec, status, pods = service["spec"], service["status"], self.pods()
            current = [pod for pod in pods if is_ready(pod) and _revision(pod) == status["rollout"]["revision"]]
            wanted = spec["scaling"]["replicas"] * spec.get("parallelism", {}).get("nodes", 1)
            is_seen: bool = status["observedGeneration"] == service["metadata"]["generation"]
            return is_seen and len(current) == len(pods) == wanted

        eventually("its replicas", look, self.settles_within)
        self.cluster.wait_condition(self.namespace, NAME, "Ready", "True", timeout=self.settles_within)

    @contextmanager
    def story(self, name: str) -> Iterator[None]:
        """From the blow until all is as it is wanted."""
        with self.probe.during(name):
            yield
            self.settled()


def _revision(pod: JSON) -> str:
    revision: str = pod["metadata"]["labels"][REVISION_LABEL]
    return revision


@contextmanager
def under_load(cluster: Cluster, namespace: str, service: JSON, within: float, *load: str) -> Iterator[Traffic]:
    """A service that is ready, in a namespace of its own, with requests on it; none is lost but in stories."""
    name = service["metadata"]["name"]
    with own_namespace(cluster, namespace):
        cluster.apply(service, namespace)
        cluster.wait_condition(namespace, name, "Ready", "True", timeout=within)
        with traffic(cluster, namespace, name, "--duration", "1h", *load) as probe:
            yield probe
        assert probe.unaccounted() == [], "between the stories"


# Of the stand-in: answers of a third of a second to three seconds, about ten at any time. Of vLLM two processors
# leave room for little load, and a start takes a minute.
_SHORT_ANSWERS = ("--rate", "8", "--output-tokens", "10,20,80")


def _of_stand_in(**spec: JSON) -> JSON:
    return stand_in(NAME, {"start_seconds": 4, "tokens_per_second": 30}, scaling={"replicas": 2}, **spec)


WORLDS = {
    STAND_IN: (_of_stand_in(), 90, _SHORT_ANSWERS),
    GROUPS: (_of_stand_in(parallelism=TWO_NODES), 120, _SHORT_ANSWERS),
    HYBRID: (_of_stand_in(parallelism=HYBRID_ENGINES), 120, _SHORT_ANSWERS),
    ROUTED: (_of_stand_in(routing=routing.ROUTED), 120, _SHORT_ANSWERS),
    VLLM: (
        one_of_several(NAME, scaling={"replicas": 2}, drain={"timeoutSeconds": 60}),
        600,
        ("--rate", "0.5", "--output-tokens", "64,256"),
    ),
}


@contextmanager
def world(cluster: Cluster, namespace: str, engine: str) -> Iterator[World]:
    service, within, load = WORLDS[engine]
    with under_load(cluster, namespace, service, within, *load) as probe:
        yield World(cluster, namespace, engine, load, probe, within)


Story = Callable[[World], None]
Victim = Callable[[JSON], int | None]
"""The process of a pod to kill."""


def rolling_update(world: World) -> None:
    held = world.cluster.must_get("llmservices", world.namespace, NAME)["spec"].get("batching", {}).get("maxNumSeqs")
    world.strike()
    world.change(batching={"maxNumSeqs": 17 if held == 16 else 16})
    before = {pod["metadata"]["name"] for pod in world.pods()}
    within = world.settles_within
    eventually("another template", lambda: {pod["metadata"]["name"] for pod in world.pods()} - before, within)


def rollback_of_a_broken_revision(world: World) -> None:
    """A length for which there is no cache: it fails, and the operator goes back by itself."""
    world.strike()
    world.change(batching={"maxModelLen": 1_000_000}, fitPolicy="Ignore", rollout={"autoRollback": True})
    within = world.settles_within
    world.cluster.wait_condition(world.namespace, NAME, "Ready", "False", reason="RolledBack", timeout=within)
    world.change(batching={"maxModelLen": 512}, rollout=None)


def scale_up_with_a_term_while_loading(world: World) -> None:
    before = {pod["metadata"]["name"] for pod in world.pods()}
    world.scale(3)

    def loading() -> JSON | None:
        return next((pod for pod in world.pods() if pod["metadata"]["name"] not in before and engine_of(pod)), None)

    struck = eventually("a pod whose vLLM is being started", loading, 60)
    assert not any(status["ready"] for status in struck["status"]["containerStatuses"]), "the blow would come too late"
    world.strike()
    terminate(struck)
    restarted(world, struck)


def scale_down(world: World) -> None:
    world.strike()
    world.scale(2)


def delete_pod(world: World) -> None:
    struck = world.answering()[0]
    world.strike(struck)
    world.cluster.kubectl("delete", "pod", struck["metadata"]["name"], "-n", world.namespace, "--wait=false")


def operator_restart(world: World) -> None:
    (pod,) = operator_pods(world.cluster)
    world.strike()
    world.cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", OPERATOR_NAMESPACE)
    roll_out_operator(world)


def operator_upgrade(world: World) -> None:
    """To the next version, which renders pods otherwise, and back."""
    before = {pod["metadata"]["uid"] for pod in world.pods()}
    pending = partial(rolling.is_pending, world.cluster, world.namespace, NAME)
    next_version.build(world.cluster.paths, Progress())
    world.strike()
    with next_version.leading(world.cluster):
        eventually("an update pending", pending, 60)
    eventually("nothing pending", lambda: not pending(), 60)
    assert {pod["metadata"]["uid"] for pod in world.pods()} == before


def roll_out_operator(world: World) -> None:
    """Ready; pods of before may still be ending."""
    words = ("rollout", "status", f"deployment/{OPERATOR}", "-n", OPERATOR_NAMESPACE, KUBECTL_TIMEOUT)
    world.cluster.kubectl(*words)


def leader_change(world: World) -> None:
    cluster = world.cluster
    first = eventually("a leader", lambda: leader(cluster), 30)
    scale = ("scale", f"deployment/{OPERATOR}", "-n", OPERATOR_NAMESPACE)
    cluster.kubectl(*scale, "--replicas=2")
    try:
        roll_out_operator(world)
        (name,) = [pod["metadata"]["name"] for pod in operator_pods(cluster) if pod["metadata"]["name"] in first]
        world.strike()
        cluster.kubectl("delete", "pod", name, "-n", OPERATOR_NAMESPACE, "--wait=false")
        eventually("another leader", lambda: leader(cluster) not in ("", first), 30)
    finally:
        cluster.kubectl(*scale, "--replicas=1")
        roll_out_operator(world)


def api_server_restart(world: World) -> None:
    world.strike()
    with without(world.cluster, "kube-apiserver"):
        pause(2)


def etcd_restart(world: World) -> None:
    world.strike()
    with without(world.cluster, "etcd"):
        pause(2)


def unharmed(world: World) -> JSON:
    """A pod whose container has not been restarted yet."""
    return min(world.answering(), key=lambda pod: pod["status"]["containerStatuses"][0]["restartCount"])


def term_while_serving(world: World) -> None:
    struck = unharmed(world)
    world.strike(struck)
    terminate(struck)
    restarted(world, struck)


def term_while_draining(world: World) -> None:
    """One while it serves, two while it drains: a kubelet that restarts meanwhile sends SIGTERM again."""
    struck = unharmed(world)
    world.strike(struck)
    terminate(struck)
    pause(2)
    terminate(struck)
    pause(2)
    terminate(struck)
    restarted(world, struck)


def restarted(world: World, struck: JSON) -> None:
    """The container of a pod that was not deleted has come again."""
    name, before = struck["metadata"]["name"], struck["status"]["containerStatuses"][0]["restartCount"]

    def again() -> bool:
        (status,) = world.cluster.must_get("pods", world.namespace, name)["status"]["containerStatuses"]
        return bool(status["restartCount"] > before and status["ready"])

    eventually("the container again", again, world.settles_within)


# Two blows to the same container would wait for the kubelet's back-off: in this order no pod gets a second one.
STORIES: list[Story] = [
    term_while_draining,
    rolling_update,
    delete_pod,
    scale_up_with_a_term_while_loading,
    scale_down,
]
# The first one leaves pods that drain during the next.
OPERATOR_STORIES: list[Story] = [rolling_update, operator_restart, operator_upgrade, leader_change]
# Last, since the control plane's own parts take some seconds to find each other again.
BLIND_STORIES: list[Story] = [api_server_restart, etcd_restart]


def words(story: Callable[..., object]) -> str:
    return story.__name__.replace("_", " ")


def nothing_is_lost(world: World, story: Story, record: Record) -> None:
    name, probe = words(story), world.probe
    with world.story(name):
        story(world)
    began = probe.strikes[name]
    going = [probe.in_flight(moment) for moment in world.gone.values() if moment >= began]
    record(engine=world.engine, **probe.figures(name), inFlightAsPodsWent=going)
    probe.assert_nothing_lost(name)
    if world.engine == STAND_IN:  # vLLM's load is too light to say so of a moment that is not waited for
        assert all(going), "a pod went when nobody was served"


def only_the_gap_is_felt(world: World, record: Record) -> None:
    """Where all pods go before the new ones come, nobody is there to connect to; what was accepted is answered."""
    name, probe = "recreation", world.probe
    with world.story(name):
        world.change(rollout={"strategy": "Recreate"})
        rolling_update(world)
    world.change(rollout=None)
    record(engine=world.engine, **probe.figures(name))
    assert probe.in_flight(probe.strikes[name]) >= 1
    assert set(probe.stories[name].ended.by_kind) == {Loss.NOT_CONNECTED}, probe.of(name)


def kill_the_engine(pod: JSON) -> int | None:
    return engine_of(pod)


def kill_the_supervisor(pod: JSON) -> int | None:
    """Its end is the end of the container: the kernel kills the rest."""
    return supervisor_of(pod)


KILLS: list[Victim] = [kill_the_engine, kill_the_supervisor]
# The kubelet's look at its containers (1 s), its report, the endpoint controller's turn and kube-proxy's (1 s), on a
# busy machine. Until then Kubernetes sends every second client to a port that nobody has.
KNOWN_WITHIN = 10.0


@contextmanager
def patient(world: World, story: str) -> Iterator[Traffic]:
    """The same load once more, from a client that tries again for KNOWN_WITHIN and longer. The OpenAI client's two
    times by default come within two seconds, in which Kubernetes may send every second connection to a dead port."""
    words = ("--duration", "1h", "--retries", "5", *world.load)
    with traffic(world.cluster, world.namespace, NAME, *words) as probe, probe.during(story):
        yield probe


def only_what_kubernetes_cannot_save(
    world: World,
    victim: Victim,
    record: Record,
    router: JSON | None = None,
    back: Callable[[World, JSON], None] = restarted,
) -> None:
    """A killed server takes along what it was answering. What is sent later and lost was never accepted by anybody.

    A client that tries again loses none of the latter. `router`: the pod to strike, in place of a replica's; `back`
    waits until all is there again.
    """
    name = words(victim)
    with patient(world, name) as tries_again, world.story(name):
        struck = router or unharmed(world)
        process = victim(struck)
        assert process is not None
        moment = world.strike(*([] if router else [struck]))
        os.kill(process, signal.SIGKILL)
        back(world, struck)
    reported, retried = world.probe.since(name, moment), tries_again.since(name, moment)
    later = [
        row for row in world.probe.rows if not row.is_complete and moment <= row.sent and row.ended <= reported.until
    ]
    lost_for = max((row.ended - moment for row in later), default=0.0)
    record(
        engine=world.engine,
        **in_figures(reported),
        laterLostUntilSecond=round(lost_for, 2),
        withRetries={**in_figures(retried), "retried": sum(1 for row in tries_again.rows if row.attempts > 1)},
    )
    assert reported.in_flight + retried.in_flight >= 1
    assert {row.loss for row in later} <= {Loss.NOT_CONNECTED, Loss.DISCONNECTED}, world.probe.of(name)
    assert lost_for < KNOWN_WITHIN, world.probe.of(name)
    assert retried.lost_later == 0, tries_again.of(name)
