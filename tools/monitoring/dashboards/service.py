"""One service: what its clients get, what its replicas hold, what the operator says of it."""

from __future__ import annotations

from llmservice_vllm import metrics

from monitoring.dashboards.shapes import RATE, Dashboard, Kind, Panel, Query, Row, Variable, quantiles

_OF = 'namespace="$namespace",service="$service"'
_WELL = "the service is well"
_GPUS = "the service runs on CPUs"
_ONE_NODE = "each replica is one pod"
_NOT_HELD = "the service always has a replica"

_STATE = Row(
    "State",
    (
        Panel(
            title="Ready",
            text="1 where what the spec asks for runs in full, by the condition Ready.",
            unit="bool_yes_no",
            kind=Kind.NUMBER,
            width=4,
            queries=[Query(f"max(llmservice_ready{{{_OF}}})", "Ready")],
        ),
        Panel(
            title="Replicas that accept requests",
            text="By the supervisors in the pods.",
            unit="short",
            kind=Kind.NUMBER,
            width=4,
            queries=[Query(f"sum(llmservice_server_ready{{{_OF}}})", "replicas")],
        ),
        Panel(
            title="GPUs",
            text="GPUs that the service's pods hold, by whether the pod is Ready.",
            unit="short",
            kind=Kind.NUMBER,
            width=4,
            queries=[Query(f"sum by (state) (llmservice_gpus{{{_OF}}})", "{{state}}", _GPUS)],
        ),
        Panel(
            title="Problems",
            text="What the status names: docs/reference/reasons.md explains each reason.",
            unit="short",
            kind=Kind.TABLE,
            width=12,
            queries=[Query(f"max by (type, reason) (llmservice_problem{{{_OF}}}) == 1", "{{type}}: {{reason}}", _WELL)],
        ),
    ),
)

_REQUESTS = Row(
    "Requests",
    (
        Panel(
            title="Requests by how they ended",
            text="stop and length are whole answers; error: the engine failed; client went away: by the supervisor.",
            unit="reqps",
            is_stacked=True,
            queries=[
                Query(f"sum by (finished_reason) (rate({metrics.ENDED}{{{_OF}}}[{RATE}]))", "{{finished_reason}}"),
                Query(f"sum(rate(llmservice_server_requests_aborted_total{{{_OF}}}[{RATE}]))", "client went away"),
            ],
        ),
        Panel(
            title="Requests in the engine",
            text="Running requests get tokens in each step; waiting ones have no place in a batch yet.",
            unit="short",
            queries=[
                Query(f"sum({metrics.RUNNING}{{{_OF}}})", "running"),
                Query(f"sum({metrics.WAITING}{{{_OF}}})", "waiting"),
            ],
        ),
        Panel(
            title="Tokens",
            text="Prompt tokens that were read and tokens that were generated, over all replicas.",
            unit="short",
            queries=[
                Query(f"sum(rate({metrics.PROMPT_TOKENS}{{{_OF}}}[{RATE}]))", "prompt tokens/s"),
                Query(f"sum(rate({metrics.GENERATION_TOKENS}{{{_OF}}}[{RATE}]))", "generated tokens/s"),
            ],
        ),
    ),
)

_LATENCY = Row(
    "Latency",
    (
        Panel(
            title="Time to first token",
            text="From the request's arrival to its first token, waiting included.",
            unit="s",
            queries=quantiles(metrics.FIRST_TOKEN, _OF, 0.5, 0.95, 0.99),
        ),
        Panel(
            title="Time between tokens",
            text="Inter-token latency of running requests.",
            unit="s",
            queries=quantiles(metrics.INTER_TOKEN, _OF, 0.5, 0.95, 0.99),
        ),
        Panel(
            title="Whole request",
            text="From the request's arrival to its last token.",
            unit="s",
            queries=quantiles(metrics.WHOLE_REQUEST, _OF, 0.5, 0.95, 0.99),
        ),
        Panel(
            title="Time in the queue",
            text="What a request waits before it gets a place in a batch.",
            unit="s",
            queries=quantiles(metrics.QUEUE_TIME, _OF, 0.5, 0.95),
        ),
        Panel(
            title="Late first tokens",
            text="Share later than the alerts' target, over the windows of the error budget's alerts.",
            unit="percentunit",
            queries=[
                Query(f"llmservice:ttft_late:ratio_rate{window}{{{_OF}}}", window) for window in ("5m", "1h", "6h")
            ],
        ),
        Panel(
            title="Late tokens after the first",
            text="Share later than the alerts' target, over the windows of the error budget's alerts.",
            unit="percentunit",
            queries=[
                Query(f"llmservice:itl_late:ratio_rate{window}{{{_OF}}}", window) for window in ("5m", "1h", "6h")
            ],
        ),
    ),
)

_MEMORY = Row(
    "KV cache",
    (
        Panel(
            title="KV cache in use",
            text="Of each replica. Near 100% vLLM preempts requests and computes them again.",
            unit="percentunit",
            queries=[Query(f"max by (pod) ({metrics.KV_USAGE}{{{_OF}}})", "{{pod}}")],
        ),
        Panel(
            title="Preemptions",
            text="Requests that gave up their place in the KV cache, a second.",
            unit="ops",
            queries=[Query(f"sum by (pod) (rate({metrics.PREEMPTIONS}{{{_OF}}}[{RATE}]))", "{{pod}}")],
        ),
        Panel(
            title="Prompt tokens found in the prefix cache",
            text="Share of the prompt tokens that need no computing.",
            unit="percentunit",
            queries=[
                Query(
                    f"sum(rate({metrics.PREFIX_HITS}{{{_OF}}}[{RATE}])) "
                    f"/ sum(rate({metrics.PREFIX_QUERIES}{{{_OF}}}[{RATE}]))",
                    "hits",
                )
            ],
        ),
        Panel(
            title="Tokens in a replica's KV cache",
            text="What the plan computed before the start, and what vLLM measured.",
            unit="short",
            queries=[
                Query(f"max(llmservice_plan_kv_cache_tokens{{{_OF}}})", "planned", "fitPolicy is Ignore"),
                Query(f"max(llmservice_measured_kv_cache_tokens{{{_OF}}})", "measured"),
            ],
        ),
    ),
)

_LIFE = Row(
    "Pods",
    (
        Panel(
            title="Phases of the servers",
            text="Number of servers in each phase; a start goes from preflight over fetching and loading to serving.",
            unit="short",
            is_stacked=True,
            queries=[Query(f"sum by (phase) (llmservice_server_phase{{{_OF}}}) > 0", "{{phase}}")],
        ),
        Panel(
            title="Restarts",
            text="Restarts of containers since the operator's process began.",
            unit="short",
            queries=[Query(f"sum(llmservice_restarts_total{{{_OF}}})", "restarts", "no container has restarted")],
        ),
        Panel(
            title="Pods of replicas over several nodes",
            text="What each pod does.",
            unit="short",
            is_stacked=True,
            queries=[Query(f"sum by (step) (llmservice_group_members{{{_OF}}})", "{{step}}", _ONE_NODE)],
        ),
        Panel(
            title="Fetched of the model",
            text="While a pod fetches its model.",
            unit="percentunit",
            queries=[
                Query(
                    f"max by (pod) (llmservice_fetch_bytes{{{_OF}}} / llmservice_fetch_total_bytes{{{_OF}}})",
                    "{{pod}}",
                    "no pod is fetching",
                )
            ],
        ),
        Panel(
            title="Replicas by the autoscaler",
            text="What the activators answered KEDA, and what the requests alone would need.",
            unit="short",
            queries=[
                Query(f"max(llmservice_scaler_desired_replicas{{{_OF}}})", "desired", "the service is not autoscaled"),
                Query(f"max(llmservice_scaler_demand_replicas{{{_OF}}})", "by demand", "the service is not autoscaled"),
            ],
        ),
        Panel(
            title="Held requests",
            text="Requests that wait at the activators for a replica.",
            unit="short",
            queries=[Query(f"sum(llmservice_activator_held_requests{{{_OF}}})", "held", _NOT_HELD)],
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="llmservice-service",
    title="LLMService / Service",
    text="One LLMService: what its clients get, what its replicas hold, what the operator says of it.",
    variables=[
        Variable(name="namespace", label="Namespace", query="label_values(llmservice_ready, namespace)"),
        Variable(
            name="service", label="Service", query='label_values(llmservice_ready{namespace="$namespace"}, service)'
        ),
    ],
    rows=(_STATE, _REQUESTS, _LATENCY, _MEMORY, _LIFE),
)
