"""Measure the most valuable first, and write each result at once to DIR/results.jsonl."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import importlib.metadata
import importlib.util
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmservice_runtime.preflight.preflight import vllm_version

from benchmarks.gpu.served import faults, page, plans, results, run, serving, steps, without_vllm
from benchmarks.gpu.served.cases import Machine
from benchmarks.gpu.served.results import MACHINE, Outcome, Result
from benchmarks.gpu.served.server import Place
from benchmarks.gpu.served.steps import Context, Group

GROUPS: tuple[Group, ...] = (
    *without_vllm.GROUPS,
    *serving.GROUPS,
    *faults.GROUPS,
    *plans.GROUPS,
)
"""By value, the most valuable first."""
RESULTS, PAGE, RUN_LOG, SERVERS_LOG = "results.jsonl", "page.md", "run.log", "servers.log"
VARIABLES = ("VLLM_USE_FLASHINFER_SAMPLER", "VLLM_ATTENTION_BACKEND")
"""Of the environment, which change what is measured."""
COMPILED_PARTS = (
    *("_C_stable_libtorch", "_moe_C_stable_libtorch", "_flashmla_C", "_qutlass_C", "cumem_allocator"),
    *("vllm_flash_attn/_vllm_fa2_C", "vllm_flash_attn/_vllm_fa3_C"),
)
"""Libraries of vLLM's wheel for GPUs that kernels, back ends or sleep mode come from."""
PACKAGES = ("torch", "triton", "transformers", "numpy", "numba", "flashinfer-python", "xgrammar")
EXAMPLES = """\
examples:
  # on a machine with one GPU and a Python that has torch and vLLM
  python -m benchmarks.gpu.served --out results --seconds 420

  # every step with tiny models on CPUs; those that need CUDA read a recorded log
  python -m benchmarks.gpu.served --out rehearsal --seconds 1200 --device cpu

  # some steps again, though a run with them is committed
  python -m benchmarks.gpu.served --out again --seconds 300 --only server-start server-batching

  # the steps in their order, with their limits
  python -m benchmarks.gpu.served --list
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.served",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--out", type=Path, metavar="DIR", help="where results, page and logs go; made where it is not")
    made.add_argument("--seconds", type=float, metavar="N", help="for the whole run; what is not reached is a result")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses the steps")
    made.add_argument("--only", nargs="+", metavar="STEP", help="these steps, in their order")
    made.add_argument("--list", action="store_true", help="print the steps and exit")
    made.add_argument(
        "--vllm-version", metavar="X.Y.Z", help="the vLLM that servers are to find; default: the installed one"
    )
    made.add_argument(
        "--committed", type=Path, default=results.COMMITTED, help="runs whose measured steps are left out"
    )
    made.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    made.add_argument("--group", help=argparse.SUPPRESS)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """0 once every step has a result, whatever it is; 2 where nothing can be measured."""
    made = parser()
    options = made.parse_args(argv)
    if options.list:
        for group in GROUPS:
            for step in group.steps:
                print(f"{step.name:<18} {step.seconds:>5.0f} s  {step.title}")
        return 0
    if options.out is None or (options.seconds is None and options.group is None):
        made.error("--out and --seconds are required")
    known = {step.name for group in GROUPS for step in group.steps}
    if unknown := sorted(set(options.only or ()) - known):
        made.error(f"there is no step {', '.join(unknown)}; --list prints them")
    version = options.vllm_version or vllm_version()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.group is not None:
        return _take(options, version or "")
    machine = described(options.device)
    if isinstance(machine, str):
        print(machine, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="served-") as work:
        _run(options, known, machine | {"vllm": version}, Path(work))
    return 0


def _run(options: argparse.Namespace, known: set[str], machine: dict[str, Any], work: Path) -> None:
    file, log = options.out / RESULTS, options.out / RUN_LOG
    if not results.read(file):
        results.append(file, Result(MACHINE, Outcome.MEASURED, 0.0, machine))
    earlier = frozenset(result.step for result in results.read(file))
    committed = frozenset[str]() if options.device == "cpu" else results.measured_steps(results.runs(options.committed))
    left_out = earlier | (known - set(options.only) if options.only else committed)
    run.adopt_orphans()
    signal.signal(signal.SIGTERM, _end_early)

    def take(group: run.Planned, names: Sequence[str], seconds: float) -> run.Ended:
        print(f"{group.name}: {', '.join(names)}; at most {seconds:.0f} s", flush=True)
        began = time.monotonic()
        common = ("--out", str(options.out), "--device", options.device, "--work", str(work))
        version = ("--vllm-version", str(machine["vllm"])) if machine["vllm"] else ()
        child = (sys.executable, "-m", "benchmarks.gpu.served", *common, *version, "--group", group.name)
        ended = run.in_process((*child, "--only", *names), seconds, log)
        for result in results.read(file):
            if result.step in names:
                why = f": {result.why}" if result.outcome is Outcome.FAILED else ""
                print(f"  {result.step}: {result.outcome} in {result.seconds:g} s{why}", flush=True)
        print(f"  {time.monotonic() - began:.0f} s; {ended.why or 'its process has ended'}", flush=True)
        return ended

    groups = [group.planned(steps.patience(options.device == "cpu")) for group in GROUPS]
    run.schedule(groups, left_out, options.seconds, clock=time.monotonic, take=take, file=file)
    (options.out / PAGE).write_text(page.text([results.run_of(file)]), "utf-8")
    print(f"results: {file}; page: {options.out / PAGE}")


def _end_early(*_: object) -> None:
    """SIGTERM: results are on disk already; nothing that was started may hold the GPU."""
    run.end_descendants()
    os._exit(143)


def _take(options: argparse.Namespace, version: str) -> int:
    """The process of one group."""
    group = next(one for one in GROUPS if one.name == options.group)
    machine = results.run_of(options.out / RESULTS).machine
    place = Place(
        options.work,
        options.out / SERVERS_LOG,
        Machine(str(machine.get("product") or ""), float(machine.get("memory_gib") or 0), version),
    )
    asyncio.run(steps.take(group, options.only, Context(place), options.out / RESULTS))
    return 0


def described(device: str) -> dict[str, Any] | str:
    """What the results hold for; a sentence where there is nothing to measure on."""
    if importlib.util.find_spec("torch") is None:
        return "there is no torch in this Python: make engine installs one, or use another Python's"
    common = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "missing": _missing_parts(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "cpus": os.cpu_count(),
        "command": " ".join(("python -m benchmarks.gpu.served", *sys.argv[1:])),
    }
    if device == "cpu":
        return common | {"product": "", "memory_gib": 0.0}
    gpu = _gpu()
    return "torch sees no GPU here; --device cpu rehearses the steps" if gpu is None else common | gpu


def _missing_parts() -> list[str]:
    """Libraries that a smaller wheel leaves out; all of them where there is no vLLM. Nothing of vLLM is imported."""
    spec = importlib.util.find_spec("vllm")
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    return [part for part in COMPILED_PARTS if not any(any(at.glob(f"{part}*.so")) for at in folders)]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


_READ = """
import sys, torch
if not torch.cuda.is_available():
    sys.exit()
free, total = torch.cuda.mem_get_info()
print(torch.cuda.get_device_name(0), total, torch.version.cuda, sep="|")
"""


def _gpu() -> dict[str, Any] | None:
    """Read in another process: this one must not hold a CUDA context while others are measured. None without a GPU."""
    done = subprocess.run((sys.executable, "-c", _READ), capture_output=True, text=True, check=True)
    if not done.stdout.strip():
        return None
    product, total, cuda = done.stdout.strip().splitlines()[-1].split("|")
    asked = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    driver = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    return {"product": product, "memory_gib": round(int(total) / 2**30, 2), "cuda": cuda, "driver": driver}


if __name__ == "__main__":
    sys.exit(main())
