"""Every failure is made to happen, and reported: its own reason, evidence and remedy, one Event, a metric, within 10 s.

All services are applied at once and watched; each test looks at one of them. Engines are the stand-in for vLLM.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import own_namespace
from tests.e2e.failing_services import (
    CASES,
    GPUS,
    Cause,
    env,
    failure_of,
    no_pod,
    serves,
    waits,
    why_not_ready,
)
from tests.support.accelerators import advertised
from tests.support.cluster import JSON, Cluster, condition, eventually, is_ready
from tests.support.fetching import model_files
from tests.support.host import losing_packets
from tests.support.hub import Hub, Repo
from tests.support.hub import serving as serving_hub
from tests.support.measured import Record
from tests.support.operator import leader, operator_metric
from tests.support.patience import PATIENCE, at_latest, at_most
from tests.support.registry import registry
from tests.support.reported import REPORTED_WITHIN, Before, before, reported_everywhere
from tests.support.rolling import events, restarts
from tests.support.services import stand_in
from tests.support.watching import Seen, Watcher, watching

NAMESPACE = "e2e-failures"
NODE = "node-a"
ENGINE = "stand-in"
BRIDGE = "10.244.0.1"
ALL_WITHIN = 300.0
AT_ONCE, APART = 6, 12.0
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "team"},
    "spec": {"hard": {"requests.cpu": "64", "requests.memory": "96Gi", "pods": "60"}},
}

WATCHED = ("llmservices", "pods", "deployments")
BLOCKED, CUT, SLOW = "probe-blocked", "cut", "slow"
SLOW_START = {"start_seconds": 25, "shards": 25}


@dataclass
class Failures:
    """What was seen of all services."""

    cluster: Cluster
    before: Before
    services: Watcher
    pods: Watcher
    deployments: Watcher
    began: float

    def reported(self, name: str, reason: str, timeout: float = ALL_WITHIN) -> Seen | None:
        """When its status first reported this reason, at the latest so long after all were applied."""
        left = max(0.0, self.began + timeout - time.time())
        return self.services.first(lambda obj: obj["metadata"]["name"] == name and failure_of(obj) == reason, left)

    def caused(self, name: str, cause: Cause) -> float:
        watcher = self.deployments if cause is no_pod else self.pods
        label = {"llmservice.dev/service": name}.items()
        for seen in watcher.seen:
            if label <= seen.obj["metadata"].get("labels", {}).items() and (moment := cause(seen.obj)) is not None:
                return seen.at if cause is waits else moment
        raise AssertionError(f"nothing went wrong with {name}")


@pytest.fixture(scope="module")
def failures(cluster: Cluster) -> Iterator[Failures]:
    hub = Hub({"team/gated": Repo(model_files(), gated=True)})
    with ExitStack() as stack:
        stack.enter_context(own_namespace(cluster, NAMESPACE))
        cluster.apply(QUOTA, NAMESPACE)
        stack.enter_context(serving_hub(hub, BRIDGE, BRIDGE))
        where = {
            "hub": hub.url,
            "missing": f"{stack.enter_context(registry(404))}/vllm:v0.32.0",
            "denied": f"{stack.enter_context(registry(403))}/vllm:v0.32.0",
        }
        stack.callback(cluster.kubectl, "delete", "node", TAINTED_NODE, "--ignore-not-found")
        stack.callback(cluster.kubectl, "delete", "validatingwebhookconfiguration", NAMESPACE, "--ignore-not-found")
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(UNANSWERED))
        stack.enter_context(gpus(cluster, 4))
        cluster.apply(stand_in("holder", accelerator=GPUS, precision=None), NAMESPACE)
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(TAINTED))
        cluster.apply(UNBOUND, NAMESPACE)
        services, pods, deployments = (stack.enter_context(watching(cluster, kind, NAMESPACE)) for kind in WATCHED)
        found = Failures(cluster, before(cluster), services, pods, deployments, time.time())
        others = [stand_in(BLOCKED, SLOW_START), stand_in(CUT, {"tokens_per_second": 5}, drain={"timeoutSeconds": 1})]
        others.append(stand_in(SLOW, SLOW_START, **env(LLMSERVICE_START_SECONDS="2")))
        cluster.apply_all(others, NAMESPACE)

        def fail(name: str) -> None:
            case = CASES[name]
            cluster.apply(stand_in(name, case.behaviour, **filled(case.spec, where)), NAMESPACE)
            if case.prompt:
                threading.Thread(target=ask, args=(found, name), daemon=True).start()
            if not case.is_slow:
                found.reported(name, case.reason, time.time() - found.began + APART)

        # Two processors: what is measured is not how long all of them take to start together.
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(fail, CASES))
        yield found


TAINTED_NODE = "e2e-tainted"
TAINTED = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": TAINTED_NODE, "labels": {"e2e-failures": "tainted"}},
    "spec": {"taints": [{"key": "team", "value": "others", "effect": "NoSchedule"}]},
}
# Asked before a pod of one service is made; nobody is behind its Service.
UNANSWERED = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": NAMESPACE},
    "webhooks": [
        {
            "name": "nobody.e2e.example",
            "clientConfig": {"service": {"namespace": NAMESPACE, "name": "nobody"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
            "objectSelector": {"matchLabels": {"llmservice.dev/service": "webhook"}},
        }
    ],
}
UNBOUND = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "unbound"},
    "spec": {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}},
}


LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-L4",
    "nvidia.com/cuda.driver-version.full": "550.54.15",
    "nvidia.com/cuda.runtime-version.full": "12.4",
}


@contextlib.contextmanager
def gpus(cluster: Cluster, count: int) -> Iterator[None]:
    """A node with so many devices of a resource that nobody else asks for, labelled as GPU feature discovery does; no
    pod ever sees one."""
    cluster.kubectl("label", "node", NODE, *(f"{label}={value}" for label, value in LABELS.items()), "--overwrite")
    try:
        with advertised(cluster, {GPUS["resourceName"]: count}):
            yield
    finally:
        cluster.kubectl("label", "node", NODE, *(f"{label}-" for label in LABELS))


def filled(value: Any, where: Mapping[str, str]) -> Any:
    """With the addresses that are known only now."""
    if isinstance(value, Mapping):
        return {key: filled(item, where) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, where) for item in value]
    return value.format(**where) if isinstance(value, str) and value.startswith("{") else value


def ask(failures: Failures, name: str) -> None:
    """The request that the engine does not survive, as soon as somebody answers."""
    ready = failures.services.first(lambda obj: obj["metadata"]["name"] == name and is_ready(obj), ALL_WITHIN)
    assert ready is not None, f"{name} never became ready"
    address = failures.cluster.must_get("services", NAMESPACE, name)["spec"]["clusterIP"]
    body = {"model": name, "prompt": CASES[name].prompt, "max_tokens": 4}
    while failures.reported(name, CASES[name].reason, 0.0) is None:
        try:
            httpx.post(f"http://{address}/v1/completions", json=body, timeout=at_most(200), trust_env=False)
        except httpx.ConnectError:
            time.sleep(0.2)  # kube-proxy follows in a moment
        except httpx.HTTPError:
            return  # as it was asked to


@pytest.mark.parametrize("name", CASES)
def test_it_is_reported_with_reason_evidence_and_remedy(failures: Failures, record: Record, name: str) -> None:
    case = CASES[name]
    reported = failures.reported(name, case.reason)
    now = failures.cluster.must_get("llmservices", NAMESPACE, name).get("status", {})
    assert reported is not None, (
        f"not reported; the failure is {now.get('failure')}, conditions {now.get('conditions')}"
    )
    failure = reported.obj["status"]["failure"]
    assert case.words in failure["message"], failure
    assert case.remedy in failure["remedy"], failure
    assert failure["evidence"], failure
    ready = condition(reported.obj, "Ready") or {}
    assert (ready["status"], ready["reason"]) == ("False", case.reason)
    seconds = reported.at - failures.caused(name, case.cause)
    record(engine=ENGINE, reason=case.reason, seconds=round(seconds, 1))
    assert seconds <= at_latest(REPORTED_WITHIN)


def test_each_is_one_event_and_in_the_column_and_in_the_metrics(failures: Failures) -> None:
    """When all have failed: nothing is reported twice, however often containers were started again meanwhile."""
    for name, case in CASES.items():
        assert failures.reported(name, case.reason), name
    cluster = failures.cluster
    expected = {name: case.events for name, case in CASES.items()}

    # An Event follows its status.
    eventually("Events of all", lambda: all(warned(cluster)[name][CASES[name].reason] for name in CASES), 10)
    assert {name: warned(cluster)[name] for name in CASES} == expected
    listed = {line.split()[0]: line for line in cluster.kubectl("get", "llms", "-n", NAMESPACE).splitlines()}
    now = {name: failure_of(cluster.must_get("llmservices", NAMESPACE, name)) for name in CASES}
    assert [name for name, reason in now.items() if reason is not None and reason not in listed[name]] == []

    assert leader(cluster) == failures.before.leader, "another operator counts from nothing"
    begun, were = operator_metric(cluster, "llmservice_failures"), failures.before.begun
    counted = sum(expected.values(), Counter[str]())
    assert {reason: begun[reason] - were.get(reason, 0.0) for reason in counted} == counted
    eventually("as many failing services as there are", lambda: counts_those_that_fail(cluster), 10)


def warned(cluster: Cluster) -> Mapping[str, Counter[str]]:
    """How often each service was warned of, by reason."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for event in cluster.list("events", NAMESPACE):
        if event["involvedObject"]["kind"] == "LLMService" and event["type"] == "Warning":
            found[event["involvedObject"]["name"]][event["reason"]] += event["count"]
    return found


def counts_those_that_fail(cluster: Cluster) -> bool:
    """Whether the gauge says what the statuses of all namespaces say."""
    services = json.loads(cluster.kubectl("get", "llms", "--all-namespaces", "-o", "json"))["items"]
    failing = Counter(reason for reason in map(failure_of, services) if reason is not None)
    return failing == {reason: n for reason, n in operator_metric(cluster, "llmservice_failing_services").items() if n}


def test_a_start_past_its_budget_that_moves_is_no_failure(failures: Failures) -> None:
    def reported(obj: JSON) -> bool:
        return obj["metadata"]["name"] == SLOW and "StartingSlowly" in why_not_ready(obj)

    slow = failures.services.first(reported, max(0.0, failures.began + ALL_WITHIN - time.time()))
    assert slow is not None
    assert "vLLM is loading the model" in why_not_ready(slow.obj)
    assert failures.services.first(lambda obj: obj["metadata"]["name"] == SLOW and is_ready(obj), ALL_WITHIN)
    assert not any(failure_of(seen.obj) for seen in failures.services.seen if seen.obj["metadata"]["name"] == SLOW)


def test_a_crash_loop_writes_no_status_for_each_restart(failures: Failures) -> None:
    """Its last words were reported at its third end; what comes after is no news."""
    reported = failures.reported("crash-loop", "CrashLoop")
    assert reported is not None
    again = failures.pods.first(lambda pod: of_service(pod, "crash-loop") and restarts(pod) >= 3, ALL_WITHIN)
    assert again is not None, "it was not started a third time"
    later = [s for s in failures.services.seen if s.name == "crash-loop" and reported.at < s.at]
    assert [s.obj["status"] for s in later if s.obj["status"] != reported.obj["status"]] == []


def of_service(pod: JSON, name: str) -> bool:
    return bool(pod["metadata"]["labels"].get("llmservice.dev/service") == name)


def test_probes_that_are_blocked_are_reported(failures: Failures, record: Record) -> None:
    """A rule on the node keeps the kubelet off a serving pod; clients are answered, and it is over with the rule."""
    cluster = failures.cluster
    ready = failures.services.first(lambda obj: obj["metadata"]["name"] == BLOCKED and is_ready(obj), ALL_WITHIN)
    assert ready is not None
    (pod,) = cluster.pods(NAMESPACE, BLOCKED)
    since = before(cluster)
    with dropping(pod["status"]["podIP"], 8081):
        began = time.time()
        reported = reported_everywhere(cluster, NAMESPACE, BLOCKED, "ProbeBlocked", since)
        assert "8081" in reported.failure["message"]
        assert "port 8081" in reported.failure["remedy"]
        # The start has used up the Events that the kubelet writes of one pod.
        assert "no probe has reached it" in str(reported.failure["evidence"])
        stated = failures.reported(BLOCKED, "ProbeBlocked")
        assert stated is not None
        # Three probes that are missed take most of the time; a look everywhere takes some of its own.
        record(engine=ENGINE, reason="ProbeBlocked", seconds=round(stated.at - began, 1))
        assert 0 <= stated.at - began <= at_latest(REPORTED_WITHIN)
        assert reported.at - began <= at_latest(REPORTED_WITHIN)
    eventually("over with the rule", lambda: serves(cluster.must_get("llmservices", NAMESPACE, BLOCKED)), 30)


def dropping(address: str, port: int) -> AbstractContextManager[None]:
    """What this machine, the node, sends to a port of a pod is lost; what comes from other pods is not."""
    return losing_packets(("OUTPUT", "-d", address, "-p", "tcp", "--dport", str(port)))


def test_streams_that_a_drain_cuts_are_reported(failures: Failures) -> None:
    """A stream of a minute, and a drain of a second."""
    ready = failures.services.first(lambda obj: obj["metadata"]["name"] == CUT and is_ready(obj), ALL_WITHIN)
    assert ready is not None
    cluster = failures.cluster
    url = cluster.service_url(NAMESPACE, CUT)
    (pod,) = cluster.list("pods", NAMESPACE, f"llmservice.dev/service={CUT}")
    body = {"model": CUT, "prompt": "a long story", "max_tokens": 400, "stream": True}
    lines: list[str] = []
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE, trust_env=False) as stream:
        chunks = stream.iter_lines()
        assert next(chunks)
        cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", NAMESPACE, "--wait=false")
        with contextlib.suppress(httpx.HTTPError):  # it is cut
            lines.extend(chunks)
    assert sum(line.startswith("data: {") for line in lines) < 400, "the answer was whole before the drain ended"

    (event,) = eventually("an Event on what was cut", lambda: events(cluster, NAMESPACE, CUT, "StreamsEnded"), 30)
    assert "1 stream" in event["message"]
    assert pod["metadata"]["name"] in event["message"]
