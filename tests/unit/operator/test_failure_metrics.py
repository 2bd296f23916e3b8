"""Failures by reason: a gauge of those that last, a counter of those that began."""

from __future__ import annotations

from typing import Any

from kubeloop.resources import Key
from llmservice_operator.service.metrics import Metrics

A, B = Key("ns", "a"), Key("ns", "b")


def status(reason: str | None) -> dict[str, Any]:
    return {"failure": {"reason": reason}} if reason else {}


def figures(metrics: Metrics, reason: str) -> tuple[float, float]:
    value = metrics.registry.get_sample_value
    labels = {"reason": reason}
    failing = value("llmservice_failing_services", labels) or 0.0
    return failing, value("llmservice_failures_total", labels) or 0.0


def test_a_failure_is_counted_when_it_begins_and_gauged_while_it_lasts() -> None:
    metrics = Metrics()
    for key in (A, B):
        metrics.set_status(key, status(None))
    for key in (A, B, A, A):
        metrics.set_status(key, status("EngineDied"))
    assert figures(metrics, "EngineDied") == (2, 2)
    metrics.set_status(A, status("KVCacheTooSmall"))
    assert (figures(metrics, "EngineDied"), figures(metrics, "KVCacheTooSmall")) == ((1, 2), (1, 1))
    metrics.set_status(A, status(None))
    metrics.forget(B)
    assert (figures(metrics, "EngineDied"), figures(metrics, "KVCacheTooSmall")) == ((0, 2), (0, 1))


def test_what_the_first_pass_finds_is_counted_and_what_began_before_this_process_is_not() -> None:
    metrics = Metrics()
    metrics.set_status(A, status("NameConflict"), before={"observedGeneration": -1})
    metrics.set_status(A, status("NameConflict"), before=status("NameConflict"))
    assert figures(metrics, "NameConflict") == (1, 1)
    metrics.set_status(B, status("NameConflict"), before=status("NameConflict"))
    assert figures(metrics, "NameConflict") == (2, 1)
    metrics.set_status(Key("ns", "c"), status("EngineDied"))
    assert figures(metrics, "EngineDied") == (1, 0), "found at a start"
