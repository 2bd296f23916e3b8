"""Shapes of dashboards: what Grafana's JSON, the tests of every query and the pictures of the docs are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

RATE = "$__rate_interval"


class Kind(StrEnum):
    """How a panel shows its queries."""

    LINES = "lines"
    NUMBER = "number"
    TABLE = "table"


@dataclass(frozen=True)
class Query:
    """One query of a panel; `$namespace`, `$service` and `$job` are the dashboard's variables."""

    expr: str
    legend: str
    empty_when: str = ""
    """Why it has no data where all is well; empty: it always has."""

    def concrete(self, values: Mapping[str, str], interval: str) -> str:
        """The expression that Grafana sends, with values of the variables and of $__rate_interval."""
        expr = self.expr.replace(RATE, interval)
        for name, value in values.items():
            expr = expr.replace(f"${name}", value)
        return expr


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Queries that are read together. `unit` is an id of Grafana's units."""

    title: str
    text: str
    unit: str
    queries: Sequence[Query]
    kind: Kind = Kind.LINES
    width: int = 8
    """Of 24 columns."""
    is_stacked: bool = False


@dataclass(frozen=True)
class Row:
    """A heading and its panels."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A choice above the dashboard. `query` is of Grafana's Prometheus data source."""

    name: str
    label: str
    query: str
    is_multiple: bool = False


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """One dashboard; `uid` is a part of its address and must not change."""

    uid: str
    title: str
    text: str
    variables: Sequence[Variable]
    rows: Sequence[Row]

    @property
    def panels(self) -> Iterator[Panel]:
        """Of all rows."""
        return (panel for row in self.rows for panel in row.panels)


def quantiles(series: str, selector: str, *shares: float, by: str = "") -> Sequence[Query]:
    """Quantiles of a histogram; `by` names the labels, and the first of them is the legend."""
    labels = ", ".join(filter(None, ("le", by)))
    legend = f"{{{{{by.split(', ')[-1]}}}}} " if by else ""
    return [
        Query(
            f"histogram_quantile({share}, sum by ({labels}) (rate({series}_bucket{{{selector}}}[{RATE}])))",
            f"{legend}p{share * 100:g}",
        )
        for share in shares
    ]
