"""Prometheus metrics of the operator. `python -m llmservice_operator.control.metrics` prints their reference page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from llmservice_runtime.contract import METRICS_PATH, STATE_PORT_NAME, State
from llmservice_runtime.supervisor.metrics import METRICS as SERVER_METRICS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from llmservice_operator.api.service import Key
from llmservice_operator.control.life import Stage
from llmservice_operator.control.metrics.series import ByReason, Conditions, Failures, Plans, Pods, known
from llmservice_operator.control.watch.sync_state import SyncState
from llmservice_operator.observe.projections.pods import PodFacts

M = TypeVar("M", bound=MetricWrapperBase)

_SERVICE = ("namespace", "service")
_POD = (*_SERVICE, "pod")
_TABLE_HEAD = ("| name | type | labels | meaning |", "|-|-|-|-|")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """All of them, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._all: list[MetricWrapperBase] = []
        self._fetching: dict[Key, set[str]] = {}
        self._ended: set[Key] = set()
        self.reconcile_seconds = self._histogram(
            "llmservice_reconcile_duration_seconds", "Time one look at one LLMService took.", ("result",)
        )
        self.config_reads = self._counter(
            "llmservice_config_reads",
            "Configurations of models by how reading them ended: read, or stopped (cpu, memory, time, died).",
            ("result",),
        )
        self.queue_depth = self._gauge("llmservice_queue_depth", "LLMServices that wait for a worker now.")
        self.queue_delayed = self._gauge(
            "llmservice_queue_delayed", "LLMServices that are looked at again later: retries and time limits."
        )
        self.retries = self._counter("llmservice_retries", "Looks that failed and are tried again, with back-off.")
        self.requests = self._counter(
            "llmservice_kube_requests",
            "Requests to the Kubernetes API; code 0: no answer. The watches are not among them.",
            ("verb", "resource", "code"),
        )
        self.request_seconds = self._histogram(
            "llmservice_kube_request_duration_seconds", "Time until the Kubernetes API answered.", ("verb", "resource")
        )
        self.writes = self._counter(
            "llmservice_writes", "Objects applied or deleted, the status apart.", ("kind", "action")
        )
        self.status_writes = self._counter("llmservice_status_writes", "Status of LLMServices written.")
        self.leader = self._gauge("llmservice_leader", "1 in the process that acts, 0 in those that stand by.")
        self.stage = self._gauge(
            "llmservice_stage",
            "1 for the stage that this process is in: started, synced, acting, stopping.",
            ("stage",),
        )
        self.watch_warm = self._gauge(
            "llmservice_watch_synced",
            "1 where this process sees all that a namespace has (empty: all namespaces), and nothing keeps it from "
            "watching on.",
            ("namespace",),
        )
        self.watch_forbidden = self._gauge(
            "llmservice_watch_forbidden",
            "Kinds of objects that it has no right to watch in a namespace (empty: all namespaces), or where that "
            "namespace is gone.",
            ("namespace",),
        )
        self.watch_broken = self._gauge(
            "llmservice_watch_broken",
            "Kinds of objects whose watch is broken off in a namespace (empty: all namespaces): what changes is not "
            "seen until it is watched again.",
            ("namespace",),
        )
        self.certificate_expiry = self._gauge(
            "llmservice_certificate_expiry_timestamp_seconds",
            "When a certificate that this process serves with expires, in Unix time. Absent without one.",
            ("certificate",),
        )
        self.services = self._gauge(
            "llmservice_services", "LLMServices by the reason of their Ready condition.", ("reason",)
        )
        self.ready = self._gauge("llmservice_ready", "1 where a service's condition Ready is True, else 0.", _SERVICE)
        self.available = self._gauge(
            "llmservice_available",
            "1 where a replica of a service answers, 0 where none does; absent where none is to run, and from then on "
            "until one answers.",
            _SERVICE,
        )
        self.problem = self._gauge(
            "llmservice_problem",
            "1 for each problem that a service's status names: type Failure (status.failure), or the condition: "
            "Stalled, Degraded, Autoscaled. A service that is well has none.",
            (*_SERVICE, "type", "reason"),
        )
        self.gpus = self._gauge(
            "llmservice_gpus",
            "GPUs that are taken on nodes by a service's pods, by their state: serving (Ready) or not_serving. Absent "
            "instead of 0.",
            (*_SERVICE, "state"),
        )
        self.restarts = self._counter(
            "llmservice_restarts",
            "Restarts of containers of a service's pods that this process saw; absent instead of 0. Those of the "
            "container that fetches are not among them.",
            _SERVICE,
        )
        self.fetched_bytes = self._gauge(
            "llmservice_fetch_bytes", "Bytes of a model that a starting pod has fetched.", _POD
        )
        self.fetch_total_bytes = self._gauge("llmservice_fetch_total_bytes", "Bytes that it will have fetched.", _POD)
        self.planned_tokens = self._gauge(
            "llmservice_plan_kv_cache_tokens", "Tokens that the plan has for a replica's KV cache.", _SERVICE
        )
        self.measured_tokens = self._gauge(
            "llmservice_measured_kv_cache_tokens", "Tokens that vLLM found room for in a replica's KV cache.", _SERVICE
        )
        self.plan_error = self._gauge(
            "llmservice_plan_error_ratio",
            "By how much the plan is above what vLLM measured, as a share of it: 0 is exact, below 0 too low.",
            (*_SERVICE, "quantity"),
        )
        self.state_reads = self._counter(
            "llmservice_state_reads",
            "Questions to pods about their state: answered, silent, or invalid (no answer of a server).",
            ("result",),
        )
        self.deletion_costs = self._counter(
            "llmservice_deletion_costs",
            "Pods that were marked before a scale-down, so that the least busy ones end: written, or failed.",
            ("result",),
        )
        self.rate_limited = self._counter(
            "llmservice_rate_limited",
            "What one service had too much of: Events that were dropped (event), status writes (status) and changes "
            "that its pods reported (report) that were put off.",
            ("what",),
        )
        for what in ("event", "status", "report"):  # so that the first one of each is an increase
            self.rate_limited.labels(what)

        self.failing = self._gauge(
            "llmservice_failing_services", "LLMServices whose status has a failure, by its reason.", ("reason",)
        )
        self.failures = self._counter(
            "llmservice_failures", "Failures of LLMServices that began, by their reason.", ("reason",)
        )
        self.streams_ended = self._counter(
            "llmservice_streams_ended", "Streams that were ended because they outlived the drain timeout.", _SERVICE
        )
        self.internal_errors = self._counter(
            "llmservice_internal_errors",
            "Unexpected exceptions about single services, pods or objects, by the part that failed; the log has each.",
            ("part",),
        )
        self.tasks = self._gauge("llmservice_tasks", "Tasks of the operator's event loop.")
        ProcessCollector(registry=self.registry)
        self._by_reason = ByReason(self.services)
        self._failures = Failures(self.failing, self.failures)
        self._conditions = Conditions(self.ready, self.available, self.problem)
        self._pods = Pods(self.gpus, self.restarts)
        self._plans = Plans(self.planned_tokens, self.measured_tokens, self.plan_error)

    def observe_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """One request to the API ended; the transport calls this."""
        self.requests.labels(verb, resource, str(code)).inc()
        self.request_seconds.labels(verb, resource).observe(seconds)

    def set_status(self, key: Key, status: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """A service's stored status, or one that was just written in the place of `before`."""
        for condition in status.get("conditions") or ():
            if condition.get("type") == "Ready":
                self._by_reason.set(key, known(str(condition.get("reason", ""))))
        self._failures.update(key, status, before)
        self._conditions.update(key, status)
        self._plans.update(key, status)

    def set_pods(self, key: Key, pods: Iterable[PodFacts], gpu_resource: str) -> None:
        """The pods that a service has now, and the resource name of its GPUs; empty: it has none."""
        self._pods.update(key, pods, gpu_resource)

    def forget(self, key: Key) -> None:
        """A service is gone."""
        self._by_reason.forget(key)
        self._failures.forget(key)
        self._conditions.update(key, {})
        self._pods.forget(key)
        self._plans.update(key, {})
        if key in self._ended:
            self._ended.discard(key)
            self.streams_ended.remove(*key)

    def add_streams_ended(self, key: Key, count: int) -> None:
        """A pod's end cut so many streams short."""
        self._ended.add(key)
        self.streams_ended.labels(*key).inc(count)

    def set_life(self, stage: Stage, sync: SyncState) -> None:
        """Show the stage of this process, and how far its watches are."""
        for each in Stage:
            self.stage.labels(each.value).set(1 if each is stage else 0)
        working = sync.working()
        for namespace, trouble in sync.unwatched():
            self.watch_warm.labels(namespace or "").set(1 if namespace in working else 0)
            self.watch_forbidden.labels(namespace or "").set(trouble.forbidden)
            self.watch_broken.labels(namespace or "").set(trouble.broken)

    def set_progress(self, key: Key, pod: str, state: State | None) -> None:
        """Set the progress of a pod's fetch; None: it did not answer."""
        labels = (*key, pod)
        transfer = state.transfer if state is not None else None
        if transfer is None:
            self.forget_pod(key, pod)
            return
        self._fetching.setdefault(key, set()).add(pod)
        self.fetched_bytes.labels(*labels).set(transfer.bytes_done)
        self.fetch_total_bytes.labels(*labels).set(transfer.bytes_total or 0)

    def forget_progress(self, key: Key) -> None:
        """A service's pods are not asked any more."""
        for pod in tuple(self._fetching.get(key, ())):
            self.forget_pod(key, pod)

    def forget_pod(self, key: Key, pod: str) -> None:
        """A pod is not asked any more."""
        pods = self._fetching.get(key, set())
        if pod in pods:
            pods.discard(pod)
            self.fetched_bytes.remove(*key, pod)
            self.fetch_total_bytes.remove(*key, pod)
        if not pods:
            self._fetching.pop(key, None)

    def exposition(self) -> bytes:
        """What /metrics answers."""
        return generate_latest(self.registry)

    def reference(self) -> str:
        """The documentation page."""
        rows = [
            f"| `{_exposed_name(metric)}` | {metric._type} | {', '.join(metric._labelnames) or '-'} "
            f"| {metric._documentation} |"
            for metric in self._all
        ]
        return "\n".join(
            [
                "# Metrics",
                "",
                "<!-- Generated: python -m llmservice_operator.control.metrics > docs/reference/metrics.md -->",
                "",
                "The operator serves them at `/metrics` on its metrics port. What vLLM measures of requests and tokens "
                "is served by vLLM itself, on the `http` port of each pod. The usual `process_` metrics (memory, CPU, "
                "open file descriptors) are there too.",
                "",
                *_TABLE_HEAD,
                *rows,
                "",
                "## Servers",
                "",
                f"Each pod of a model serves these at `{METRICS_PATH}` on its `{STATE_PORT_NAME}` port, from its first "
                "second on: while the model is fetched vLLM does not run yet.",
                "",
                *_TABLE_HEAD,
                *(f"| `{m.name}` | {m.kind} | {', '.join(m.labels) or '-'} | {m.text} |" for m in SERVER_METRICS),
                "",
            ]
        )

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return self._added(Counter(name, text, labels, registry=self.registry))

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return self._added(Gauge(name, text, labels, registry=self.registry))

    def _histogram(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Histogram:
        return self._added(Histogram(name, text, labels, registry=self.registry, buckets=_SECONDS))

    def _added(self, metric: M) -> M:
        self._all.append(metric)
        return metric


def _exposed_name(metric: MetricWrapperBase) -> str:
    return f"{metric._name}_total" if metric._type == "counter" else metric._name
