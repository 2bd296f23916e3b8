"""All services: which are not well, what they hold, which are busiest. Read from recorded series of each service."""

from __future__ import annotations

from monitoring.dashboards.shapes import Dashboard, Kind, Panel, Query, Row, Variable
from monitoring.rules import grown

_OF = 'namespace=~"$namespace"'
_WELL = "all services are well"
_GPUS = "no service runs on GPUs"
_BY = "namespace, service"
_NAMED = "{{namespace}}/{{service}}"


def _most(series: str, count: int = 10) -> str:
    return f"topk({count}, max by ({_BY}) ({series}{{{_OF}}}))"


def _number(title: str, text: str, query: Query, unit: str = "short") -> Panel:
    return Panel(title=title, text=text, unit=unit, kind=Kind.NUMBER, width=4, queries=[query])


def _busiest(title: str, text: str, unit: str, series: str) -> Panel:
    return Panel(title=title, text=f"{text} The ten highest.", unit=unit, queries=[Query(_most(series), _NAMED)])


_NUMBERS = Row(
    "The fleet",
    (
        _number(
            "Services", "LLMServices that the operator knows.", Query(f"count(llmservice_ready{{{_OF}}})", "services")
        ),
        _number(
            "Not Ready",
            "Services whose condition Ready is not True.",
            Query(f"count(llmservice_ready{{{_OF}}} == 0) or vector(0)", "not Ready"),
        ),
        _number(
            "Without an endpoint",
            "Services of which a replica is to run and none answers.",
            Query(f"count(llmservice_available{{{_OF}}} == 0) or vector(0)", "without an endpoint"),
        ),
        _number(
            "GPUs that serve",
            "Held by pods that are Ready.",
            Query(f'sum(llmservice_gpus{{{_OF},state="serving"}}) or vector(0)', "GPUs"),
        ),
        _number(
            "GPUs that serve nothing",
            "Held by pods that are not Ready.",
            Query(f'sum(llmservice_gpus{{{_OF},state="not_serving"}}) or vector(0)', "GPUs"),
        ),
        _number(
            "Generated tokens",
            "Over all services, a second.",
            Query(f"sum(llmservice:generation_tokens:rate5m{{{_OF}}})", "tokens/s"),
        ),
    ),
)

_STATE = Row(
    "State",
    (
        Panel(
            title="Problems",
            text="Each problem that a status names: docs/reference/reasons.md explains each reason.",
            unit="short",
            kind=Kind.TABLE,
            width=12,
            queries=[
                Query(
                    f"max by ({_BY}, type, reason) (llmservice_problem{{{_OF}}}) == 1",
                    f"{_NAMED} {{{{reason}}}}",
                    _WELL,
                )
            ],
        ),
        Panel(
            title="Services by the reason of Ready",
            text="Over all namespaces.",
            unit="short",
            width=12,
            is_stacked=True,
            queries=[Query("sum by (reason) (llmservice_services) > 0", "{{reason}}")],
        ),
        Panel(
            title="Failures that began",
            text="By reason, in the last hour. Over all namespaces.",
            unit="short",
            queries=[Query(f"{grown('llmservice_failures_total', '1h', 'reason')} > 0", "{{reason}}", _WELL)],
        ),
        Panel(
            title="Restarts",
            text="Containers that ended and were started again, in the last hour. The ten highest.",
            unit="short",
            queries=[Query(f"topk(10, {grown(f'llmservice_restarts_total{{{_OF}}}', '1h', _BY)} > 0)", _NAMED, _WELL)],
        ),
        Panel(
            title="GPUs by service",
            text="Held by its pods, Ready or not. The ten highest.",
            unit="short",
            is_stacked=True,
            queries=[Query(f"topk(10, sum by ({_BY}) (llmservice_gpus{{{_OF}}}))", _NAMED, _GPUS)],
        ),
    ),
)

_TRAFFIC = Row(
    "Traffic",
    (
        _busiest("Requests", "Requests that ended, a second.", "reqps", "llmservice:requests:rate5m"),
        _busiest("Tokens", "Generated tokens a second.", "short", "llmservice:generation_tokens:rate5m"),
        _busiest("Waiting requests", "Over all replicas.", "short", "llmservice:requests_waiting:sum"),
        _busiest("Late first tokens", "Share of the last hour.", "percentunit", "llmservice:ttft_late:ratio_rate1h"),
        _busiest(
            "Late tokens after the first", "Share of the last hour.", "percentunit", "llmservice:itl_late:ratio_rate1h"
        ),
        _busiest("KV cache in use", "Of the fullest replica.", "percentunit", "llmservice:kv_cache_usage:max"),
        _busiest(
            "Requests that failed",
            "Share that ended with an error of the engine.",
            "percentunit",
            "llmservice:requests_failed:ratio_rate5m",
        ),
        _busiest(
            "Requests that were aborted",
            "Share that a client or a gateway gave up.",
            "percentunit",
            "llmservice:requests_aborted:ratio_rate5m",
        ),
        Panel(
            title="Plan against measurement",
            text="By how much the plan is above what vLLM measured. The ten highest.",
            unit="percentunit",
            queries=[
                Query(
                    f"topk(10, max by ({_BY}, quantity) (abs(llmservice_plan_error_ratio{{{_OF}}})))",
                    f"{_NAMED} {{{{quantity}}}}",
                    "no service was planned and measured",
                )
            ],
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="llmservice-fleet",
    title="LLMService / Fleet",
    text="All LLMServices: which are not well, which GPUs they hold, which are busiest.",
    variables=[
        Variable(
            name="namespace", label="Namespace", query="label_values(llmservice_ready, namespace)", is_multiple=True
        )
    ],
    rows=(_NUMBERS, _STATE, _TRAFFIC),
)
