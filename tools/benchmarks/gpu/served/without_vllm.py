"""What a GPU shows without vLLM: the preflight's verdict, attention, a device-side assert, and free memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmservice_runtime.contract import Failure, Phase
from llmservice_runtime.failures.failures import End, classify

from benchmarks.gpu import attention, overheads
from benchmarks.gpu.findings import Attention, Figure, Skipped
from benchmarks.gpu.served.cases import arguments, model_folder
from benchmarks.gpu.served.server import StepFailed, variables
from benchmarks.gpu.served.serving import eight_billion
from benchmarks.gpu.served.steps import Context, Group, Step, Values, alone

RECORDED = Path(__file__).parent / "recorded"
_ASSERT = """
import torch
rows = torch.arange(4, device="cuda")
wrong = torch.tensor([7], device="cuda")
print(rows[wrong], flush=True)
torch.cuda.synchronize()
"""


async def _preflight(context: Context, _: object) -> Values:
    """The runtime's own, as the supervisor runs it before each start."""
    place, case = context.place, eight_billion()
    flags = arguments(case, place.machine, model_folder(place.work, case.model, place.machine), 8000)
    kind = "cpu" if place.machine.is_cpu else "nvidia"
    options = (f"--accelerator={kind}", f"--expected-version={place.machine.vllm}")
    command = (sys.executable, "-m", "llmservice_runtime", "preflight", *options, "--", *flags)
    code, out, err = await _output(command, variables(place, case, place.work))
    if code:
        raise StepFailed(f"the preflight ended with {code}", err.splitlines()[-20:])
    failure = Failure.from_json(out.strip())
    return {"verdict": "starts" if failure is None else f"{failure.reason}: {failure.message}", "said": err.strip()}


async def _output(command: Iterable[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


async def _attention(context: Context, _: object) -> Values:
    is_cpu = context.machine.is_cpu
    lengths = (512, 1024, 2048) if is_cpu else attention.LENGTHS
    return parts(attention.measured("cpu" if is_cpu else "cuda", lengths)) | {
        "heads": attention.HEADS,
        "head_dim": attention.HEAD_DIM,
    }


async def _memory(context: Context, _: object) -> Values:
    return parts(overheads.measured(1))


def parts(some: Iterable[Attention | Figure | Skipped]) -> dict[str, list[dict[str, Any]]]:
    """Findings as JSON, by their kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    names = {Attention: "attention", Figure: "figures", Skipped: "skipped"}
    for part in some:
        found.setdefault(names[type(part)], []).append(asdict(part))
    return found


async def _device_assert(context: Context, _: object) -> Values:
    code, out, err = await _output(
        (sys.executable, "-c", _ASSERT), variables(context.place, eight_billion(), context.place.work)
    )
    if code == 0:
        raise StepFailed("the GPU took an index that is out of range", [*out.splitlines(), *err.splitlines()][-20:])
    return classified(code, [*out.splitlines(), *err.splitlines()])


def classified(code: int, lines: Iterable[str]) -> Values:
    """The product's reason for the end of a process with this output."""
    texts = list(lines)
    end = End(code if code >= 0 else None, -code if code < 0 else None, Phase.SERVING)
    return said(classify(end, texts))


def said(failure: Failure) -> Values:
    """What the product says of a failure."""
    return {"reason": str(failure.reason), "message": failure.message, "remedy": failure.remedy}


def recorded(name: str) -> list[str]:
    """Lines of a log that was written by hand from vLLM's or torch's source."""
    return (RECORDED / f"{name}.log").read_text("utf-8").splitlines()


def _replayed_memory(_: Context) -> Values:
    return parts(_memory_figures(recorded("memory")))


def _memory_figures(lines: Iterable[str]) -> Iterator[Figure | Skipped]:
    """Of `NAME BYTES` lines, as the measuring processes print them."""
    read = {name: int(value) for name, value in (line.split() for line in lines)}
    yield from overheads.figures(read["context"], read["total"] - read["free"], read["worked"], read["reserved"])


GROUPS: tuple[Group, ...] = (
    alone(Step("preflight", "the preflight's verdict", 45, _preflight)),
    alone(Step("memory", "CUDA context and free memory beside the planner's overheads", 45, _memory, _replayed_memory)),
    alone(
        Step(
            "device-assert",
            "a device-side assert and the reason that the product gives it",
            30,
            _device_assert,
            lambda _: classified(1, recorded("device-assert")),
        )
    ),
    alone(Step("attention", "FlashAttention beside naive attention", 60, _attention)),
)
