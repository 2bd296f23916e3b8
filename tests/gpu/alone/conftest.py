"""One measurement of the whole machine, or the exact reason why there is none."""

from __future__ import annotations

import pytest

from benchmarks.gpu.findings import Findings
from benchmarks.gpu.machine import measure

NO_TORCH = "there is no torch in this Python: make engine installs one"


@pytest.fixture(scope="session")
def findings() -> Findings:
    """On this machine's first GPU; what was measured and what was skipped is printed."""
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU on this machine")
    found = measure("cuda")
    print(*found.figures, *found.attention, *found.skipped, sep="\n")
    return found


def need(found: Findings, what: str) -> None:
    """Skip with the reason for which something was not measured."""
    for skipped in found.skipped:
        if skipped.what in (what, "overheads"):
            pytest.skip(f"{skipped.what}: {skipped.why}")
