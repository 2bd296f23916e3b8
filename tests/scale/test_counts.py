"""A hundred services beside the control plane: what is counted is the same on every machine, what is timed is told."""

from __future__ import annotations

import pytest

from benchmarks.scale.__main__ import bench
from benchmarks.scale.figures import Figures, goals, table
from benchmarks.scale.run import Plan
from tests.support.cluster import Cluster
from tests.support.measured import Record

pytestmark = pytest.mark.cluster


def test_a_hundred_services(cluster: Cluster, record: Record) -> None:
    """Shorter than `make bench-scale`, which takes a whole steady minute and a hundred edits."""

    def tell(found: Figures) -> None:
        record(**found.to_json())
        print(table(found))

    found = bench(Plan(services=100, idle_seconds=15.0, edits=10), cluster.paths, tell)
    counts = [goal for goal in goals(found) if goal.is_count and goal.what != "Events a service"]
    assert [goal for goal in counts if not goal.is_met] == []
    assert found.events["RolledOut"] == found.services
    # The truth where the controllers lag for more than three seconds: a pod is ready, and the Service does not list it.
    assert found.events.keys() <= {"RolledOut", "NoEndpoints"}
    assert found.requests_failed == 0
