"""The chart's dashboards: what Grafana's users expect of them, and that rules and queries name what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_activator.metrics import Metrics as ActivatorMetrics
from llmservice_operator.service.metrics import Metrics
from llmservice_runtime.supervisor.metrics import METRICS as SERVER_METRICS
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from monitoring.__main__ import ROOT, generated, main
from monitoring.alerts import ALERTS, GROUPS
from monitoring.dashboards import DASHBOARDS
from monitoring.dashboards.grafana import to_json
from monitoring.rules import Recording
from tests.e2e.monitored import AUTOSCALED, OF_GROUPS, SERVICES, queries
from tests.support.documents import PAGES, blocks_of, name_of

JSON = dict[str, Any]
BOARDS = {dashboard.uid: json.loads(to_json(dashboard)) for dashboard in DASHBOARDS}
PAGE_OF_VLLM = Path(__file__).parents[1] / "fixtures" / "vllm_metrics.txt"
METRIC = re.compile(r"\b(?:vllm:|llmservice_|llmservice:|process_)[a-zA-Z0-9_:]+")
LONGEST_LEGEND = 60


def panels(board: JSON) -> Iterator[JSON]:
    return (panel for panel in board["panels"] if panel["type"] != "row")


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_dashboard_can_be_found_and_read_with_any_data_source(board: JSON) -> None:
    assert re.fullmatch(r"llmservice-[a-z]+", board["uid"])
    assert board["title"]
    assert board["description"]
    assert board["tags"] == ["llmservice"]
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert all(variable["label"] for variable in variables.values())
    used = set(re.findall(r"\$([a-z]+)", json.dumps([panel["targets"] for panel in panels(board)])))
    assert used - {"__rate_interval"} == variables.keys() - {"datasource"}, "each is used, and no other is"
    sources = {found["uid"] for found in datasources(board)}
    assert sources == {"${datasource}"}


def datasources(found: Any) -> Iterator[JSON]:
    if isinstance(found, dict):
        if isinstance(found.get("datasource"), dict):
            yield found["datasource"]
        for value in found.values():
            yield from datasources(value)
    elif isinstance(found, list):
        for value in found:
            yield from datasources(value)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_every_panel_says_what_it_shows_in_which_unit(board: JSON) -> None:
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    for panel in panels(board):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        if panel["type"] == "timeseries":
            legend = panel["options"]["legend"]
            assert (legend["showLegend"], legend["displayMode"]) == (True, "table"), panel["title"]
        for target in panel["targets"]:
            assert 0 < len(target["legendFormat"]) <= LONGEST_LEGEND, panel["title"]
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_no_panel_covers_another_or_leaves_the_grid(board: JSON) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


_GROWN = re.compile(r"\(increase\((\S+)\[\w+\]\) > \1 \+ 0\.5 or .* or (?=increase\(\1)")
"""What `grown` has before the increase."""


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_rates_use_grafanas_interval_but_for_fixed_hours(board: JSON) -> None:
    for panel in panels(board):
        for target in panel["targets"]:
            windows = set(re.findall(r"\[([^\]]+)\]", target["expr"]))
            assert windows <= {"$__rate_interval", "1h"}, target["expr"]
            if "1h" in windows:
                assert "last hour" in panel["description"]
            rates = _GROWN.sub("", target["expr"])
            for counter in re.findall(r"([a-z_:]+_(?:total|count|bucket))\b(?:\{[^}]*\})?(.?)", rates):
                is_shown_as_it_is = counter[0] in {"llmservice_restarts_total", "llmservice_internal_errors_total"}
                assert counter[1] == "[" or is_shown_as_it_is, f"a counter without a rate: {target['expr']}"


def exposed(registry: CollectorRegistry) -> set[str]:
    names = set()
    for family in registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
    return names


def known() -> set[str]:
    """Names of series: ours, vLLM's as they were recorded, and those of rules."""
    ours = (
        exposed(Metrics().registry) | exposed(ActivatorMetrics().registry) | {metric.name for metric in SERVER_METRICS}
    )
    vllm = set()
    for line in PAGE_OF_VLLM.read_text().splitlines():
        name = line.partition("{")[0]
        vllm |= {name, name.removesuffix("_count") + "_bucket"} if name.endswith("_count") else {name}
    return ours | vllm | {rule.name for group in GROUPS for rule in group.rules if isinstance(rule, Recording)}


def test_every_series_that_a_rule_or_dashboard_names_exists() -> None:
    exprs = [rule.expr for group in GROUPS for rule in group.rules]
    exprs += [query.expr for query in queries()]
    named = {name for expr in exprs for name in METRIC.findall(expr)}
    assert named - known() == set()


def test_an_end_to_end_test_asks_every_query_of_a_service_that_has_data_of_it() -> None:
    assert {query.empty_when for query in queries()} == set(SERVICES) | AUTOSCALED | OF_GROUPS


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page, "promql")], ids=name_of)
def test_every_series_that_a_page_queries_exists(page: Path) -> None:
    assert {name for block in blocks_of(page, "promql") for name in METRIC.findall(block)} - known() == set()


def test_every_recorded_series_is_used() -> None:
    used = "\n".join(
        [*(alert.expr for alert in ALERTS), *(str(panel.queries) for board in DASHBOARDS for panel in board.panels)]
    )
    recorded = [rule for group in GROUPS for rule in group.rules if isinstance(rule, Recording)]
    others = "\n".join(rule.expr for rule in recorded)
    assert [rule.name for rule in recorded if rule.name not in used and rule.name not in others] == []


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    pages = {path.stem: path.read_text() for path in (ROOT / "docs/runbooks").glob("*.md")}
    pages.pop("index", None)
    assert pages.keys() == {alert.name for alert in ALERTS}
    headings = ["## What it means", "## Look", "## Do", "## When it resolves"]
    for name, text in pages.items():
        assert text.startswith(f"# {name}\n"), name
        assert [line for line in text.splitlines() if line.startswith("## ")] == headings, name


def test_the_files_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_the_check_names_a_stale_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, text in generated().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "charts/llmservice-operator/values.yaml").write_text(
        (ROOT / "charts/llmservice-operator/values.yaml").read_text()
    )
    monkeypatch.setattr("monitoring.__main__.ROOT", tmp_path)
    assert main(["--check"]) == 0
    (tmp_path / "charts/llmservice-operator/files/rules.yaml").write_text("groups: []")
    (tmp_path / "charts/llmservice-operator/files/dashboards/old.json").write_text("{}")
    assert main(["--check"]) == 1
    assert capsys.readouterr().err == (
        "charts/llmservice-operator/files/dashboards/old.json is stale: run `python -m monitoring`\n"
        "charts/llmservice-operator/files/rules.yaml is stale: run `python -m monitoring`\n"
    )
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_the_recorded_page_is_one_that_prometheus_reads() -> None:
    assert list(text_string_to_metric_families(PAGE_OF_VLLM.read_text()))
