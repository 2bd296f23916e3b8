"""A real Prometheus that scrapes the cluster as the chart's monitors say, and evaluates the chart's rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from localcluster.install import NAMESPACE as OPERATORS
from localcluster.install import RELEASE
from localcluster.paths import ClusterPaths
from monitoring.dashboards import DASHBOARDS
from monitoring.dashboards.shapes import Query
from tests.e2e._chart import CHART, JSON, helm_offline, of_kind, only
from tests.support.prometheus import Prometheus, running, scrape_configs
from tests.support.services import merge

INTERVAL = "1s"
WITHIN = 120.0
"""Seconds for a sample of every query, and for alerts: much longer than a machine takes that is not busy."""
VARIABLES = {"job": f"{RELEASE}-metrics"}
"""Of the dashboards, beside namespace and service."""
HEALTHY, CRASHING, FETCHING, ON_GPU = "chat", "crashing", "fetching", "on-gpu"
SERVICES = {
    "": HEALTHY,
    "all services are well": CRASHING,
    "fitPolicy is Ignore": HEALTHY,
    "no container has restarted": CRASHING,
    "no pod is fetching": FETCHING,
    "no service runs on GPUs": ON_GPU,
    "no service was planned and measured": HEALTHY,
    "the service is well": CRASHING,
    "the service runs on CPUs": ON_GPU,
}
"""Of test_monitoring.py: which one a dashboard's query has data of, by why it may have none."""
AUTOSCALED = {
    "the service is not autoscaled",
    "the service always has a replica",
    "no service is autoscaled",
    "nothing is served with TLS",
}
"""Why queries have no data on a cluster without autoscaling: test_monitoring_autoscaled.py asks those."""
OF_GROUPS = {"each replica is one pod"}
"""Why queries have no data where no replica runs over several nodes: test_groups.py asks those."""
_VALUES: JSON = {
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
}


def rendered(values: JSON) -> list[JSON]:
    """The chart's objects, with all of its monitoring, as the release of the cluster would have them."""
    merged = merge(_VALUES, values)
    printed = helm_offline("template", RELEASE, str(CHART), "--namespace", OPERATORS, values=merged)
    return [document for document in yaml.safe_load_all(printed) if document]


@contextmanager
def monitored(folder: Path, values: JSON) -> Iterator[Prometheus]:
    """Scrapes what the chart with these values would have scraped, each second."""
    manifests = rendered(values)
    monitors = [*of_kind(manifests, "ServiceMonitor"), *of_kind(manifests, "PodMonitor")]
    scrapes = list(scrape_configs(monitors, str(ClusterPaths.of_this_clone().kubeconfig), INTERVAL))
    with running(folder, scrapes, only(manifests, "PrometheusRule")["spec"], INTERVAL) as prometheus:
        yield prometheus


def queries() -> Sequence[Query]:
    """All of the dashboards."""
    return [query for dashboard in DASHBOARDS for panel in dashboard.panels for query in panel.queries]
