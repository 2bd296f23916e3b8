"""One measurement of the whole machine, or the exact reason why there is none."""

from __future__ import annotations

import pytest

from benchmarks.gpu.__main__ import measure
from benchmarks.gpu.findings import Findings
from benchmarks.gpu.page import page

NO_TORCH = "there is no torch in this Python: make engine installs one"


@pytest.fixture(scope="session")
def findings() -> Findings:
    """On this machine's first GPU; the page is printed, and what is skipped stands on it."""
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU on this machine")
    found = measure("cuda")
    print(page(found))
    return found


def need(found: Findings, what: str) -> None:
    """Skip with the reason for which something was not measured."""
    for skipped in found.skipped:
        if skipped.what in (what, "overheads"):
            pytest.skip(f"{skipped.what}: {skipped.why}")
