"""The operator itself: which process acts, how far its watches are, what its work costs."""

from __future__ import annotations

from monitoring.dashboards.shapes import RATE, Dashboard, Kind, Panel, Query, Row, Variable, quantiles

_OF = 'job="$job"'

_STATE = Row(
    "State",
    (
        Panel(
            title="Processes that act",
            text="One, where all is well; the others stand by.",
            unit="short",
            kind=Kind.NUMBER,
            width=4,
            queries=[Query(f"sum(llmservice_leader{{{_OF}}})", "processes")],
        ),
        Panel(
            title="Watches that are broken off",
            text="Kinds of objects that a process cannot watch now.",
            unit="short",
            kind=Kind.NUMBER,
            width=4,
            queries=[Query(f"sum(llmservice_watch_broken{{{_OF}}})", "watches")],
        ),
        Panel(
            title="Unexpected exceptions",
            text="Since the processes began, by the part that failed. The log has each.",
            unit="short",
            kind=Kind.NUMBER,
            width=4,
            queries=[Query(f"sum(llmservice_internal_errors_total{{{_OF}}}) or vector(0)", "exceptions")],
        ),
        Panel(
            title="Stage of each process",
            text="A process that stands by is synced; one that works is acting.",
            unit="short",
            kind=Kind.TABLE,
            width=12,
            queries=[Query(f"max by (pod, stage) (llmservice_stage{{{_OF}}}) == 1", "{{pod}} {{stage}}")],
        ),
    ),
)

_WORK = Row(
    "Work",
    (
        Panel(
            title="Passes over services",
            text="ok; refused: children do not become what was applied; error: the API server does not answer.",
            unit="ops",
            is_stacked=True,
            queries=[
                Query(
                    f"sum by (result) (rate(llmservice_reconcile_duration_seconds_count{{{_OF}}}[{RATE}]))",
                    "{{result}}",
                )
            ],
        ),
        Panel(
            title="Time of a pass",
            text="With the requests to the API server that it waits for.",
            unit="s",
            queries=quantiles("llmservice_reconcile_duration_seconds", _OF, 0.5, 0.95, 0.99),
        ),
        Panel(
            title="Queue",
            text="Services that wait for a worker, and those that are looked at again later.",
            unit="short",
            queries=[
                Query(f"sum(llmservice_queue_depth{{{_OF}}})", "waiting"),
                Query(f"sum(llmservice_queue_delayed{{{_OF}}})", "later"),
            ],
        ),
        Panel(
            title="Retries and limits",
            text="Passes that failed and are tried again, and what was put off since one service had too much of it.",
            unit="ops",
            queries=[
                Query(f"sum(rate(llmservice_retries_total{{{_OF}}}[{RATE}]))", "retries"),
                Query(f"sum by (what) (rate(llmservice_rate_limited_total{{{_OF}}}[{RATE}]))", "{{what}}"),
            ],
        ),
        Panel(
            title="Writes",
            text="Objects that were applied or deleted, and statuses.",
            unit="wps",
            queries=[
                Query(f"sum by (action) (rate(llmservice_writes_total{{{_OF}}}[{RATE}]))", "{{action}}"),
                Query(f"sum(rate(llmservice_status_writes_total{{{_OF}}}[{RATE}]))", "status"),
            ],
        ),
        Panel(
            title="Questions to pods",
            text="About their state while they start: answered, silent, or invalid.",
            unit="ops",
            queries=[Query(f"sum by (result) (rate(llmservice_state_reads_total{{{_OF}}}[{RATE}]))", "{{result}}")],
        ),
    ),
)

_API = Row(
    "API server",
    (
        Panel(
            title="Requests by code",
            text="Watches are not among them. 0: no answer.",
            unit="reqps",
            is_stacked=True,
            queries=[Query(f"sum by (code) (rate(llmservice_kube_requests_total{{{_OF}}}[{RATE}]))", "{{code}}")],
        ),
        Panel(
            title="Requests by kind of object",
            text="Watches are not among them.",
            unit="reqps",
            queries=[
                Query(
                    f"sum by (verb, resource) (rate(llmservice_kube_requests_total{{{_OF}}}[{RATE}]))",
                    "{{verb}} {{resource}}",
                )
            ],
        ),
        Panel(
            title="Time of a request",
            text="Until the API server answered.",
            unit="s",
            queries=quantiles("llmservice_kube_request_duration_seconds", _OF, 0.5, 0.95, 0.99),
        ),
    ),
)

_PROCESS = Row(
    "Processes",
    (
        Panel(
            title="Memory",
            text="Resident memory of each process.",
            unit="bytes",
            queries=[Query(f"max by (pod) (process_resident_memory_bytes{{{_OF}}})", "{{pod}}")],
        ),
        Panel(
            title="CPU",
            text="Seconds of CPU time a second; one process can use about one.",
            unit="short",
            queries=[Query(f"max by (pod) (rate(process_cpu_seconds_total{{{_OF}}}[{RATE}]))", "{{pod}}")],
        ),
        Panel(
            title="Tasks",
            text="Of the event loop; a steady rise is a leak.",
            unit="short",
            queries=[Query(f"max by (pod) (llmservice_tasks{{{_OF}}})", "{{pod}}")],
        ),
        Panel(
            title="Days until a certificate expires",
            text="Of /metrics, where it is served with TLS, and of the activators.",
            unit="d",
            queries=[
                Query(
                    "(min by (job, certificate) (llmservice_certificate_expiry_timestamp_seconds) - time()) / 86400",
                    "{{job}} {{certificate}}",
                    "nothing is served with TLS",
                )
            ],
        ),
        Panel(
            title="KEDA's calls",
            text="To the activators, by gRPC code.",
            unit="reqps",
            queries=[
                Query(
                    f"sum by (code) (rate(llmservice_scaler_calls_total[{RATE}]))",
                    "{{code}}",
                    "no service is autoscaled",
                )
            ],
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="llmservice-operator",
    title="LLMService / Operator",
    text="The LLMService operator: which process acts, how far its watches are, what its work costs.",
    variables=[Variable(name="job", label="Job", query="label_values(llmservice_leader, job)")],
    rows=(_STATE, _WORK, _API, _PROCESS),
)
