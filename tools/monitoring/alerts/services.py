"""Alerts about the state of a service, by what the operator reports of it."""

from __future__ import annotations

from monitoring.rules import Alert, Group, Severity, grown

_NAMED = "{{ $labels.namespace }}/{{ $labels.service }}"
_LOOK = "Run: llmservice status {{ $labels.service }} -n {{ $labels.namespace }}"
_EACH = "max by (namespace, service, reason)"
_STALLED = 'llmservice_problem{type="Stalled"}'
_QUOTA = 'llmservice_problem{reason=~"QuotaExceeded|QuotaBelowMaximum"}'
_NOT_SERVING = 'llmservice_gpus{state="not_serving"}'


def _seen(series: str) -> str:
    """The series, and its last value while no process of the operator shows the service, for at most 5 minutes.

    The operator's restart, or another process that takes over, would begin `for` anew.
    """
    return f"({series} or last_over_time({series}[5m]) unless on (namespace, service) llmservice_ready)"


GROUP = Group(
    "llmservice.services",
    (
        Alert(
            name="LLMServiceNoEndpoint",
            when="a service answered within the last hour, and no replica of it does now",
            # A service that starts for the first time is no outage: LLMServiceNotReady has it.
            expr=f"max by (namespace, service) {_seen('llmservice_available')} == 0 "
            "and max by (namespace, service) (max_over_time(llmservice_available[1h])) == 1",
            lasts="${noEndpointFor}",
            severity=Severity.CRITICAL,
            summary=f"No replica of {_NAMED} answers.",
            description=f"It answered within the last hour. Requests to it fail now. {_LOOK}",
        ),
        Alert(
            name="LLMServiceNotReady",
            when="the condition Ready is not True",
            expr="max by (namespace, service) (last_over_time(llmservice_ready[5m])) == 0",
            lasts="${notReadyFor}",
            severity=Severity.WARNING,
            summary=f"{_NAMED} has not been Ready for ${{notReadyFor}}.",
            description="What the spec asks for does not run in full: it starts, waits for a place, or failed. "
            f"Replicas of an earlier revision may answer. {_LOOK}",
        ),
        Alert(
            name="LLMServiceStalled",
            when="the condition Stalled is True: nothing changes until somebody acts",
            expr=f"{_EACH} {_seen(_STALLED)} == 1",
            lasts="${stalledFor}",
            severity=Severity.WARNING,
            summary=f"{_NAMED} is stalled: {{{{ $labels.reason }}}}.",
            description="The operator cannot go on without a change of the spec, the model or the cluster. "
            f"{_LOOK}, which names the remedy.",
        ),
        Alert(
            name="LLMServiceCrashLooping",
            when="more than `restarts` restarts of its containers within an hour",
            # A large model ends once for each start and the five minutes before the next.
            expr=f"{grown('llmservice_restarts_total', '1h', 'namespace, service')} > ${{restarts}}",
            severity=Severity.WARNING,
            summary=f"Containers of {_NAMED} end again and again.",
            description='{{ $value | printf "%.0f" }} restarts within an hour. '
            "Run: llmservice logs {{ $labels.service }} -n {{ $labels.namespace }} --previous",
        ),
        Alert(
            name="LLMServiceHung",
            when="vLLM's engine hung: status.failure is EngineHung",
            expr='max by (namespace, service) (llmservice_problem{type="Failure", reason="EngineHung"}) == 1',
            keeps="15m",
            severity=Severity.WARNING,
            summary=f"vLLM's engine hung in {_NAMED}.",
            description="Requests were in the engine and no token came. The supervisor takes the replica out of its "
            f"Service and restarts vLLM. This fires on for 15 minutes after that. {_LOOK}",
        ),
        Alert(
            name="LLMServiceGPUsNotServing",
            when="pods that are not Ready hold GPUs",
            expr=f"max by (namespace, service) {_seen(_NOT_SERVING)} > 0",
            lasts="${idleGpusFor}",
            severity=Severity.WARNING,
            summary=f"{_NAMED} holds {{{{ $value }}}} GPUs that serve nothing.",
            description="Its pods have been on nodes with GPUs for ${idleGpusFor} and are not Ready: they start, fail, "
            f"or end. {_LOOK}",
        ),
        Alert(
            name="LLMServiceQuota",
            when="a ResourceQuota refuses pods, or ends before maxReplicas",
            expr=f"{_EACH} {_seen(_QUOTA)} == 1",
            lasts="15m",
            severity=Severity.WARNING,
            summary=f"A quota limits {_NAMED}: {{{{ $labels.reason }}}}.",
            description="QuotaExceeded: pods are refused. QuotaBelowMaximum: the autoscaler cannot reach maxReplicas. "
            "Run: kubectl describe resourcequota -n {{ $labels.namespace }}",
        ),
        Alert(
            name="LLMServicePlannerOff",
            when="the plan and what vLLM measured differ by more than `plannerErrorRatio`",
            expr=f"max by (namespace, service, quantity) (abs{_seen('llmservice_plan_error_ratio')}) "
            "> ${plannerErrorRatio}",
            lasts="30m",
            severity=Severity.INFO,
            summary=f"The memory plan of {_NAMED} is off by {{{{ $value | humanizePercentage }}}}.",
            description="Planned and measured {{ $labels.quantity }} differ by more than the planner's band. The "
            "service serves; other plans for this model or GPU may be wrong. "
            "Run: llmservice status {{ $labels.service }} -n {{ $labels.namespace }}",
        ),
    ),
)
