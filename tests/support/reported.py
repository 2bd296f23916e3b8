"""A failure is reported everywhere: in the status, as one Event, in the metrics, and in `kubectl get llms`."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support import rolling
from tests.support.cluster import JSON, Cluster
from tests.support.operator import leader, operator_metric
from tests.support.patience import at_most

REPORTED_WITHIN = 10.0
"""Seconds from the cause, for what is reported everywhere."""
_BEGUN, _FAILING = "llmservice_failures", "llmservice_failing_services"
_LOOK_EACH = 0.2


@dataclass(frozen=True)
class Before:
    """What was reported before something goes wrong; make one with `before`."""

    at: float
    """Seconds of the epoch."""
    leader: str
    begun: Mapping[str, float]
    """Failures that had begun, by reason."""


@dataclass(frozen=True)
class Reported:
    """What reported_everywhere found."""

    at: float
    """When it was reported in all places: seconds of the epoch."""
    failure: JSON
    """status.failure."""
    event: JSON


def before(cluster: Cluster) -> Before:
    """To be taken before the cause: Events and the counter are compared with it."""
    return Before(time.time(), leader(cluster), operator_metric(cluster, _BEGUN))


def reported_everywhere(
    cluster: Cluster, namespace: str, name: str, reason: str, since: Before, *, timeout: float = 30.0
) -> Reported:
    """Wait as `eventually` does until one look finds this failure everywhere; AssertionError with what is missing.

    `status.failure` has words in each of its fields, one Warning Event since then has the reason, the counter of
    failures has grown and the gauge of failing services counts one, and the column REASON has it.
    """
    limit = at_most(timeout)
    deadline = time.monotonic() + limit
    while True:
        failure: JSON = cluster.must_get("llmservices", namespace, name).get("status", {}).get("failure") or {}
        missing = _missing(cluster, namespace, name, reason, since, failure)
        if not missing:
            at = time.time()
            break
        assert time.monotonic() < deadline, f"{reason} of {namespace}/{name}, not within {limit:.0f} s: {missing}"
        time.sleep(_LOOK_EACH)
    empty = [field for field in ("message", "remedy", "evidence", "since") if not failure.get(field)]
    assert not empty, f"nothing in {empty} of {failure}"
    # Listed again: one that follows the first was not there yet, perhaps, when that was found.
    reported = warnings(cluster, namespace, name, reason, since.at)
    assert sum(event["count"] for event in reported) == 1, (
        f"reported more than once: {[event['message'] for event in reported]}"
    )
    return Reported(at, failure, reported[0])


def _missing(cluster: Cluster, namespace: str, name: str, reason: str, since: Before, failure: JSON) -> Sequence[str]:
    """Where it is not reported. The status comes first, so that a long wait asks for little."""
    if failure.get("reason") != reason:
        return [f"status.failure is {failure}"]
    shown = reason_column(cluster, namespace, name)
    places = {
        f"REASON shows {shown!r}": shown == reason,
        "no Event": bool(warnings(cluster, namespace, name, reason, since.at)),
        f"{_FAILING} counts none": operator_metric(cluster, _FAILING).get(reason, 0.0) >= 1,
        f"{_BEGUN} did not grow": _grew(cluster, reason, since),
    }
    return [place for place, is_reported in places.items() if not is_reported]


def warnings(cluster: Cluster, namespace: str, name: str, reason: str, since: float) -> list[JSON]:
    """Warning Events on an LLMService with this reason, from a moment on; of Events whole seconds are kept."""
    return [
        event
        for event in rolling.events(cluster, namespace, name, reason)
        if event["type"] == "Warning" and dt.datetime.fromisoformat(event["lastTimestamp"]).timestamp() >= int(since)
    ]


def reason_column(cluster: Cluster, namespace: str, name: str) -> str:
    """What `kubectl get llms` shows under REASON."""
    head, row = cluster.kubectl("get", "llms", name, "-n", namespace).splitlines()
    start = head.index("REASON")
    return row[start:].split(maxsplit=1)[0] if row[start : start + 1].strip() else ""


def _grew(cluster: Cluster, reason: str, since: Before) -> bool:
    """Another operator that took over meanwhile counts from nothing."""
    base = since.begun.get(reason, 0.0) if leader(cluster) == since.leader else 0.0
    return operator_metric(cluster, _BEGUN).get(reason, 0.0) > base
