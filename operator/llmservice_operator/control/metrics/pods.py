"""What the pods of each service hold and how often their containers end, as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import Counter, Gauge

from llmservice_operator.api.service import Key
from llmservice_operator.control.metrics.series import Series
from llmservice_operator.observe.projections.pods import PodFacts

SERVING, NOT_SERVING = "serving", "not_serving"
_OVER = frozenset({"Succeeded", "Failed"})


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
