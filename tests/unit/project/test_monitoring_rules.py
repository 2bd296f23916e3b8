"""The chart's rules: promtool takes them, and each alert fires in the bad case and not in the good one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from monitoring.__main__ import thresholds
from monitoring.alerts import ALERTS, GROUPS
from monitoring.recording import GROUP as RECORDED
from monitoring.rules import Alert, Group, Recording, Severity, filled, rule_file
from tests.support.documents import DOCS, blocks_of
from tests.support.prometheus import promtool
from tests.unit.project.monitoring_cases import CASES, MORE, Series

NAMES = {"job": "op-metrics", "namespace": "ops", "name": "llmservice-operator", "healthPort": 8080}


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


def group_of(alert: Alert) -> Group:
    """The alert after the series that it reads: promtool evaluates every rule at each step."""
    read, recorded = [alert.expr], list[Recording]()
    for rule in reversed(RECORDED.rules):
        if isinstance(rule, Recording) and any(rule.name in expr for expr in read):
            recorded.insert(0, rule)
            read.append(rule.expr)
    return Group("alert", (*recorded, alert))


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
    rules, file = written(tmp_path / "rules.yml", [group_of(alert)]), tmp_path / "tests.json"
    # Six hours in fewer steps: each sums what the earlier ones recorded.
    step = "5m" if case.at == "400m" else "1m"
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": step, "tests": tests}))
    promtool("test", "rules", str(file))


def test_promtool_takes_the_scrape_configuration_of_the_page(tmp_path: Path) -> None:
    (block,) = (block for block in blocks_of(DOCS / "monitoring.md", "yaml") if "scrape_configs" in block)
    file = tmp_path / "prometheus.yml"
    file.write_text(block)
    promtool("check", "config", "--lint=all", "--lint-fatal", str(file))
    jobs = {config["job_name"]: config for config in yaml.safe_load(block)["scrape_configs"]}
    # As the chart's monitors do: the rules find the operator by its Service, and services by two labels.
    targets = {rule.get("target_label") for rule in jobs["llmservices"]["relabel_configs"]}
    assert {"namespace", "service", "pod", "endpoint"} <= targets
    assert jobs["llmservice-operator-metrics"]["honor_labels"]
