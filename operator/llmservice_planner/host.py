"""Memory of the node: what vLLM pins beside GPUs, and the container's limit, which on CPUs includes the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llmservice_planner.plan import GIB, Fit, Line, Plan, Remedy, Request


def pinned_gib(request: Request) -> float:
    """GiB that one replica on GPUs pins beside its processes; each data-parallel engine has its own tables.

    vLLM would share tables between engines in a large enough /dev/shm, which the pods lack.
    """
    return sum(size for _, size, _, _ in _pinned(request))


def lines(request: Request) -> tuple[Line, ...]:
    return tuple(
        Line(f"node memory: {name}", size, formula, source) for name, size, formula, source in _pinned(request)
    )


def _pinned(request: Request) -> Iterator[tuple[str, float, str, str]]:
    if request.device is not None and request.device.is_cpu:
        return
    engines, tables = (
        request.data_parallel_size,
        0 if request.architecture is None else request.architecture.table_bytes,
    )
    if tables and not request.tables_on_gpu:
        formula = f"{tables / GIB:.2f} GiB" + (f" x {engines} engines" if engines > 1 else "")
        yield "tables of n-grams", tables * engines / GIB, formula, "vllm/config/engram.py, cpu_offload"
    if request.cpu_offload_gib:
        formula = f"{request.cpu_offload_gib:g} GiB x {request.gpus} GPUs"
        yield "weights", request.cpu_offload_gib * request.gpus, formula, "--cpu-offload-gb"
    if request.kv_offloading_gib:
        yield "KV cache", request.kv_offloading_gib, f"{request.kv_offloading_gib:g} GiB", "--kv-offloading-size"


def within_limit(plan: Plan, limit_gib: float | None) -> Plan:
    """The plan; DoesNotFit where weights and KV cache alone exceed the container's memory limit.

    Memory of torch, the tokenizer and requests is not counted, so that DoesNotFit is certain.
    """
    if limit_gib is not None and plan.memory_gib is not None:
        return _pinned_within(plan, limit_gib)
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
    return _with_limit(plan, reason, limit_gib - needed, int(needed) + 3)


def _pinned_within(plan: Plan, limit_gib: float) -> Plan:
    """On GPUs the limit must include the pinned memory."""
    needed = plan.host_memory_gib or 0.0
    if needed <= limit_gib or plan.verdict is Fit.DOES_NOT_FIT:
        return plan
    reason = f"vLLM pins {needed:.2f} GiB of the container's memory, and its limit is {limit_gib:.2f} GiB."
    return _with_limit(plan, reason, limit_gib - needed, int(needed) + _OF_PROCESSES * plan.gpus)


_OF_PROCESSES = 16
"""GiB for the processes of one GPU."""


def _with_limit(plan: Plan, reason: str, margin: float, enough: int) -> Plan:
    field = "runtime.resources.limits.memory"
    remedy = Remedy.of(f"set spec.{field} to {enough}Gi", ((field, f"{enough}Gi"),), plan)
    return replace(plan, verdict=Fit.DOES_NOT_FIT, reason=reason, remedies=(remedy,), margin_gib=margin)
