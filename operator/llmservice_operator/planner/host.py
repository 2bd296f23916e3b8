"""The memory limit of the container, which on CPUs holds the model."""

from __future__ import annotations

from dataclasses import replace

from llmservice_operator.planner.plan import Fit, Plan, Remedy


def within(plan: Plan, limit_gib: float | None) -> Plan:
    """The plan, which does not fit where weights and KV cache alone are more than the container's memory limit.

    What torch, the tokenizer and a request need besides is not counted: a verdict of DoesNotFit is certain.
    """
    if limit_gib is None or plan.weights_total_gib is None or plan.verdict is Fit.DOES_NOT_FIT:
        return plan
    kv_gib = plan.kv_cache_total_gib or 0.0
    needed = plan.weights_total_gib + kv_gib
    if needed <= limit_gib:
        return plan
    reason = (
        f"The weights take {plan.weights_total_gib:.2f} GiB and the KV cache {kv_gib:.2f} GiB of the container's "
        f"memory, and its limit is {limit_gib:.2f} GiB."
    )
    enough = int(needed) + 3
    field = "runtime.resources.limits.memory"
    remedy = Remedy.of(f"set spec.{field} to {enough}Gi", ((field, f"{enough}Gi"),), plan)
    return replace(plan, verdict=Fit.DOES_NOT_FIT, reason=reason, remedies=(remedy,), margin_gib=limit_gib - needed)
