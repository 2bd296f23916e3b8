"""Prometheus metrics of the operator. `python -m llmservice_operator.service.metrics` prints their reference page."""

from __future__ import annotations

import sys
from collections import Counter as Counted
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from kubeloop.health import Stage
from kubeloop.informer import SyncState
from kubeloop.resources import Key
from llmservice_api.conditions import ConditionType
from llmservice_api.reasons import Reason
from llmservice_runtime.contract import METRICS_PATH, STATE_PORT_NAME, State
from llmservice_runtime.group.protocol import Step
from llmservice_runtime.supervisor.metrics import METRICS as SERVER_METRICS
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.observe.verdict import is_plan_of_another

Json = Mapping[str, Any]
Samples = Mapping[tuple[Gauge, tuple[str, ...]], float]
"""Values by gauge and label values."""

_REASONS = frozenset(map(str, Reason))
FAILURE = "Failure"
"""Type of a problem in `status.failure` that no condition reports."""
_AT_ZERO = frozenset({str(Reason.IDLE), str(Reason.SCALED_TO_ZERO)})
_BAD = {
    str(ConditionType.STALLED): "True",
    str(ConditionType.DEGRADED): "True",
    str(ConditionType.AUTOSCALED): "False",
    str(ConditionType.ROUTING_READY): "False",
}
"""Status of a condition that reports a problem."""
SERVING, NOT_SERVING = "serving", "not_serving"
_OVER = frozenset({"Succeeded", "Failed"})


class Series:
    """Gauges of each service. Values are computed when they change, not at a scrape."""

    def __init__(self) -> None:
        self._shown: dict[Key, Samples] = {}

    def update(self, key: Key, now: Samples) -> None:
        """Replace the samples of a service; empty: it is deleted."""
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
    """The reason as a label value: a stored status may have any text, and each would become a permanent series."""
    return reason if reason in _REASONS else "Other"


class ByReason:
    """A gauge of services by reason: a service counts for the reason that was set last."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._reasons: dict[Key, str | None] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._reasons

    def set(self, key: Key, reason: str | None) -> bool:
        """Set the reason; None: no reason. Returns whether it changed."""
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
        self.set(key, None)
        del self._reasons[key]


class Failures:
    """Follows the failure in each service's status."""

    def __init__(self, failing: Gauge, begun: Counter) -> None:
        self._failing, self._begun = ByReason(failing), begun

    def update(self, key: Key, status: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """Process a stored status, or one that was just written in place of `before`.

        A failure that began before this process is not counted again; one in a service's first status is.
        """
        if before is not None and key not in self._failing:
            self.update(key, before)
        found = (status.get("failure") or {}).get("reason")
        reason = None if found is None else known(found)
        is_known = key in self._failing
        if self._failing.set(key, reason) and is_known and reason is not None:
            self._begun.labels(reason).inc()

    def forget(self, key: Key) -> None:
        self._failing.forget(key)


class Conditions:
    """Sets the gauges of each service from its status."""

    def __init__(self, ready: Gauge, available: Gauge, problem: Gauge) -> None:
        self._ready, self._available, self._problem = ready, available, problem
        self._series = Series()
        self._waking: set[Key] = set()
        """Services that were at zero by intent, and that have had no ready replica since."""

    def update(self, key: Key, status: Json) -> None:
        """A service's stored or just written status; empty: it is deleted."""
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
        """Whether no replica is expected to serve: at zero by intent, or starting from there."""
        if reason in _AT_ZERO:
            self._waking.add(key)
        elif value == "True":
            self._waking.discard(key)
        return key in self._waking


class Plans:
    """Sets the gauges of each service, and removes those that its status no longer has."""

    def __init__(self, planned: Gauge, measured: Gauge, error: Gauge) -> None:
        self._planned, self._measured, self._error = planned, measured, error
        self._series = Series()

    def update(self, key: Key, status: Json) -> None:
        """A service's stored or just written status; empty: it is deleted."""
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


_STEPS = frozenset(map(str, Step))


class Groups:
    """Sets the gauge of replicas over several nodes from each service's status."""

    def __init__(self, members: Gauge) -> None:
        self._members = members
        self._series = Series()

    def update(self, key: Key, status: Json) -> None:
        """A service's stored or just written status; empty: it is deleted."""
        members = (each for group in status.get("groups") or () for each in group.get("members") or ())
        steps = Counted(step if (step := str(each.get("step", ""))) in _STEPS else "Other" for each in members)
        self._series.update(key, {(self._members, (*key, step)): float(count) for step, count in steps.items()})


class Pods:
    """Sets the gauge of GPUs and counts restarts."""

    def __init__(self, gpus: Gauge, restarts: Counter) -> None:
        self._gpus, self._restarts = gpus, restarts
        self._series = Series()
        self._counted: dict[Key, dict[str, int]] = {}
        """Restarts of each pod by uid, for pods that have some."""

    def update(self, key: Key, pods: Iterable[PodFacts], resource: str) -> None:
        """The current pods of a service; `resource` is the resource name of its GPUs, or empty."""
        found = tuple(pods)
        self._series.update(key, dict(self._held(key, found, resource)))
        self._count(key, {pod.uid: pod.restarts for pod in found if pod.restarts})

    def forget(self, key: Key) -> None:
        """Remove a service that is deleted or no longer this process's."""
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
        """Restarts before this process first saw the service are the baseline, and not counted."""
        before = self._counted.get(key)
        more = sum(max(0, count - (before or {}).get(uid, 0)) for uid, count in now.items())
        self._counted[key] = now
        if before is not None and more:
            self._restarts.labels(*key).inc(more)


M = TypeVar("M", bound=MetricWrapperBase)

_SERVICE = ("namespace", "service")
_POD = (*_SERVICE, "pod")
_TABLE_HEAD = ("| name | type | labels | meaning |", "|-|-|-|-|")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """All metrics of the process, in a registry of their own."""

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
        self.group_members = self._gauge(
            "llmservice_group_members",
            "Pods of a service's replicas over several nodes, by what each does: Preparing, Waiting, Running, Failed, "
            "Leaving. Absent instead of 0.",
            (*_SERVICE, "step"),
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
        for what in ("event", "status", "report"):  # creates the series, so that the first one is an increase
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
        self._groups = Groups(self.group_members)
        self._plans = Plans(self.planned_tokens, self.measured_tokens, self.plan_error)

    def observe_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """A request to the API server ended; called by the transport."""
        self.requests.labels(verb, resource, str(code)).inc()
        self.request_seconds.labels(verb, resource).observe(seconds)

    def set_status(self, key: Key, status: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """A service's stored status, or one that was just written in place of `before`."""
        for condition in status.get("conditions") or ():
            if condition.get("type") == "Ready":
                self._by_reason.set(key, known(str(condition.get("reason", ""))))
        self._failures.update(key, status, before)
        self._conditions.update(key, status)
        self._plans.update(key, status)
        self._groups.update(key, status)

    def set_pods(self, key: Key, pods: Iterable[PodFacts], gpu_resource: str) -> None:
        """The current pods of a service, and the resource name of its GPUs, or ""."""
        self._pods.update(key, pods, gpu_resource)

    def forget(self, key: Key) -> None:
        self._by_reason.forget(key)
        self._failures.forget(key)
        self._conditions.update(key, {})
        self._pods.forget(key)
        self._plans.update(key, {})
        self._groups.update(key, {})
        if key in self._ended:
            self._ended.discard(key)
            self.streams_ended.remove(*key)

    def add_streams_ended(self, key: Key, count: int) -> None:
        self._ended.add(key)
        self.streams_ended.labels(*key).inc(count)

    def set_life(self, stage: Stage, sync: SyncState) -> None:
        """Show the stage of this process and the state of its watches."""
        for each in Stage:
            self.stage.labels(each.value).set(1 if each is stage else 0)
        working = sync.working()
        for namespace, trouble in sync.unwatched():
            self.watch_warm.labels(namespace or "").set(1 if namespace in working else 0)
            self.watch_forbidden.labels(namespace or "").set(trouble.forbidden)
            self.watch_broken.labels(namespace or "").set(trouble.broken)

    def set_progress(self, key: Key, pod: str, state: State | None) -> None:
        """Show the progress of a pod's fetch; None: it did not answer."""
        labels = (*key, pod)
        transfer = state.transfer if state is not None else None
        if transfer is None:
            self.forget_pod(key, pod)
            return
        self._fetching.setdefault(key, set()).add(pod)
        self.fetched_bytes.labels(*labels).set(transfer.bytes_done)
        self.fetch_total_bytes.labels(*labels).set(transfer.bytes_total or 0)

    def forget_progress(self, key: Key) -> None:
        """Remove the progress of a service whose pods are not polled any more."""
        for pod in tuple(self._fetching.get(key, ())):
            self.forget_pod(key, pod)

    def forget_pod(self, key: Key, pod: str) -> None:
        """Remove the progress of a pod that is not polled any more."""
        pods = self._fetching.get(key, set())
        if pod in pods:
            pods.discard(pod)
            self.fetched_bytes.remove(*key, pod)
            self.fetch_total_bytes.remove(*key, pod)
        if not pods:
            self._fetching.pop(key, None)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def reference(self) -> str:
        rows = [
            f"| `{_exposed_name(metric)}` | {metric._type} | {', '.join(metric._labelnames) or '-'} "
            f"| {metric._documentation} |"
            for metric in self._all
        ]
        return "\n".join(
            [
                "# Metrics",
                "",
                "<!-- Generated: python -m llmservice_operator.service.metrics > docs/reference/metrics.md -->",
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


if __name__ == "__main__":
    sys.stdout.write(Metrics().reference())
