"""Metrics of single services and of their numbers by reason: set where they change, removed where they are gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import Counter, Gauge

from llmservice_operator.api.conditions import ConditionType
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.service import Key
from llmservice_operator.observe.projections.pods import PodFacts
from llmservice_operator.observe.status.previous_status import is_plan_of_another

Json = Mapping[str, Any]
Samples = Mapping[tuple[Gauge, tuple[str, ...]], float]
"""Values by gauge and label values."""

_REASONS = frozenset(map(str, Reason))
FAILURE = "Failure"
"""The type of a problem that `status.failure` names and no condition."""
_AT_ZERO = frozenset({str(Reason.IDLE), str(Reason.SCALED_TO_ZERO)})
_BAD = {
    str(ConditionType.STALLED): "True",
    str(ConditionType.DEGRADED): "True",
    str(ConditionType.AUTOSCALED): "False",
}
"""The status of a condition that says something is wrong."""
SERVING, NOT_SERVING = "serving", "not_serving"
_OVER = frozenset({"Succeeded", "Failed"})


class Series:
    """What is shown of each service. A scrape computes nothing: the gauges hold the values."""

    def __init__(self) -> None:
        self._shown: dict[Key, Samples] = {}

    def update(self, key: Key, now: Samples) -> None:
        """Show these samples of a service and no others; none: it is gone."""
        before = self._shown.get(key, {})
        for (gauge, labels), value in now.items():
            if before.get((gauge, labels)) != value:
                gauge.labels(*labels).set(value)
        for gauge, labels in before.keys() - now.keys():
            gauge.remove(*labels)
        if now:
            self._shown[key] = now
        else:
            self._shown.pop(key, None)


def known(reason: str) -> str:
    """The reason as a label: a stored status may hold any word, and each would be a series for ever."""
    return reason if reason in _REASONS else "Other"


class ByReason:
    """Services by reason, as a gauge: a service counts in the reason that was set last."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._reasons: dict[Key, str | None] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._reasons

    def set(self, key: Key, reason: str | None) -> bool:
        """None: in no reason. Returns whether that is another one than before."""
        old = self._reasons.get(key)
        self._reasons[key] = reason
        if reason == old:
            return False
        if old is not None:
            self._gauge.labels(old).dec()
        if reason is not None:
            self._gauge.labels(reason).inc()
        return True

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self.set(key, None)
        del self._reasons[key]


class Failures:
    """Follows the failure in each service's status."""

    def __init__(self, failing: Gauge, begun: Counter) -> None:
        self._failing, self._begun = ByReason(failing), begun

    def update(self, key: Key, status: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """Take in a stored status, or one that was just written in the place of `before`.

        A failure that began before this process did is not counted again; one in a service's first status is.
        """
        if before is not None and key not in self._failing:
            self.update(key, before)
        found = (status.get("failure") or {}).get("reason")
        reason = None if found is None else known(found)
        is_known = key in self._failing
        if self._failing.set(key, reason) and is_known and reason is not None:
            self._begun.labels(reason).inc()

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._failing.forget(key)


class Conditions:
    """Sets the gauges of each service by its status."""

    def __init__(self, ready: Gauge, available: Gauge, problem: Gauge) -> None:
        self._ready, self._available, self._problem = ready, available, problem
        self._series = Series()
        self._waking: set[Key] = set()
        """Services that were at zero by intent, and of which no replica has answered since."""

    def update(self, key: Key, status: Json) -> None:
        """A service's stored or just written status; an empty one: it is gone."""
        if not status:
            self._waking.discard(key)
        self._series.update(key, dict(self._of(key, status)))

    def _of(self, key: Key, status: Json) -> Iterator[tuple[tuple[Gauge, tuple[str, ...]], float]]:
        for condition in status.get("conditions") or ():
            kind, value, reason = (str(condition.get(name, "")) for name in ("type", "status", "reason"))
            if kind == ConditionType.READY:
                yield (self._ready, (*key,)), float(value == "True")
            elif kind == ConditionType.AVAILABLE:
                if not self._is_waking(key, value, reason):
                    yield (self._available, (*key,)), float(value == "True")
            elif _BAD.get(kind) == value or reason == Reason.QUOTA_BELOW_MAXIMUM:
                yield (self._problem, (*key, kind, known(reason))), 1.0
        if (failure := (status.get("failure") or {}).get("reason")) is not None:
            yield (self._problem, (*key, FAILURE, known(str(failure)))), 1.0

    def _is_waking(self, key: Key, value: str, reason: str) -> bool:
        """Whether none is to answer: at zero by intent, or on the way from there to the first answer."""
        if reason in _AT_ZERO:
            self._waking.add(key)
        elif value == "True":
            self._waking.discard(key)
        return key in self._waking


class Plans:
    """Sets the gauges of each service, and removes those of which its status no longer speaks."""

    def __init__(self, planned: Gauge, measured: Gauge, error: Gauge) -> None:
        self._planned, self._measured, self._error = planned, measured, error
        self._series = Series()

    def update(self, key: Key, status: Json) -> None:
        """A service's stored or just written status; an empty one: it is gone."""
        plan = {} if is_plan_of_another(status) else status.get("plan") or {}
        self._series.update(key, dict(self._of(key, plan, status.get("measured") or {})))

    def _of(self, key: Key, plan: Json, measured: Json) -> Iterator[tuple[tuple[Gauge, tuple[str, ...]], float]]:
        pairs = {
            "kv_cache_tokens": (plan.get("kvCacheTokens"), measured.get("kvCacheTokens")),
            "weights": ((plan.get("perGPU") or {}).get("weightsGiB"), measured.get("modelMemoryGiB")),
        }
        tokens, found = pairs["kv_cache_tokens"]
        if tokens is not None:
            yield (self._planned, (*key,)), float(tokens)
        if found is not None:
            yield (self._measured, (*key,)), float(found)
        for quantity, (expected, real) in pairs.items():
            if expected is not None and real:
                yield (self._error, (*key, quantity)), (expected - real) / real


class Pods:
    """Sets the gauge of GPUs and counts restarts."""

    def __init__(self, gpus: Gauge, restarts: Counter) -> None:
        self._gpus, self._restarts = gpus, restarts
        self._series = Series()
        self._counted: dict[Key, dict[str, int]] = {}
        """Restarts that were seen of each pod, by its uid; without those of pods that have none."""

    def update(self, key: Key, pods: Iterable[PodFacts], resource: str) -> None:
        """The pods that a service has now; `resource` is the name of its GPUs, empty where it has none."""
        found = tuple(pods)
        self._series.update(key, dict(self._held(key, found, resource)))
        self._count(key, {pod.uid: pod.restarts for pod in found if pod.restarts})

    def forget(self, key: Key) -> None:
        """The service is gone, or another process's."""
        self._series.update(key, {})
        self._counted.pop(key, None)
        self._restarts.remove(*key)

    def _held(
        self, key: Key, pods: Iterable[PodFacts], resource: str
    ) -> Iterator[tuple[tuple[Gauge, tuple[str, ...]], float]]:
        held = {SERVING: 0.0, NOT_SERVING: 0.0}
        for pod in pods:
            if pod.phase not in _OVER:
                held[SERVING if pod.ready else NOT_SERVING] += float(pod.asked.get(resource, 0))
        return (((self._gpus, (*key, state)), count) for state, count in held.items() if count)

    def _count(self, key: Key, now: dict[str, int]) -> None:
        """Those before this process first saw the service are the baseline, and not counted."""
        before = self._counted.get(key)
        more = sum(max(0, count - (before or {}).get(uid, 0)) for uid, count in now.items())
        self._counted[key] = now
        if before is not None and more:
            self._restarts.labels(*key).inc(more)
