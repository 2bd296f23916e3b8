"""Prometheus metrics of the scaler. `python -m llmservice_activator.metrics` prints their reference page."""

from __future__ import annotations

import sys

from llmservice_operator.api.service import Key
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from llmservice_activator.answers import Answer

_SERVICE = ("namespace", "service")


class Metrics:
    """All of them, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._desired = self._gauge("desired_replicas", "Replicas that a service should have, by the last answer.")
        self._demand = self._gauge(
            "demand_replicas", "Replicas by the requests in flight alone; absent while it is not known."
        )
        self._in_flight = self._gauge("requests_in_flight", "Requests in flight over the pods that answered.")
        self._unread = self._gauge("unreadable_pods", "Ready pods that did not answer: nothing is scaled down.")
        self._gauges = (self._desired, self._demand, self._in_flight, self._unread)
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
        self.services = Gauge("llmservice_scaler_services", "LLMServices with autoscaling.", registry=self.registry)
        self.all: tuple[MetricWrapperBase, ...] = (*self._gauges, self.calls, self.events_dropped, self.services)
        ProcessCollector(registry=self.registry)

    def observe(self, answer: Answer) -> None:
        """An answer was found."""
        labels = answer.service.key
        self._desired.labels(*labels).set(answer.desired.replicas)
        self._in_flight.labels(*labels).set(answer.load.in_flight)
        self._unread.labels(*labels).set(answer.load.unread)
        if answer.desired.demand is None:
            self._demand.remove(*labels)
        else:
            self._demand.labels(*labels).set(answer.desired.demand)

    def called(self, method: str, code: str) -> None:
        """A call ended."""
        self.calls.labels(method, code).inc()

    def forget(self, key: Key) -> None:
        """A service is gone."""
        for gauge in self._gauges:
            gauge.remove(*key)

    def exposition(self) -> bytes:
        """What /metrics answers."""
        return generate_latest(self.registry)

    def reference(self) -> str:
        """The documentation page."""
        rows = [
            f"| `{_exposed_name(metric)}` | {metric._type} | {', '.join(metric._labelnames) or '-'} "
            f"| {metric._documentation} |"
            for metric in self.all
        ]
        return "\n".join(
            [
                "# Metrics of the scaler",
                "",
                "<!-- Generated: python -m llmservice_activator.metrics > docs/reference/scaler-metrics.md -->",
                "",
                "The scaler, which runs where `autoscaling.enabled` is set in the chart, serves them at `/metrics` on "
                "its metrics port. Each of its replicas counts what it answered itself. The usual `process_` metrics "
                "are there too.",
                "",
                "| name | type | labels | meaning |",
                "|-|-|-|-|",
                *rows,
                "",
            ]
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"llmservice_scaler_{name}", text, _SERVICE, registry=self.registry)


def _exposed_name(metric: MetricWrapperBase) -> str:
    return f"{metric._name}_total" if metric._type == "counter" else metric._name


if __name__ == "__main__":
    sys.stdout.write(Metrics().reference())
