"""One tenant is hostile in every way that is known; what the others notice of it is stated here, and nothing more."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from kubeloop.token_bucket import WRITE_BURST, WRITE_SECONDS

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
MEDIAN_RATIO = 6.0
"""An edit among hostile neighbours, by the median, beside the same edit without them; two cores have both."""
SLOWEST_RATIO = 60.0
"""The slowest of them beside the median without: a few seconds, where one blocked loop would be minutes."""
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
        with watching(cluster, "services", QUIET) as watcher:
            yield watcher


def edited(cluster: Cluster, watcher: Watcher, base: int) -> list[float]:
    """Seconds from each edit of a neighbour to its child."""
    seconds = []
    for number in range(EDITS):
        name, port = NEIGHBOURS[number % len(NEIGHBOURS)], base + number
        began = time.time()
        cluster.patch("llmservices", QUIET, name, {"spec": {"endpoint": {"port": port}}})
        seen = watcher.first(partial(has_port, port), timeout=120)
        assert seen is not None, f"the edit of {name} to port {port} came to nothing"
        seconds.append(seen.at - began)
    return seconds


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
    calm = edited(cluster, neighbours, 2000)
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
        among = edited(cluster, neighbours, 3000)
        while time.monotonic() - began < MEASURED_FOR:
            among += edited(cluster, neighbours, 4000 + len(among))
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
            calm_ms=round(statistics.median(calm) * 1000),
            among_ms=round(statistics.median(among) * 1000),
            slowest_ms=round(max(among) * 1000),
            resident_mib=round(resident / 2**20),
            events_a_minute=round(counted / len(names) / lasted * 60, 2),
            services=len(names),
            seconds=round(lasted),
        )
        assert_reported(cluster)
        assert_read_beside(cluster)
    assert after == before, "the operator was restarted"
    assert resident < memory_limit(cluster)
    assert statistics.median(among) <= MEDIAN_RATIO * statistics.median(calm)
    assert max(among) <= SLOWEST_RATIO * statistics.median(calm)
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
