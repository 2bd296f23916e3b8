"""Dashboards as Grafana's JSON, by its foundation SDK."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    VariableHide,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from monitoring.dashboards.shapes import Dashboard, Kind, Panel, Query, Variable

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHTS = {Kind.NUMBER: 5, Kind.TABLE: 8, Kind.LINES: 8}
_HIDDEN = {"Time": True, "Value": True}


def to_json(dashboard: Dashboard) -> str:
    """The file of a dashboard."""
    made = (
        build.Dashboard(dashboard.title)
        .uid(dashboard.uid)
        .description(dashboard.text)
        .tags(["llmservice"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .editable()
        .with_variable(build.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in dashboard.variables:
        made = made.with_variable(_variable(variable))
    numbers = count(1)
    for row in dashboard.rows:
        made = made.with_row(build.Row(row.title).id(next(numbers)))
        height = max(_HEIGHTS[panel.kind] for panel in row.panels)
        for panel in row.panels:
            made = made.with_panel(_panel(panel, next(numbers), height))
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _variable(variable: Variable) -> build.QueryVariable:
    made = (
        build.QueryVariable(variable.name)
        .label(variable.label)
        .query(variable.query)
        .datasource(_SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .hide(VariableHide.DONT_HIDE)
    )
    return made.multi(True).include_all(True).all_value(".+") if variable.is_multiple else made


def _panel(panel: Panel, number: int, height: int) -> stat.Panel | table.Panel | timeseries.Panel:
    made = _MAKERS[panel.kind](panel).id(number).title(panel.title).description(panel.text).datasource(_SOURCE)
    made = made.unit(panel.unit).height(height).span(panel.width)
    for ref, query in zip(ascii_uppercase, panel.queries, strict=False):
        made = made.with_target(_target(query, ref, panel.kind))
    built: stat.Panel | table.Panel | timeseries.Panel = made
    return built


def _target(query: Query, ref: str, kind: Kind) -> prometheus.Dataquery:
    made = prometheus.Dataquery().datasource(_SOURCE).expr(query.expr).ref_id(ref).legend_format(query.legend)
    if kind is Kind.TABLE:
        return made.instant().format(PromQueryFormat.TABLE)
    return made.instant() if kind is Kind.NUMBER else made.range()


def _number(_: Panel) -> stat.Panel:
    return stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def _table(_: Panel) -> table.Panel:
    left_out = DataTransformerConfig(id_val="organize", options={"excludeByName": _HIDDEN})
    return table.Panel().with_transformation(left_out)


def _lines(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .min(0)
        .fill_opacity(60 if panel.is_stacked else 10)
        .legend(_legend(["lastNotNull", "max"]))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if panel.is_stacked:
        made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return made


def _legend(figures: Sequence[str]) -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(list(figures))
    )


_MAKERS: Mapping[Kind, Callable[[Panel], Any]] = {Kind.NUMBER: _number, Kind.TABLE: _table, Kind.LINES: _lines}
