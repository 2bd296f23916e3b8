"""What a rollout looks like from outside: the status, the pods that are to stay, the Events."""

from __future__ import annotations

import time

from tests.support.cluster import JSON, Cluster, is_ready
from tests.support.patience import at_most


def rollout(cluster: Cluster, namespace: str, name: str) -> JSON:
    """status.rollout."""
    found: JSON = cluster.status(namespace, name)["rollout"]
    return found


def pods(cluster: Cluster, namespace: str, name: str) -> dict[str, JSON]:
    """By uid, those that are not on their way out."""
    return {pod["metadata"]["uid"]: pod for pod in cluster.pods(namespace, name)}


def fewest_ready(cluster: Cluster, namespace: str, name: str, timeout: float) -> int:
    """The fewest ready pods at any look until what was just changed is rolled out."""
    fewest, deadline = 99, time.monotonic() + at_most(timeout)
    while time.monotonic() < deadline:
        fewest = min(fewest, sum(map(is_ready, pods(cluster, namespace, name).values())))
        service = cluster.must_get("llmservices", namespace, name)
        ready = cluster.condition(namespace, name, "Ready") or {}
        if ready["status"] == "True" and ready["observedGeneration"] == service["metadata"]["generation"]:
            return fewest
        time.sleep(0.1)
    raise AssertionError(f"{name} is not rolled out within {timeout} s: {service['status']}")


def restarts(pod: JSON) -> int:
    """Of all its containers together."""
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))


def events(cluster: Cluster, namespace: str, name: str, reason: str) -> list[JSON]:
    """On the LLMService."""
    found = cluster.list("events", namespace)
    about = [e for e in found if (e["involvedObject"]["kind"], e["involvedObject"]["name"]) == ("LLMService", name)]
    return [event for event in about if event["reason"] == reason]


def is_pending(cluster: Cluster, namespace: str, name: str) -> bool:
    """What this operator would render differs from what runs."""
    return bool(rollout(cluster, namespace, name).get("updatePending"))


def is_settled(cluster: Cluster, namespace: str, name: str) -> bool:
    """Rolled out, and nothing waits."""
    reported = rollout(cluster, namespace, name)
    return reported["stableRevision"] == reported["revision"] and not {"updatePending", "updateWaiting"} & set(reported)
