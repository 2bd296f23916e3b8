"""Replicas over several nodes as metrics: set by the status, gone with the service."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.resources import Key
from llmservice_operator.service.metrics import Metrics

KEY = Key("team-a", "x")


def group(*steps: str) -> dict[str, Any]:
    return {"name": "x-0", "members": [{"rank": n, "step": step} for n, step in enumerate(steps)]}


def shown(metrics: Metrics) -> dict[str, float]:
    """Members by step."""
    samples = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    return {each.labels["step"]: each.value for each in samples if each.name == "llmservice_group_members"}


ROWS: dict[str, tuple[list[dict[str, Any]], dict[str, float]]] = {
    "replicas of one pod": ([], {}),
    "one that starts": ([group("Running", "Preparing")], {"Running": 1, "Preparing": 1}),
    "several": ([group("Running", "Running"), group("Waiting", "Failed")], {"Running": 2, "Waiting": 1, "Failed": 1}),
    "words of a newer or hostile pod": ([group("Dancing", "Singing")], {"Other": 2}),
}


@pytest.mark.parametrize(("groups", "steps"), ROWS.values(), ids=ROWS.keys())
def test_what_a_status_says(groups: list[dict[str, Any]], steps: dict[str, float]) -> None:
    metrics = Metrics()
    metrics.set_status(KEY, {"conditions": [{"type": "Ready", "reason": "RolledOut"}], "groups": groups})
    assert shown(metrics) == steps
    metrics.forget(KEY)
    assert shown(metrics) == {}
