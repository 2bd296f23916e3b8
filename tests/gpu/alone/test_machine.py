"""The preflight and the planner's overheads on a real GPU: the runtime's own code, and figures beside constants."""

from __future__ import annotations

import pytest
from llmservice_planner import gpus
from llmservice_runtime.contract import FailureReason
from llmservice_runtime.preflight import accelerators

from benchmarks.gpu import machine, overheads
from benchmarks.gpu.findings import Findings
from tests.gpu.alone.conftest import need
from tests.support.measured import Record

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own


def test_the_preflight_sees_what_torch_sees(findings: Findings, record: Record) -> None:
    import torch

    devices = accelerators.list_devices()
    assert len(devices) == torch.cuda.device_count()
    for device in devices:
        assert 0 < device.free <= device.total
    record(devices=[device.name for device in devices], capability=[device.capability for device in devices])


def test_the_preflight_refuses_one_gpu_too_many(findings: Findings) -> None:
    devices = accelerators.list_devices()
    assert machine.refusals(devices, "--gpu-memory-utilization=0.01") == []
    more = f"--tensor-parallel-size={len(devices) + 1}"
    assert machine.refusals(devices, more) == [FailureReason.ACCELERATOR_MISSING]


def test_the_preflight_judges_bfloat16_as_torch_does(findings: Findings) -> None:
    import torch

    refused = machine.refusals(accelerators.list_devices()[:1], "--dtype=bfloat16", "--gpu-memory-utilization=0.01")
    can = torch.cuda.is_bf16_supported(including_emulation=False)
    assert (refused == []) is can


def test_memory_that_somebody_holds_is_found(findings: Findings) -> None:
    import torch

    device = accelerators.list_devices()[0]
    held = torch.empty(device.free // 2, dtype=torch.uint8, device="cuda")
    try:
        assert machine.refusals(accelerators.list_devices()[:1]) == [FailureReason.GPU_MEMORY_BUSY]
    finally:
        del held
        torch.cuda.empty_cache()


def test_the_catalogue_knows_this_gpu(findings: Findings, record: Record) -> None:
    device = accelerators.list_devices()[0]
    known = gpus.find(device.name)
    if known is None:
        pytest.skip(f"{device.name} is not in llmservice_planner/gpus.tsv")
    record(catalogue_gib=known.memory_gib, driver_gib=round(device.total / accelerators.GIB, 2))
    assert known.capability == device.capability
    assert known.memory_gib == pytest.approx(device.total / accelerators.GIB, rel=0.02)


@pytest.mark.parametrize("what", [overheads.CONTEXT, overheads.FREE, overheads.KERNELS, overheads.NCCL])
def test_an_overhead_is_what_the_planner_counts(findings: Findings, what: str, record: Record) -> None:
    need(findings, what)
    figure = findings.figure(what)
    record(measured_gib=round(figure.measured, 3), planned_gib=figure.planned, within=figure.within)
    assert figure.within is not None
    # One machine is no fit: twice the stated uncertainty is where a constant is wrong and not only far off.
    assert figure.measured == pytest.approx(figure.planned, abs=2 * figure.within)
