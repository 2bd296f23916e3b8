"""What the operator holds: memory, tasks, series and file descriptors, before and after services came and went."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields

from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster import Cluster, eventually
from tests.support.host import pause
from tests.support.operator import operator_metrics
from tests.support.services import idle

PREFIX = "soak-"
"""Of the names of the services that come and go."""
SERVICES, ROUNDS = 20, 3
"""That are made and deleted together, and how often after the first time, which is not counted: caches fill in it."""
WITHIN = 120.0
SETTLES = 15.0
"""Seconds in which idle connections and answers under way end."""


@dataclass(frozen=True)
class Usage:
    """Of one process."""

    memory_mib: float
    tasks: float
    series: float
    descriptors: float

    @classmethod
    def of(cls, exposition: str) -> Usage:
        """From what its metrics say."""
        samples = [sample for family in text_string_to_metric_families(exposition) for sample in family.samples]
        one = {sample.name: sample.value for sample in samples if not sample.labels}
        return cls(
            memory_mib=round(one["process_resident_memory_bytes"] / 2**20, 1),
            tasks=one["llmservice_tasks"],
            series=len(samples),
            descriptors=one["process_open_fds"],
        )


ALLOWED = Usage(memory_mib=12.0, tasks=3, series=12, descriptors=4)
"""By how much each may be larger afterwards. Memory: what Python's allocator holds on to, where 60 services of 50 KiB
kept would be 3 MiB and their objects in the cache some more; series: answers of the API server with another code."""


def grown(before: Usage, after: Usage, allowed: Usage = ALLOWED) -> list[str]:
    """What is more than it was, beyond the allowance."""
    found = []
    for field in fields(Usage):
        was, now, more = (getattr(each, field.name) for each in (before, after, allowed))
        if now - was > more:
            found.append(f"{field.name}: {now:g}, it was {was:g}, and {more:g} more are allowed")
    return found


def soak(cluster: Cluster, namespace: str) -> tuple[Usage, Usage]:
    """Services come and go; what the acting operator holds after the first round, and after the last."""
    come_and_go(cluster, namespace)
    pause(SETTLES)
    before = Usage.of(operator_metrics(cluster))
    for _ in range(ROUNDS):
        come_and_go(cluster, namespace)
    return before, settled(cluster, before)


def settled(cluster: Cluster, before: Usage) -> Usage:
    """Once it is as little as before, or what is under way has had its time to end."""
    deadline = time.monotonic() + SETTLES
    while grown(before, found := Usage.of(operator_metrics(cluster))) and time.monotonic() < deadline:
        pause(1)
    return found


def come_and_go(cluster: Cluster, namespace: str) -> None:
    """One round: all of them have their children, and then nothing of them is left."""
    names = [f"{PREFIX}{number}" for number in range(SERVICES)]
    cluster.apply({"apiVersion": "v1", "kind": "List", "items": [idle(name) for name in names]}, namespace)
    for name in names:
        cluster.wait_condition(namespace, name, "Ready", "True", timeout=WITHIN)
    cluster.kubectl("delete", "llmservices", *names, "-n", namespace, "--wait=true")
    eventually("nothing of them is left", _gone(cluster, namespace), WITHIN)


def _gone(cluster: Cluster, namespace: str) -> Callable[[], bool]:
    def look() -> bool:
        kinds = ("deployments", "services", "controllerrevisions")
        left = [each["metadata"]["name"] for kind in kinds for each in cluster.list(kind, namespace)]
        return not any(name.startswith(PREFIX) for name in left)

    return look
