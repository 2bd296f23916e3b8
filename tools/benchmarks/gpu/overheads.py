"""Memory of a GPU that neither weights nor KV cache take: the CUDA context, kernels and workspaces, NCCL's buffers.

What the driver counts is read with nvidia-smi from a process without a context, before and after another process does
one thing on the GPU. A GPU that somebody else uses meanwhile gives wrong figures: `is_idle` says so first.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

from llmservice_planner.constants import CONSTANTS, Constant

from benchmarks.calibration.earlier import ALL
from benchmarks.gpu.findings import GIB, Figure, Skipped

CONTEXT = "CUDA context"
FREE = "taken before an engine looks"
KERNELS = "kernels and workspaces"
NCCL = "NCCL for one further rank"
_IDLE_BYTES = GIB // 4
_MIB = 2**20

_PRELUDE = """
import sys, torch
def report(name, value):
    print(name, int(value), flush=True)
    sys.stdin.readline()
torch.cuda.init()
torch.cuda.current_stream().synchronize()
"""
_MEMORY = """
report("free", torch.cuda.mem_get_info()[0])
report("total", torch.cuda.mem_get_info()[1])
"""
_WORK = """
a = torch.randn(8, 4096, 4096, device="cuda", dtype=torch.float16)
for _ in range(3):
    b = torch.softmax(a @ a, dim=-1)
    c = torch.nn.functional.scaled_dot_product_attention(*(a.view(1, 32, 4096, 1024)[..., :128],) * 3)
torch.cuda.synchronize()
del a, b, c
torch.cuda.empty_cache()
report("reserved", torch.cuda.memory_reserved())
"""
_COMMUNICATED = """
import os, torch.distributed as dist
torch.cuda.set_device(int(os.environ["RANK"]))
dist.init_process_group("nccl")
x = torch.ones(2**24, device="cuda")
report("before", torch.cuda.memory_reserved())
dist.all_reduce(x)
torch.cuda.synchronize()
report("reserved", torch.cuda.memory_reserved())
dist.destroy_process_group()
"""


def measured(count: int) -> Iterator[Figure | Skipped]:
    """Of the first of so many GPUs."""
    if shutil.which("nvidia-smi") is None:
        yield Skipped("overheads", "there is no nvidia-smi, which counts memory without a context of its own")
        return
    if used() > _IDLE_BYTES:
        yield Skipped("overheads", f"{used() / GIB:.2f} GiB of the GPU are in use by somebody else")
        return
    yield from _context()
    if count < 2:
        yield Skipped(NCCL, "it needs two GPUs, and this machine has one")
    else:
        yield from _nccl()


def used(index: int = 0) -> int:
    """Bytes that the driver counts as used on a GPU."""
    asked = ("nvidia-smi", f"--id={index}", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()) * _MIB


def _figure(what: str, measured: int, constant: Constant) -> Figure:
    return Figure(what, measured / GIB, "GiB", constant.value, constant.uncertainty)


def _context() -> Iterator[Figure]:
    before = used()
    with _Process(_PRELUDE + _MEMORY + _WORK) as process:
        free = process.read("free")
        context = used() - before
        total = process.read("total", go=True)
        reserved = process.read("reserved", go=True)
        worked = used() - before
    yield from figures(context, total - free, worked, reserved)


def figures(context: int, taken: int, worked: int, reserved: int) -> Iterator[Figure]:
    """Bytes of a context, taken before anything ran, in use after work, and reserved by torch then."""
    yield _figure(CONTEXT, context, ALL.cuda_context)
    yield _figure(FREE, taken, CONSTANTS.free_at_start)
    yield _figure(KERNELS, worked - context - reserved, CONSTANTS.non_torch)


def _nccl() -> Iterator[Figure]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    source = _PRELUDE.replace("torch.cuda.init()", "").replace("torch.cuda.current_stream().synchronize()", "")
    ranks = [_Process(source + _COMMUNICATED, {**common, "RANK": str(rank)}) for rank in range(2)]
    with ranks[0], ranks[1]:
        held = [rank.read("before") for rank in ranks]
        before = used() - held[0]
        for rank in ranks:
            rank.go()
        reserved = [rank.read("reserved") for rank in ranks]
        after = used() - reserved[0]
    yield _figure(NCCL, after - before, CONSTANTS.non_torch_peer)


class _Process:
    """A Python that does one thing on the GPU, prints a number, and waits for `go`."""

    def __init__(self, source: str, variables: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(variables or {})},
        )

    def go(self) -> None:
        """Let it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def read(self, name: str, *, go: bool = False) -> int:
        """The next number that it prints under that name."""
        if go:
            self.go()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            if len(words) == 2 and words[0] == name:
                return int(words[1])
        raise RuntimeError(f"the process on the GPU ended with {self._process.wait()} and did not print {name!r}")

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
