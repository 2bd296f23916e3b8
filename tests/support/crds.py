"""CRDs that a test brings."""

from __future__ import annotations

import json

from tests.support.cluster import Cluster, condition, eventually


def await_established(cluster: Cluster, *names: str) -> None:
    """The API server serves these; `kubectl wait` fails while a new one has no conditions yet."""
    for name in names:

        def established(name: str = name) -> bool:
            found = json.loads(cluster.kubectl("get", "crd", name, "-o", "json"))
            return (condition(found, "Established") or {}).get("status") == "True"

        eventually(f"the CRD {name} is established", established, 30)
