"""The supervisor stays small, since it stays."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.runtime_harness import supervised


async def test_resident_memory_while_serving(tmp_path: Path) -> None:
    async with supervised(tmp_path) as server:
        await server.ready()
        for _ in range(20):
            assert (await server.complete()).status == 200
        assert _peak_kib(server.process.pid) < 80 * 1024


def _peak_kib(pid: int) -> int:
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert peak is not None
    return int(peak[1])
