"""Alerts about what clients get: by vLLM's own metrics of each pod, and by the activators' of held requests."""

from __future__ import annotations

from collections.abc import Iterator

from llmservice_vllm import metrics

from monitoring.rules import Alert, Group, Severity, grown

_NAMED = "{{ $labels.namespace }}/{{ $labels.service }}"
_SERVICE = "namespace, service"
_MANY = "100 * ${sloMinRequests}"
_TOP = "Run: llmservice top {{ $labels.service }} -n {{ $labels.namespace }}"
_LOST, _ANSWERED = (
    f'llmservice_activator_{name}_total{{reason=~"pod_failed|internal|timed_out|full"}}'
    for name in ("lost", "answered")
)
_OURS = "and on (namespace, service) last_over_time(llmservice_ready[1h])"
"""Other vLLM servers of the cluster have the same series. The operator shows Ready of each service, at zero too."""
_LATENCIES = {
    "TTFT": ("ttft", "first tokens", "${ttftSeconds}", metrics.FIRST_TOKEN, "${sloMinRequests}"),
    # A request has many.
    "ITL": ("itl", "tokens after the first", "${itlSeconds}", metrics.INTER_TOKEN, _MANY),
}
_BURNS = {
    # Two windows each: the long one shows that it matters, the short one that it goes on. Of a month's budget 2% in an
    # hour, and 5% in six hours.
    Severity.CRITICAL: (14.4, "1h", "5m", "2m"),
    Severity.WARNING: (6, "6h", "30m", "15m"),
}


def _burn(name: str, severity: Severity) -> Alert:
    series, words, target, raw, least = _LATENCIES[name]
    factor, long, short, lasts = _BURNS[severity]
    limit = f"{factor} * (1 - ${{sloObjective}})"
    late = f"llmservice:{series}_late:ratio_rate"
    counted = f"sum by (namespace, service) (increase({raw}_count[1h])) >= {least}"
    return Alert(
        name=f"LLMService{name}BudgetBurn",
        when=f"more than {factor:g} times as many {words} are later than {target} s as the objective allows, over "
        f"{long} and over {short}",
        expr=f"{late}{long} > {limit} and {late}{short} > {limit} and {counted} {_OURS}",
        lasts=lasts,
        severity=severity,
        summary=f"{_NAMED}: {{{{ $value | humanizePercentage }}}} of {words} come later than {target} s.",
        description=f"Over {long}; the objective is ${{sloObjective}} in time. At this pace the error budget of 30 "
        f"days is spent in {30 / factor:.2g} days. {_TOP}",
    )


def _burns() -> Iterator[Alert]:
    return (_burn(name, severity) for name in _LATENCIES for severity in _BURNS)


GROUP = Group(
    "llmservice.requests",
    (
        *_burns(),
        Alert(
            name="LLMServiceErrorRate",
            when="more than `errorRatio` of the requests end with an error of the engine",
            expr=f"llmservice:requests_failed:ratio_rate5m > ${{errorRatio}} {_OURS}",
            lasts="5m",
            severity=Severity.CRITICAL,
            summary=f"{_NAMED}: {{{{ $value | humanizePercentage }}}} of the requests fail.",
            description="vLLM ended them with an error. "
            "Run: llmservice logs {{ $labels.service }} -n {{ $labels.namespace }}",
        ),
        Alert(
            name="LLMServiceAbortRate",
            when="the clients of more than `abortRatio` of the requests go away before the answer ends",
            expr=f"llmservice:requests_aborted:ratio_rate5m > ${{abortRatio}} {_OURS}",
            lasts="10m",
            severity=Severity.WARNING,
            summary=f"{_NAMED}: {{{{ $value | humanizePercentage }}}} of the requests are aborted.",
            description="Clients or a gateway close the connection before the answer ends: mostly their time limit is "
            f"shorter than the answer takes. {_TOP}",
        ),
        Alert(
            name="LLMServiceQueueGrows",
            when="more than `queuedRequests` requests wait for each replica, and there are more and more",
            # A replica has a series for each of its engines.
            expr="llmservice:requests_waiting:sum > ${queuedRequests} * count by (namespace, service) "
            f"(count by (namespace, service, pod) ({metrics.WAITING})) "
            f"and deriv(llmservice:requests_waiting:sum[10m]) > 0 {_OURS}",
            lasts="5m",
            severity=Severity.WARNING,
            summary=f"{_NAMED}: {{{{ $value }}}} requests wait, and there are more and more.",
            description=f"Requests come faster than the replicas answer them. {_TOP}",
        ),
        Alert(
            name="LLMServiceGPUMemoryTight",
            when="more than `kvCacheUsage` of the KV cache is in use, and requests are preempted",
            # A preemption frees blocks, so that the usage of a full cache falls now and then.
            expr="max_over_time(llmservice:kv_cache_usage:max[5m]) > ${kvCacheUsage} "
            f"and sum by (namespace, service) (increase({metrics.PREEMPTIONS}[10m])) > 0 {_OURS}",
            lasts="10m",
            severity=Severity.WARNING,
            summary=f"{_NAMED}: the KV cache is {{{{ $value | humanizePercentage }}}} full.",
            description="GPU memory does not hold the requests that run: vLLM preempts some and computes them again "
            f"later. {_TOP}",
        ),
        Alert(
            name="LLMServiceHeldRequestsLost",
            when="an activator lost or refused requests that it held for a service without a replica",
            # Not a sum: where there are both, either says enough.
            expr=f"{grown(_LOST, '10m', _SERVICE)} > 0 or {grown(_ANSWERED, '10m', _SERVICE)} > 0",
            severity=Severity.WARNING,
            summary=f"Requests to {_NAMED} failed while it had no replica.",
            description='At least {{ $value | printf "%.0f" }} within 10 minutes: they were held longer than allowed, '
            "there were too many, or the replica failed. "
            "Run: llmservice status {{ $labels.service }} -n {{ $labels.namespace }}",
        ),
    ),
)
