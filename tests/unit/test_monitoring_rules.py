"""The chart's rules: promtool takes them, and each alert fires in the bad case and not in the good one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from monitoring.__main__ import thresholds
from monitoring.alerts import ALERTS, GROUPS
from monitoring.recording import GROUP as RECORDED
from monitoring.rules import Alert, Group, Severity, filled, rule_file
from tests.support.documents import DOCS, blocks_of
from tests.support.prometheus import promtool

NAMES = {"job": "op-metrics", "namespace": "ops", "fullname": "op"}
SERVICE = 'namespace="a",service="x"'
OF_SERVICE = {"namespace": "a", "service": "x"}
OPERATOR = 'job="op-metrics",namespace="ops",pod="op-0"'
Series = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """Series of a minute's interval in which an alert fires with these labels, and those in which it does not."""

    bad: Series
    good: Mapping[str, Series]
    labels: Mapping[str, str] = field(default_factory=lambda: OF_SERVICE)
    at: str = "60m"


def available(values: str) -> Series:
    return {f'llmservice_available{{{SERVICE},pod="op-0"}}': values}


TTFT, ITL = ("time_to_first_token", "2.5"), ("inter_token_latency", "0.1")


def latency(of: tuple[str, str], *late: tuple[int, int], rate: int = 600) -> Series:
    """So many a minute, for (minutes, late ones of each) one after another."""
    (series, bound), counter, steps = of, 0, []
    for minutes, share in late:
        steps.append(f"{counter}+{rate - share}x{minutes - 1}")
        counter += (rate - share) * minutes
    total = sum(minutes for minutes, _ in late)
    name = f"vllm:{series}_seconds"
    return {
        f'{name}_bucket{{{SERVICE},pod="p",le="{bound}"}}': " ".join(steps),
        f'{name}_bucket{{{SERVICE},pod="p",le="+Inf"}}': f"0+{rate}x{total}",
        f'{name}_count{{{SERVICE},pod="p"}}': f"0+{rate}x{total}",
    }


def fast_burn(of: tuple[str, str]) -> Case:
    """Of an hour and of five minutes."""
    good = {
        "in time": latency(of, (130, 1)),
        "it is over": latency(of, (100, 360), (30, 0)),
        "it began a moment ago": latency(of, (118, 0), (10, 600)),
        "too few to judge": latency(of, (130, 1), rate=1),
        "a bound that is not the target": latency((of[0], of[1] + "5"), (130, 120)),
    }
    return Case(latency(of, (130, 120)), good, at="120m")


def slow_burn(of: tuple[str, str]) -> Case:
    """Of six hours and of half an hour."""
    good = {
        "in time": latency(of, (410, 5)),
        "it is over": latency(of, (350, 120), (60, 0)),
        "it began half an hour ago": latency(of, (380, 0), (30, 120)),
        "too few to judge": latency(of, (410, 1), rate=1),
    }
    return Case(latency(of, (410, 60)), good, at="400m")


def ended(**rates: int) -> Series:
    """Requests a minute by how they end."""
    return {
        f'vllm:request_success_total{{{SERVICE},pod="p",finished_reason="{reason}"}}': f"0+{rate}x120"
        for reason, rate in rates.items()
    }


def waiting(*values: str) -> Series:
    """By replica."""
    return {f'vllm:num_requests_waiting{{{SERVICE},pod="p{number}"}}': stated for number, stated in enumerate(values)}


def memory(usage: float, preemptions: int) -> Series:
    return {
        f'vllm:kv_cache_usage_perc{{{SERVICE},pod="p"}}': f"{usage}x120",
        f'vllm:num_preemptions_total{{{SERVICE},pod="p"}}': f"0+{preemptions}x120",
    }


def problem(kind: str, reason: str, values: str = "1x120") -> Series:
    return {f'llmservice_problem{{{SERVICE},type="{kind}",reason="{reason}",pod="op-0"}}': values}


def passes(good: int, bad: int) -> Series:
    name = "llmservice_reconcile_duration_seconds_count"
    return {f'{name}{{{OPERATOR},result="{r}"}}': f"0+{n}x120" for r, n in (("ok", good), ("error", bad))}


def shards(first: int, second: int) -> Series:
    held = {f'llmservice_shard_held{{{OPERATOR},shard="{n}"}}': f"{v}x120" for n, v in enumerate((first, second))}
    return held | {f"llmservice_leader{{{OPERATOR}}}": "1x120"}


def watch(synced: int, broken: int) -> Series:
    return {
        f"llmservice_watch_synced{{{OPERATOR}}}": f"{synced}x120",
        f"llmservice_watch_broken{{{OPERATOR}}}": f"{broken}x120",
    }


def expires(days: float) -> Series:
    """Time is from 0 on."""
    return {
        f'llmservice_certificate_expiry_timestamp_seconds{{{OPERATOR},certificate="metrics"}}': f"{days * 86400}x120"
    }


LOST = f'llmservice_activator_lost_total{{{SERVICE},pod="act",reason='
CASES: Mapping[tuple[str, Severity], Case] = {
    ("LLMServiceNoEndpoint", Severity.CRITICAL): Case(
        available("1x30 0x30"),
        {
            "a replica answers": available("1x60"),
            "for a moment": available("1x57 0x3"),
            "it starts for the first time": available("0x60"),
            "at zero": available("1x30 _x30"),
            "another process of the operator says that it answers": {
                **available("0x60"),
                f'llmservice_available{{{SERVICE},pod="op-1"}}': "1x60",
            },
        },
    ),
    ("LLMServiceNotReady", Severity.WARNING): Case(
        {f"llmservice_ready{{{SERVICE}}}": "0x60"},
        {
            "ready": {f"llmservice_ready{{{SERVICE}}}": "1x60"},
            "a start": {f"llmservice_ready{{{SERVICE}}}": "1x40 0x20"},
            "deleted": {f"llmservice_ready{{{SERVICE}}}": "0x20 _x40"},
        },
    ),
    ("LLMServiceStalled", Severity.WARNING): Case(
        problem("Stalled", "InvalidFlag"),
        {
            "for a moment": problem("Stalled", "InvalidFlag", "_x57 1x3"),
            "another condition": problem("Degraded", "InternalError"),
        },
        OF_SERVICE | {"reason": "InvalidFlag"},
    ),
    ("LLMServiceCrashLooping", Severity.WARNING): Case(
        {f"llmservice_restarts_total{{{SERVICE}}}": "_x40 1 2 3 4 4x16"},
        {
            "three": {f"llmservice_restarts_total{{{SERVICE}}}": "_x40 1 2 3 3x17"},
            "long ago": {f"llmservice_restarts_total{{{SERVICE}}}": "9x60"},
            "another process counts from 0": {f"llmservice_restarts_total{{{SERVICE}}}": "9x50 0x10"},
        },
    ),
    ("LLMServiceHung", Severity.WARNING): Case(
        problem("Failure", "EngineHung", "_x50 1 _x9"),
        {
            "another failure": problem("Failure", "EngineDied"),
            "over": problem("Failure", "EngineHung", "1x20 _x40"),
        },
    ),
    ("LLMServiceGPUsNotServing", Severity.WARNING): Case(
        {f'llmservice_gpus{{{SERVICE},state="not_serving"}}': "8x60"},
        {
            "they serve": {f'llmservice_gpus{{{SERVICE},state="serving"}}': "8x60"},
            "a start": {f'llmservice_gpus{{{SERVICE},state="not_serving"}}': "_x40 8x20"},
        },
    ),
    ("LLMServiceQuota", Severity.WARNING): Case(
        problem("Autoscaled", "QuotaBelowMaximum"),
        {"no quota": problem("Autoscaled", "KedaMissing")},
        OF_SERVICE | {"reason": "QuotaBelowMaximum"},
    ),
    ("LLMServicePlannerOff", Severity.INFO): Case(
        {f'llmservice_plan_error_ratio{{{SERVICE},quantity="weights"}}': "-0.2x60"},
        {"in the band": {f'llmservice_plan_error_ratio{{{SERVICE},quantity="weights"}}': "-0.05x60"}},
        OF_SERVICE | {"quantity": "weights"},
    ),
    ("LLMServiceTTFTBudgetBurn", Severity.CRITICAL): fast_burn(TTFT),
    ("LLMServiceTTFTBudgetBurn", Severity.WARNING): slow_burn(TTFT),
    ("LLMServiceITLBudgetBurn", Severity.CRITICAL): fast_burn(ITL),
    ("LLMServiceITLBudgetBurn", Severity.WARNING): slow_burn(ITL),
    ("LLMServiceErrorRate", Severity.CRITICAL): Case(
        ended(stop=90, error=10), {"few": ended(stop=99, error=1), "none at all": ended(stop=0, error=0)}
    ),
    ("LLMServiceAbortRate", Severity.WARNING): Case(
        ended(stop=70, abort=30), {"some": ended(stop=90, abort=10), "errors": ended(stop=70, error=30)}
    ),
    ("LLMServiceQueueGrows", Severity.WARNING): Case(
        waiting("0+2x60", "0+1x60"),
        {
            "it is worked off": waiting("200-2x60"),
            "few for so many replicas": waiting("0+1x60", "0x60", "0x60", "0x60"),
        },
    ),
    ("LLMServiceGPUMemoryTight", Severity.WARNING): Case(
        memory(0.99, 1), {"full and nothing preempted": memory(0.99, 0), "room": memory(0.5, 1)}
    ),
    ("LLMServiceHeldRequestsLost", Severity.WARNING): Case(
        {f'{LOST}"pod_failed"}}': "_x55 1x5"},
        {
            "the client went away": {f'{LOST}"client_gone"}}': "0+1x60"},
            "long ago": {f'{LOST}"pod_failed"}}': "1x60"},
        },
    ),
    ("LLMServiceOperatorNotLeading", Severity.CRITICAL): Case(
        shards(1, 0), {"both shards": shards(1, 1)}, {"shard": "1"}
    ),
    ("LLMServiceOperatorReconcileErrors", Severity.WARNING): Case(
        passes(50, 50), {"a few": passes(95, 5), "no pass": passes(0, 0)}, {}
    ),
    ("LLMServiceOperatorInternalErrors", Severity.WARNING): Case(
        {f'llmservice_internal_errors_total{{{OPERATOR},part="state"}}': "0x50 1x10"},
        {"none": {f'llmservice_internal_errors_total{{{OPERATOR},part="state"}}': "0x60"}},
        {"part": "state"},
    ),
    ("LLMServiceOperatorWatchStale", Severity.CRITICAL): Case(
        watch(1, 2), {"all are watched": watch(1, 0)}, {"job": "op-metrics", "namespace": "ops", "pod": "op-0"}
    ),
    ("LLMServiceCertificateExpires", Severity.WARNING): Case(
        expires(10), {"later": expires(40)}, {"job": "op-metrics", "certificate": "metrics"}
    ),
}
MORE: Mapping[str, Sequence[Case]] = {
    "LLMServiceOperatorNotLeading": [Case({}, {}, {"job": "op-metrics", "namespace": "ops"})],
    "LLMServiceOperatorWatchStale": [
        Case(watch(0, 0), {}, {"job": "op-metrics", "namespace": "ops", "pod": "op-0"}),
    ],
    "LLMServiceHeldRequestsLost": [
        Case({f'llmservice_activator_answered_total{{{SERVICE},pod="act",reason="timed_out"}}': "0x55 1x5"}, {}),
    ],
}
"""Other bad cases; the first: nothing is scraped."""


def alerts_at(name: str, severity: Severity, series: Series, at: str, labels: Mapping[str, str] | None) -> object:
    """A test of promtool's: the alert fires with these labels; None: it does not."""
    shown = {"alertname": name, "severity": str(severity), "alertstate": "firing"} | dict(labels or {})
    inner = ",".join(f'{key}="{value}"' for key, value in shown.items())
    expr = f'ALERTS{{alertname="{name}",severity="{severity}",alertstate="firing"}}'
    samples = [] if labels is None else [{"labels": f"ALERTS{{{inner}}}", "value": 1}]
    return {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": at, "exp_samples": samples}],
    }


def sooner(lasts: str) -> str:
    """A minute before the alert may fire, where its expression holds from the first minute on."""
    minutes = str(thresholds()[lasts[2:-1]] if lasts.startswith("$") else lasts).removesuffix("m")
    return f"{int(minutes) - 1}m"


def written(path: Path, groups: Sequence[Group]) -> Path:
    path.write_text(filled(rule_file(groups), {**thresholds(), **NAMES}))
    return path


def groups_of(alert: Alert) -> Sequence[Group]:
    """The alert, and the recorded series where it reads some: promtool evaluates every rule of the file each minute."""
    recorded = [RECORDED] if "llmservice:" in alert.expr else []
    return [*recorded, Group("alert", (alert,))]


def test_each_alert_has_a_case() -> None:
    assert {(alert.name, alert.severity) for alert in ALERTS} == CASES.keys()


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    rules = written(tmp_path / "rules.yml", GROUPS)
    assert "${" not in rules.read_text().partition("\n")[2]
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(rules))


@pytest.mark.parametrize("alert", ALERTS, ids=[f"{alert.name}-{alert.severity}" for alert in ALERTS])
def test_it_fires_in_the_bad_case_and_not_in_the_good_ones(alert: Alert, tmp_path: Path) -> None:
    name, severity = alert.name, alert.severity
    case = CASES[name, severity]
    assert case.good
    soon = [alerts_at(name, severity, case.bad, sooner(alert.lasts), None)] if alert.lasts else []
    more = [alerts_at(name, severity, also.bad, also.at, also.labels) for also in MORE.get(name, ())]
    tests = [
        alerts_at(name, severity, case.bad, case.at, case.labels),
        *(alerts_at(name, severity, series, case.at, None) for series in case.good.values()),
        *soon,
        *more,
    ]
    rules, file = written(tmp_path / "rules.yml", groups_of(alert)), tmp_path / "tests.json"
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(file))


def test_promtool_takes_the_scrape_configuration_of_the_page(tmp_path: Path) -> None:
    (block,) = blocks_of(DOCS / "monitoring.md", "yaml")
    file = tmp_path / "prometheus.yml"
    file.write_text(block)
    promtool("check", "config", "--lint=all", "--lint-fatal", str(file))
    jobs = {config["job_name"]: config for config in yaml.safe_load(block)["scrape_configs"]}
    # As the chart's monitors do: the rules find the operator by its Service, and services by two labels.
    targets = {rule.get("target_label") for rule in jobs["llmservices"]["relabel_configs"]}
    assert {"namespace", "service", "pod", "endpoint"} <= targets
    assert jobs["llmservice-operator-metrics"]["honor_labels"]
