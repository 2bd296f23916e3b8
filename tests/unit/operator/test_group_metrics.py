"""Replicas over several nodes as metrics: set by the status, gone with the service."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.resources import Key
from llmservice_operator.service.metrics import Metrics

KEY = Key("team-a", "x")
SERVICE = {"namespace": "team-a", "service": "x"}


def group(*steps: str, restarts: int = 0) -> dict[str, Any]:
    return {"name": "x-0", "restarts": restarts, "members": [{"rank": n, "step": step} for n, step in enumerate(steps)]}


def shown(metrics: Metrics) -> tuple[dict[str, float], float | None]:
    """Members by step, and restarts."""
    samples = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    steps = {each.labels["step"]: each.value for each in samples if each.name == "llmservice_group_members"}
    return steps, metrics.registry.get_sample_value("llmservice_group_restarts", SERVICE)


ROWS: dict[str, tuple[list[dict[str, Any]], dict[str, float], float | None]] = {
    "replicas of one pod": ([], {}, None),
    "one that starts": ([group("Running", "Preparing")], {"Running": 1, "Preparing": 1}, 0),
    "several": ([group("Running", "Running", restarts=1), group("Waiting", "Failed", restarts=2)],
                {"Running": 2, "Waiting": 1, "Failed": 1}, 3),
    "words of a newer or hostile pod": ([group("Dancing", "Singing")], {"Other": 2}, 0),
}  # fmt: skip


@pytest.mark.parametrize(("groups", "steps", "restarts"), ROWS.values(), ids=ROWS.keys())
def test_what_a_status_says(groups: list[dict[str, Any]], steps: dict[str, float], restarts: float | None) -> None:
    metrics = Metrics()
    metrics.set_status(KEY, {"conditions": [{"type": "Ready", "reason": "RolledOut"}], "groups": groups})
    assert shown(metrics) == (steps, restarts)
    metrics.forget(KEY)
    assert shown(metrics) == ({}, None)
