"""status.effective.scaling: the bounds of an autoscaled service, and the load of one replica that is aimed at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmservice_operator.api.autoscaling import MOST_CONCURRENCY, Autoscaling
from llmservice_operator.api.constants import TYPICAL_REQUEST

Json = Mapping[str, Any]


def effective_scaling(autoscaling: Autoscaling, effective: Json, measured: Json, plan: Json) -> dict[str, int]:
    """The value, from other sections of the status that is being made: `measured` and `plan` of the revision that
    serves or is rolled out, empty where there are none."""
    stated = autoscaling.target.concurrency_per_replica
    concurrency = concurrency_of(effective, measured, plan) if stated == "auto" else stated
    found = {"minReplicas": autoscaling.min_replicas, "maxReplicas": autoscaling.max_replicas}
    if autoscaling.may_be_at_zero:
        found["idleSeconds"] = autoscaling.scale_down.idle_seconds
    return found if concurrency is None else found | {"concurrencyPerReplica": concurrency}


def concurrency_of(effective: Json, measured: Json, plan: Json) -> int | None:
    """Requests of usual length that one replica computes at once, 1 to MOST_CONCURRENCY; None: nothing is known.

    As many as vLLM takes into one step, and no more than the KV cache holds: what vLLM measured before what was
    planned. None of it depends on the load, so that the number does not either.
    """
    batching = effective.get("batching") or {}
    tokens = _first(measured.get("kvCacheTokens"), plan.get("kvCacheTokens"))
    lengths = measured.get("maxModelLen"), batching.get("maxModelLen"), plan.get("requestedMaxModelLen")
    usual = min(TYPICAL_REQUEST, _first(*lengths) or TYPICAL_REQUEST)
    limits = [_first(batching.get("maxNumSeqs")), None if tokens is None else tokens // usual]
    known = [limit for limit in limits if limit is not None]
    return max(1, min(*known, MOST_CONCURRENCY)) if known else None


def _first(*values: object) -> int | None:
    """The first that is a number of at least one."""
    return next((value for value in values if isinstance(value, int) and value >= 1), None)
