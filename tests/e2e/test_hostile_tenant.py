"""One tenant is hostile in every way that is known; what the others notice of it is stated here, and nothing more."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import pytest
from kubeloop.queue import WRITE_BURST, WRITE_SECONDS

from tests.e2e.conftest import make_namespace, own_namespace
from tests.support.audit import writes_since
from tests.support.cluster import JSON, Cluster, CommandFailed, eventually
from tests.support.hostile import tenant
from tests.support.measured import Record
from tests.support.operator import operator_metrics, operator_pods, resident_bytes
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import idle
from tests.support.serving import Metrics
from tests.support.watching import Watcher, watching

HOSTILE, QUIET = "hostile", "hostile-neighbour"
NEIGHBOURS = [f"quiet-{number}" for number in range(4)]
EDITS = 24
PLAIN = "plain"
"""A Service of nobody's, which the test changes itself."""
APART = 20_000
"""Between the ports of the neighbours and those of PLAIN."""
MEDIAN_RATIO = 6.0
"""How many times as long the operator may take with an edit among hostile neighbours as without them, by the medians,
where each is counted in changes that the test made itself at the same time: two cores have all of it, and whatever else
the machine does slows both."""
EVENTS_A_MINUTE = 10.0
"""Of each hostile service, over the time that it was hostile."""
LARGE = 60
MEASURED_FOR = 20.0
"""Seconds for which the tenant is hostile at least."""


@pytest.fixture(scope="module")
def neighbours(cluster: Cluster) -> Iterator[Watcher]:
    """Services of somebody else, and their Services as they are seen to change."""
    with own_namespace(cluster, QUIET):
        cluster.apply_all(map(idle, NEIGHBOURS), QUIET)
        for name in NEIGHBOURS:
            cluster.wait_condition(QUIET, name, "Ready", "True", timeout=60)
        cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": PLAIN}, "spec": ports(1000)}, QUIET)
        with watching(cluster, "services", QUIET) as watcher:
            yield watcher


@dataclass
class Edits:
    """Seconds from each edit of a neighbour to its child, and of as many changes of PLAIN, one after the other."""

    operators: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    def add(self, cluster: Cluster, watcher: Watcher, base: int) -> None:
        """EDITS more; one that the watch never shows fails the test."""
        for number in range(EDITS):
            name, port = NEIGHBOURS[number % len(NEIGHBOURS)], base + number
            for seconds, plural, which, shown, spec in (
                (self.plain, "services", PLAIN, port + APART, ports(port + APART)),
                (self.operators, "llmservices", name, port, {"endpoint": {"port": port}}),
            ):
                began = time.time()
                cluster.patch(plural, QUIET, which, {"spec": spec})
                seen = watcher.first(partial(has_port, shown), timeout=120)
                assert seen is not None, f"the edit of {which} to port {shown} came to nothing"
                seconds.append(seen.at - began)

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return statistics.median(self.operators) / statistics.median(self.plain)


def ports(port: int) -> JSON:
    return {"ports": [{"name": "http", "port": port, "protocol": "TCP"}]}


def has_port(port: int, service: JSON) -> bool:
    found: int = service["spec"]["ports"][0]["port"]
    return found == port


def restarts(cluster: Cluster) -> list[tuple[str, int]]:
    pods = operator_pods(cluster)
    return [(pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]) for pod in pods]


def memory_limit(cluster: Cluster) -> float:
    limit = operator_pods(cluster)[0]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert limit.endswith("Mi")
    return float(limit.removesuffix("Mi")) * 2**20


def largest_env(cluster: Cluster) -> list[JSON]:
    """Forty variables as large as the API server takes; what the largest are is refused, by name."""
    refused = ""
    for size in (32_000, 8_000, 4_000, 1_500, 1_000, 500):
        env = [{"name": f"V{number}", "value": "x" * size} for number in range(40)]
        try:
            cluster.apply(tenant.large(0, env), HOSTILE)
        except CommandFailed as error:
            refused = str(error)
        else:
            assert "spec.runtime.env" in refused, "40 variables of 32 KB are taken"
            return env
    raise AssertionError(f"no size is taken: {refused}")


def test_the_neighbours_of_a_hostile_tenant_are_served_as_before(
    cluster: Cluster, neighbours: Watcher, record: Record
) -> None:
    calm, among = Edits(), Edits()
    calm.add(cluster, neighbours, 2000)
    before, reads, names = restarts(cluster), state_reads(cluster), list[str]()
    with ExitStack() as stack:
        make_namespace(cluster, HOSTILE)
        stack.callback(cluster.kubectl, "delete", "namespace", HOSTILE, "--wait=true", KUBECTL_TIMEOUT)
        stack.enter_context(tenant.hostile_volume(cluster, HOSTILE))
        began, moment = time.monotonic(), time.time()
        services = [tenant.liar(lie) for lie in tenant.LIES]
        services += [tenant.from_repository(name) for name in tenant.CONFIGS] + [tenant.with_a_huge_flag()]
        env = largest_env(cluster)
        services += [tenant.large(number, env) for number in range(1, LARGE)]
        for first in range(0, len(services), 20):
            cluster.apply_all(services[first : first + 20], HOSTILE)
        names += [service["metadata"]["name"] for service in services]
        liars = names[: len(tenant.LIES)]
        create_odd_revisions(cluster)
        stack.enter_context(tenant.editing(cluster, HOSTILE, [name for name in names if name not in liars]))
        eventually("the liars answer", lambda: state_reads(cluster) >= reads + 30, 180)
        among.add(cluster, neighbours, 3000)
        while time.monotonic() - began < MEASURED_FOR:
            among.add(cluster, neighbours, 4000 + len(among.plain))
        lasted = time.monotonic() - began
        resident = resident_bytes(operator_pods(cluster)[0])
        events = cluster.list("events", HOSTILE)
        about = [event for event in events if event["involvedObject"]["kind"] == "LLMService"]
        counted = sum(event.get("count") or 1 for event in about)
        after = restarts(cluster)
        writes = Counter(
            w.name for w in writes_since(cluster, moment) if w.namespace == HOSTILE and "status" in w.resource
        )
        record(
            calm_ms=round(statistics.median(calm.operators) * 1000),
            calm_ratio=round(calm.ratio, 1),
            among_ms=round(statistics.median(among.operators) * 1000),
            among_ratio=round(among.ratio, 1),
            slowest_ms=round(max(among.operators) * 1000),
            resident_mib=round(resident / 2**20),
            events_a_minute=round(counted / len(names) / lasted * 60, 2),
            services=len(names),
            seconds=round(lasted),
        )
        assert_reported(cluster)
        assert_read_beside(cluster)
    assert after == before, "the operator was restarted"
    assert resident < memory_limit(cluster)
    assert among.ratio <= MEDIAN_RATIO * calm.ratio
    assert max(writes[name] for name in liars) <= WRITE_BURST + (time.time() - moment) / WRITE_SECONDS + 1
    assert counted <= EVENTS_A_MINUTE * len(names) * lasted / 60


def assert_read_beside(cluster: Cluster) -> None:
    """Configurations were read by the process of the image: without a home, on a file system that is not written."""
    results = Metrics(operator_metrics(cluster)).by_label("llmservice_config_reads_total", "result")
    assert results.get("read", 0) > 0, results
    assert "died" not in results


def state_reads(cluster: Cluster) -> float:
    """Requests for the state of a pod, answered or not."""
    return Metrics(operator_metrics(cluster)).value("llmservice_state_reads_total")


def create_odd_revisions(cluster: Cluster) -> None:
    """Records of a service that JSON readers refuse: half a character, and ten thousand brackets."""
    path = f"/apis/apps/v1/namespaces/{HOSTILE}/controllerrevisions"
    for name, value in (("odd-half", '"\\ud800"'), ("odd-deep", "[" * 9000 + "]" * 9000)):
        about = f'"metadata":{{"name":"{name}","labels":{{"llmservice.dev/service":"large-1"}}}}'
        body = f'{{"apiVersion":"apps/v1","kind":"ControllerRevision",{about},"revision":99,"data":{{"x":{value}}}}}'
        cluster.kubectl("create", "--raw", path, "-f", "-", stdin=body)


def assert_reported(cluster: Cluster) -> None:
    """Each hostile service has a status of its own that says what is wrong, or that nothing is known."""
    for name in ("flag", "config-patterns", "config-layers", "config-negative", "config-nested"):
        eventually(f"the verdict on {name}", partial(cluster.condition, HOSTILE, name, "Fits"), 120)
