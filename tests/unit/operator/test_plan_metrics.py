"""The plan beside what vLLM measured, as metrics: set by the status, gone with the service."""

from __future__ import annotations

from typing import Any

import pytest
from kubeloop.resources import Key
from llmservice_operator.service.metrics import Metrics

KEY, OTHER = Key("team-a", "x"), Key("team-a", "y")
SERVICE = {"namespace": "team-a", "service": "x"}


def status(planned: int | None, measured: int | None, ready: str = "RolledOut", **weights: float) -> dict[str, Any]:
    shown: dict[str, Any] = {"conditions": [{"type": "Ready", "reason": ready}]}
    if planned is not None:
        shown["plan"] = {"kvCacheTokens": planned, "perGPU": {"weightsGiB": weights.get("expected")}}
    if measured is not None:
        shown["measured"] = {"kvCacheTokens": measured, "modelMemoryGiB": weights.get("found")}
    return shown


def error(metrics: Metrics, quantity: str = "kv_cache_tokens") -> float | None:
    return metrics.registry.get_sample_value("llmservice_plan_error_ratio", SERVICE | {"quantity": quantity})


def value(metrics: Metrics, what: str) -> float | None:
    return metrics.registry.get_sample_value(f"llmservice_{what}_kv_cache_tokens", SERVICE)


ROWS = [
    # status, planned tokens, measured tokens, error of the tokens
    ("planned only", status(1000, None), 1000, None, None),
    ("measured only", status(None, 900), None, 900, None),
    ("exact", status(1000, 1000), 1000, 1000, 0.0),
    ("too many promised", status(1048576, 810208), 1048576, 810208, pytest.approx(0.2942, abs=1e-4)),
    ("too few", status(90, 100), 90, 100, pytest.approx(-0.1)),
    ("nothing was measured", status(90, 0), 90, 0, None),
    ("the plan is of what is kept back", status(90, 100, "DoesNotFit"), None, 100, None),
    ("neither", status(None, None), None, None, None),
]


@pytest.mark.parametrize(
    ("shown", "planned", "measured", "off"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_what_a_status_says(shown: dict[str, Any], planned: Any, measured: Any, off: Any) -> None:
    metrics = Metrics()
    metrics.set_status(KEY, shown)
    assert (value(metrics, "plan"), value(metrics, "measured"), error(metrics)) == (planned, measured, off)


def test_weights_are_compared_too_and_what_a_status_no_longer_says_is_gone() -> None:
    metrics = Metrics()
    metrics.set_status(KEY, status(100, 100, expected=14.0, found=16.0))
    assert error(metrics, "weights") == pytest.approx(-0.125)
    metrics.set_status(KEY, status(100, None))
    assert (value(metrics, "plan"), value(metrics, "measured"), error(metrics)) == (100, None, None)
    metrics.set_status(OTHER, status(100, 100))
    metrics.forget(KEY)
    metrics.forget(KEY)
    assert b'service="x"' not in metrics.exposition()
    assert b'service="y"' in metrics.exposition()
