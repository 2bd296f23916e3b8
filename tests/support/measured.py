"""Figures that tests measure: kept beside the cluster, shown at the end of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from localcluster.paths import ClusterPaths


class Record(Protocol):
    """The fixture `record`: figures of the test that asks for it."""

    def __call__(self, **figures: Any) -> None: ...


def folder() -> Path:
    """One JSON file a test; a later run of the same test replaces it."""
    return ClusterPaths.of_this_clone().state / "measured"


def keep(test: str, figures: dict[str, Any]) -> None:
    """Write one test's figures."""
    folder().mkdir(parents=True, exist_ok=True)
    path = folder() / f"{test.rpartition('/')[2].replace('::', '.')}.json"
    path.write_text(json.dumps({"test": test, **figures}, indent=1) + "\n")
