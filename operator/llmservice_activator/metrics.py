"""Prometheus metrics of the activator. `python -m llmservice_activator.metrics` prints their reference page."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from kubeloop.resources import Key
from llmservice_api.holding import LAST_USE_METRIC, LastUse
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from llmservice_activator.answers import ScalingAnswer
from llmservice_activator.holding.interface import HeldRequests, Reason

_SERVICE = ("namespace", "service")
LASTING = 120.0
"""Seconds for which an answer is shown: KEDA asks every 15 s, and only one of the activators."""


class Metrics:
    """All metrics of the process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._desired = self._gauge("desired_replicas", "Replicas that a service should have, by the last answer.")
        self._demand = self._gauge(
            "demand_replicas", "Replicas by the requests in flight and held alone; absent while it is not known."
        )
        self._in_flight = self._gauge("requests_in_flight", "Requests in flight over the pods that answered.")
        self._unread = self._gauge("unreadable_pods", "Ready pods that did not answer: nothing is scaled down.")
        self._gauges = (self._desired, self._demand, self._in_flight, self._unread)
        self._answered_at: dict[Key, float] = {}
        self.calls = Counter(
            "llmservice_scaler_calls",
            "KEDA's calls by method and gRPC code.",
            ("method", "code"),
            registry=self.registry,
        )
        self.events_dropped = Counter(
            "llmservice_scaler_events_dropped",
            "Events about changes of replicas that were not written: too many, or refused.",
            registry=self.registry,
        )
        self.services = Gauge(
            "llmservice_scaler_services", "LLMServices that are scaled or held.", registry=self.registry
        )
        self.certificate_expiry = Gauge(
            "llmservice_certificate_expiry_timestamp_seconds",
            "When the certificate that KEDA is served with expires, in Unix time.",
            ("certificate",),
            registry=self.registry,
        )
        holding = self._holding()
        self.all: tuple[MetricWrapperBase, ...] = (
            *self._gauges,
            self.calls,
            self.events_dropped,
            self.services,
            self.certificate_expiry,
            *holding,
        )
        ProcessCollector(registry=self.registry)

    def _holding(self) -> tuple[MetricWrapperBase, ...]:
        """Metrics of requests that arrive while no replica serves."""
        self._held_now = self._gauge("held_requests", "Requests that are held now.", "activator")
        self._held_bytes = self._gauge("held_bytes", "Size of the bodies of requests that are held.", "activator")
        self._held_age = self._gauge("held_age_seconds", "Seconds that the oldest request is held.", "activator")
        self._last_use = Gauge(
            LAST_USE_METRIC,
            "When the last request ended that keeps a service from zero, or began to be held, in Unix time, as far as "
            "this activator knows. The path is empty for one that is none of vLLM's.",
            (*_SERVICE, "method", "path"),
            registry=self.registry,
        )
        self._held_ever = self._counter("held", "Requests that were held.", *_SERVICE)
        self._forwarded = self._counter(
            "forwarded", "Requests whose whole answer came from a pod through the activator.", *_SERVICE
        )
        self._answered = self._counter(
            "answered", "Requests that the activator answered itself, by reason.", *_SERVICE, "reason"
        )
        self._lost = self._counter("lost", "Requests without a whole answer, by reason.", *_SERVICE, "reason")
        self.wakes = self._counter(
            "wakes",
            "Replicas set from 0 to 1 for requests that are held, by result: woken, already (somebody else did it) or "
            "failed.",
            "result",
        )
        self._of_services = (self._held_ever, self._forwarded)
        self._by_reason = (self._answered, self._lost)
        of_now = self._held_now, self._held_bytes, self._held_age, self._last_use
        return (*of_now, *self._of_services, *self._by_reason, self.wakes)

    # The protocol `RequestMetrics`.

    def held(self, key: Key) -> None:
        self._held_ever.labels(*key).inc()

    def answered(self, key: Key, reason: Reason) -> None:
        self._answered.labels(*key, reason).inc()

    def forwarded(self, key: Key, held_seconds: float) -> None:
        self._forwarded.labels(*key).inc()

    def lost(self, key: Key, reason: Reason) -> None:
        self._lost.labels(*key, reason).inc()

    def show_held(self, held: Mapping[Key, HeldRequests], now: float | None = None) -> None:
        """Held requests at `now`, by the monotonic clock."""
        at = time.monotonic() if now is None else now
        for gauge in (self._held_now, self._held_bytes, self._held_age):
            gauge.clear()
        for key, found in held.items():
            self._held_now.labels(*key).set(found.requests)
            self._held_bytes.labels(*key).set(found.bytes)
            self._held_age.labels(*key).set(0 if found.since is None else at - found.since)

    def show_uses(self, uses: Mapping[Key, LastUse]) -> None:
        self._last_use.clear()
        for key, use in uses.items():
            self._last_use.labels(*key, use.method, use.path).set(use.at)

    def observe(self, answer: ScalingAnswer) -> None:
        """A scaling answer was computed."""
        labels = answer.service.key
        self._answered_at[labels] = answer.at
        self._desired.labels(*labels).set(answer.desired.replicas)
        self._in_flight.labels(*labels).set(answer.load.in_flight)
        self._unread.labels(*labels).set(answer.load.unread)
        if answer.desired.demand is None:
            self._demand.remove(*labels)
        else:
            self._demand.labels(*labels).set(answer.desired.demand)

    def expire(self, now: float | None = None) -> None:
        """Remove figures of old answers (monotonic clock): KEDA asks another activator since, or none."""
        at = time.monotonic() if now is None else now
        for key in [key for key, since in self._answered_at.items() if at - since > LASTING]:
            self._forget_answer(key)

    def called(self, method: str, code: str) -> None:
        self.calls.labels(method, code).inc()

    def forget(self, key: Key) -> None:
        self._forget_answer(key)
        for metric in self._of_services:
            metric.remove(*key)
        for counter in self._by_reason:
            for reason in Reason:
                counter.remove(*key, reason)

    def _forget_answer(self, key: Key) -> None:
        self._answered_at.pop(key, None)
        for gauge in self._gauges:
            gauge.remove(*key)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def reference(self) -> str:
        rows = [
            f"| `{_exposed_name(metric)}` | {metric._type} | {', '.join(metric._labelnames) or '-'} "
            f"| {metric._documentation} |"
            for metric in self.all
        ]
        return "\n".join(
            [
                "# Metrics of the activator",
                "",
                "<!-- Generated: python -m llmservice_activator.metrics > docs/reference/scaler-metrics.md -->",
                "",
                "The activator, which is KEDA's scaler and runs where `autoscaling.enabled` is set in the chart, "
                "serves them at `/metrics` on its metrics port. Each of its replicas counts what it did itself. The "
                "usual `process_` metrics are there too. Gauges `llmservice_scaler_` of a service are of the last "
                "answer to KEDA, which asks one activator; two minutes after it they are absent.",
                "",
                "| name | type | labels | meaning |",
                "|-|-|-|-|",
                *rows,
                "",
            ]
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"llmservice_activator_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, part: str = "scaler") -> Gauge:
        return Gauge(f"llmservice_{part}_{name}", text, _SERVICE, registry=self.registry)


def _exposed_name(metric: MetricWrapperBase) -> str:
    return f"{metric._name}_total" if metric._type == "counter" else metric._name


if __name__ == "__main__":
    sys.stdout.write(Metrics().reference())
