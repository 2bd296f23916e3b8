"""Pictures of the Grafana dashboards in docs/monitoring, drawn with matplotlib from the dashboards' own queries.

python tools/scripts/dashboard_pictures.py                all of them
python tools/scripts/dashboard_pictures.py --minutes 2    after two minutes of load

A real Prometheus scrapes the local cluster (`make cluster`), in which a small fleet is made for the pictures: a tiny
model on vLLM under changing load, a service that crashes, and one whose model does not fit. Grafana is not needed.
"""

from __future__ import annotations

import argparse
import io
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from localcluster.install import NAMESPACE as OPERATORS  # noqa: E402
from localcluster.install import RELEASE  # noqa: E402
from localcluster.paths import ClusterPaths  # noqa: E402
from monitoring.dashboards import DASHBOARDS  # noqa: E402
from monitoring.dashboards.shapes import Dashboard, Kind, Panel  # noqa: E402
from tests.e2e._chart import CHART, helm_offline  # noqa: E402
from tests.support.accelerators import advertised  # noqa: E402
from tests.support.cluster import Cluster  # noqa: E402
from tests.support.prometheus import Prometheus, Sample, running, scrape_configs  # noqa: E402
from tests.support.services import MILLION_TOKENS, llmservice, one_of_several, stand_in  # noqa: E402

NAMESPACE, NAME, GPU = "pictures", "tiny-chat", "pictures.example/gpu"
VALUES = {"namespace": NAMESPACE, "service": NAME, "job": f"{RELEASE}-metrics"}
INTERVAL, STEP, RATE = "5s", 5.0, "30s"
COLUMNS, HEIGHTS, INCH = 24, {Kind.NUMBER: 2, Kind.TABLE: 4, Kind.LINES: 4}, 0.55
COORDINATES = re.compile(r' (?:d|x|y|transform)="[^"]*"')
INDENTATION = re.compile(r"\s*\n\s*")
DECIMALS = re.compile(r"(\.[0-9])[0-9]+")
LAST = 60.0
"""Seconds within which a number or a row of a table was seen last."""
MOST_LINES = 6
"""Lines and rows of a panel that are named."""


@contextmanager
def fleet(cluster: Cluster) -> Iterator[None]:
    """The services of the pictures; the broken ones come a minute later. The one on GPUs computes nothing."""
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true")
    cluster.kubectl("create", "namespace", NAMESPACE)
    with advertised(cluster, {GPU: 2}):
        try:
            small = {"resources": {"requests": {"cpu": "100m", "memory": "3Gi"}}}
            on_gpus = stand_in("on-gpus", accelerator={"type": "nvidia", "resourceName": GPU}, scaling={"replicas": 2})
            cluster.apply_all([one_of_several(NAME, runtime=small), on_gpus], NAMESPACE)
            cluster.wait_condition(NAMESPACE, NAME, "Ready", "True", timeout=300)
            yield
        finally:
            cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def load(cluster: Cluster, minutes: float) -> None:
    """Three rates of requests, a third of the time each; broken services beside the last two."""
    broken = [
        stand_in("crashing", {"exit_loading": 1}),
        llmservice("too-large", model={"architecture": MILLION_TOKENS}, batching={"maxModelLen": None}),
    ]
    for number, rate in enumerate((1, 3, 2)):
        requests = str(math.ceil(rate * minutes * 20))
        words = ["bench", NAME, "-n", NAMESPACE, "--discipline", "continuous", "--requests", requests, "-q"]
        command = [sys.executable, "-m", "llmservice_cli", *words, "--rate", str(rate)]
        subprocess.run(command, env=cluster.environment, check=True, stdout=subprocess.DEVNULL)
        if number < len(broken):
            cluster.apply(broken[number], NAMESPACE)


def draw(dashboard: Dashboard, server: Prometheus, start: float, end: float) -> Figure:
    """One picture: rows of panels as Grafana places them."""
    lines = [line for row in dashboard.rows for line in _lines_of(row.panels)]
    heights = [max(HEIGHTS[panel.kind] for panel in line) for line in lines]
    figure = Figure(figsize=(COLUMNS * INCH, sum(heights) * INCH * 1.15 + 0.6), layout="constrained")
    figure.suptitle(dashboard.title, x=0.01, ha="left", fontsize=12, weight="bold")
    grid = figure.add_gridspec(len(lines), COLUMNS, height_ratios=heights)
    for number, line in enumerate(lines):
        left = 0
        for panel in line:
            axes = figure.add_subplot(grid[number, left : left + panel.width])
            axes.set_title(panel.title, fontsize=8, loc="left")
            _panel(axes, panel, server, start, end)
            left += panel.width
    return figure


def _lines_of(panels: Sequence[Panel]) -> Iterator[list[Panel]]:
    line: list[Panel] = []
    for panel in panels:
        if sum(each.width for each in line) + panel.width > COLUMNS:
            yield line
            line = []
        line.append(panel)
    yield line


def _panel(axes: Axes, panel: Panel, server: Prometheus, start: float, end: float) -> None:
    if panel.kind is not Kind.LINES:
        axes.axis("off")
        found = [
            (query.legend, sample)
            for query in panel.queries
            for sample in server.query_range(query.concrete(VALUES, RATE), end - LAST, end, STEP)
        ]
        shown = sorted({_named(legend, sample) for legend, sample in found})
        if panel.kind is Kind.NUMBER:
            values = [_value(sample.values[-1][1], panel.unit) for _, sample in found]
            axes.text(0.5, 0.5, ", ".join(values) or "no data", ha="center", va="center", fontsize=15)
        else:
            text = "\n".join(shown[:MOST_LINES]) or "none"
            axes.text(0.0, 0.95, text, ha="left", va="top", fontsize=7, family="monospace")
        return
    series = [
        (_named(query.legend, sample), sample.values)
        for query in panel.queries
        for sample in server.query_range(query.concrete(VALUES, RATE), start, end, STEP)
    ]
    _draw_lines(axes, panel, series, start, end)


def _draw_lines(
    axes: Axes, panel: Panel, series: Sequence[tuple[str, Sequence[tuple[float, float]]]], start: float, end: float
) -> None:
    if not series:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", fontsize=8, alpha=0.6)
        return
    axes.set_xlim(0, (end - start) / 60)
    axes.tick_params(labelsize=6)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _value(value, panel.unit)))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} min"))
    if panel.is_stacked:
        moments = sorted({moment for _, points in series for moment, _ in points})
        values = [[dict(points).get(moment, 0.0) for moment in moments] for _, points in series]
        minutes = [(moment - start) / 60 for moment in moments]
        axes.stackplot(minutes, values, labels=[name for name, _ in series], alpha=0.6)
    else:
        for name, points in series:
            axes.plot([(moment - start) / 60 for moment, _ in points], [value for _, value in points], label=name, lw=1)
    highest = max((value for _, points in series for _, value in points if math.isfinite(value)), default=0.0)
    axes.set_ylim(bottom=0, top=None if highest else 1)
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[:MOST_LINES], names[:MOST_LINES], fontsize=6, loc="upper left", framealpha=0.6)


def _named(legend: str, sample: Sample) -> str:
    for label, value in sample.labels.items():
        legend = legend.replace(f"{{{{{label}}}}}", value)
    return legend


def _value(value: float, unit: str) -> str:
    """As Grafana writes it, roughly."""
    if math.isnan(value):
        return "-"
    if unit == "bool_yes_no":
        return "Yes" if value else "No"
    if unit == "percentunit":
        return f"{value * 100:.3g}%"
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
    return f"{value / 1000:.3g}k" if value >= 10_000 else f"{value:.3g}"


def save(figure: Figure, path: Path) -> None:
    """As SVG with text as text, and coordinates of one decimal."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    path.write_text(
        INDENTATION.sub("\n", COORDINATES.sub(lambda found: DECIMALS.sub(r"\1", found[0]), text.getvalue()))
    )


def main() -> int:
    """Make the fleet, wait, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="of load [default: 5]")
    minutes = parser.parse_args().minutes
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "dashboards", "font.sans-serif": ["DejaVu Sans"]})
    values = {
        "metrics": {name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "prometheusRule")},
        "watch": {"namespaces": [NAMESPACE]},
    }
    printed = helm_offline("template", RELEASE, str(CHART), "--namespace", OPERATORS, values=values)
    objects = {found["kind"]: found for found in yaml.safe_load_all(printed) if found}
    monitors = [objects["ServiceMonitor"], objects["PodMonitor"]]
    paths = ClusterPaths.of_this_clone()
    connected = Cluster.connect(paths)
    folder = ROOT / "docs" / "monitoring"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work, connected.api, fleet(connected):
        scrapes = list(scrape_configs(monitors, str(paths.kubeconfig), INTERVAL))
        with running(Path(work), scrapes, objects["PrometheusRule"]["spec"], INTERVAL) as server:
            began = time.time()
            load(connected, minutes)
            for dashboard in DASHBOARDS:
                figure = draw(dashboard, server, began, time.time())
                name = dashboard.uid.removeprefix("llmservice-")
                save(figure, folder / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
