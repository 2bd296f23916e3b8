"""Files that make the next start of a server faster: compiled code, and vLLM's process starts.

They are in a claim of the service alone, or in the pod for restarts of the container. They are executed, so that nobody
else may write to the claim. Each pod fills its own folder, `KEY-POD`, where KEY is the revision, image and device
(`identity`). Later starts of any pod use the folder once a server with it has answered a request (marker `served`),
until a start with it fails (marker `failed`). So no start uses incomplete files, and nothing is deleted while a server
has it open.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from llmservice_vllm.modules import DISTRIBUTIONS

from llmservice_runtime.contract import CACHE_DIR, Measured
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.tasks import in_thread

_PACKAGES = (*DISTRIBUTIONS, "torch", "triton", "flashinfer-python")
# Files of the drivers, and fields that identify the CPU; absent ones are skipped.
_NVIDIA = ("driver/nvidia/version", "driver/nvidia/gpus/*/information")
_AMD = "class/kfd/kfd/topology/nodes/*/properties"
_PROCESSOR = ("vendor_id", "model name", "flags", "CPU implementer", "CPU part", "Features")
# Of a GPU: two of the same product count as the same device.
_GPU_LINES = ("Model:", "NVRM version:", "gfx_target_version", "device_id", "Video BIOS:")
_MAX_BYTES = 1 << 20


def identity(revision: str, proc: Path = Path("/proc"), sys_folder: Path = Path("/sys")) -> str:
    """16 hexadecimal digits: part of the folder's name."""
    parts = [f"revision {revision}", f"python {sys.version}", *_packages(), *device(proc, sys_folder)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def build() -> str:
    """16 hexadecimal digits that are equal where Python and the packages are."""
    return hashlib.sha256("\n".join([sys.version, *_packages()]).encode()).hexdigest()[:16]


def _packages() -> Iterator[str]:
    """Each package by the hashes of its files, which pip records: an image tag may get other contents."""
    for name in _PACKAGES:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        recorded = distribution.read_text("RECORD") or ""
        yield f"package {name} {distribution.version} {hashlib.sha256(recorded.encode()).hexdigest()}"


def device(proc: Path, sys_folder: Path) -> list[str]:
    """Lines that identify the CPU and the GPUs, without duplicates."""
    lines = {f"machine {platform.machine()}"}
    for file in (path for pattern in _NVIDIA for path in proc.glob(pattern)):
        lines |= {line for line in _lines(file) if line.startswith(_GPU_LINES)}
    for file in sys_folder.glob(_AMD):
        lines |= {line for line in _lines(file) if line.startswith(_GPU_LINES)}
    lines |= {line for line in _lines(proc / "cpuinfo") if line.startswith(_PROCESSOR)}
    return sorted(lines)


def _lines(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            # The first CPU in /proc/cpuinfo: the others are equal, and may be a thousand.
            return [line.strip() for line in opened.read(_MAX_BYTES).split("\n\n")[0].splitlines()]
    except OSError:
        return []


KEPT = 4
"""Served folders that a claim keeps of each rank: of this revision, the one before, and those of possible rollbacks."""
IN_USE_SECONDS = 24 * 3600
"""Seconds without use after which other folders are deleted."""
LEAST_BYTES = 256 << 20
"""Free space that a new folder needs. Compiled code of most models takes 1 to 200 MB."""
_MARK_SECONDS = 2.0
_NAME = re.compile(r"[0-9a-f]{16}-[a-z0-9.-]{1,253}")
_SERVED, _FAILED, _DRAINED, _STARTING = "served", "failed", "drained", "starting-"
_PROCESSES = "processes"
# Variables with folders for compiled code; the container's values are folders of the pod.
_FOLDERS = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "NUMBA_CACHE_DIR": "numba",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}
_BYTECODE = "PYTHONPYCACHEPREFIX"
# vLLM stores the measured size of the KV cache, and skips the measurement if device, configuration and free memory are
# equal (vllm/v1/worker/startup_plan.py).
_MEASURED = {"VLLM_ENABLE_STARTUP_PLAN": "1"}
Log = Callable[[str], None]


class StartCache:
    """The folder of one server; without one (`folder` None) each start is like the first."""

    def __init__(self, folder: Path | None, log: Log, *, is_claim: bool = False, why_unused: str = "") -> None:
        self._folder, self._log, self._is_claim, self.why_unused = folder, log, is_claim, why_unused
        self._is_reused = folder is not None and (folder / _SERVED).exists()
        self.ended_well = self._is_reused and self._take_drained()
        """Whether the last server with these files, on this node, answered requests until it was stopped."""

    @classmethod
    def open(cls, options: ServeOptions, log: Log) -> StartCache:
        """Find or create the folder of this server. May take as long as the volume does."""
        if not options.start_cache:
            return cls(None, log)
        root, is_claim = Path(options.start_cache), options.start_cache != ServeOptions.start_cache
        try:
            folder = _chosen(root, identity(options.revision_key), socket.gethostname())
            is_new = not (folder / _SERVED).exists()
            folder.mkdir(parents=True, exist_ok=True)
            os.utime(folder)
            _prune(folder, KEPT * options.nodes)
            if is_new and _free_bytes(folder) < LEAST_BYTES:
                remedy = "make spec.startCache.size larger" if is_claim else "the node's disk is nearly full"
                return cls.unused(f"{root} has less than {LEAST_BYTES >> 20} MiB left: {remedy}", log)
            (folder / f"{_STARTING}{socket.gethostname()}").touch()
            cache = cls(folder, log, is_claim=is_claim)
        except (OSError, ValueError) as error:
            remedy = "the volume must be writable for the pod's group (spec.podTemplate.spec.securityContext.fsGroup)"
            why = error.strerror if isinstance(error, OSError) else error
            return cls.unused(f"{root} cannot be used ({why}): {remedy}", log)
        log(f"start cache {folder}: {cache.state}")
        return cache

    @classmethod
    def unused(cls, why: str, log: Log) -> StartCache:
        """A start cache without a folder, with the cause."""
        log(f"start cache: {why}")
        return cls(None, log, why_unused=why)

    @property
    def state(self) -> str:
        """Reused, New, or Unused."""
        if self._folder is None:
            return "Unused"
        return "Reused" if self._is_reused else "New"

    @property
    def processes(self) -> tuple[str, ...]:
        """The record's folder as an argument of the launch; empty without a folder."""
        return () if self._folder is None else (str(self._folder / _PROCESSES),)

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The variables, with folders for compiled code where they set none, or one of the pod.

        Python's bytecode is kept in a claim if the image has none: its file system is read-only.
        """
        if self._folder is None:
            return dict(given)
        own = {name for name in _FOLDERS if given.get(name, CACHE_DIR).startswith(CACHE_DIR)}
        variables = {name: str(self._folder / folder) for name, folder in _FOLDERS.items() if name in own}
        if self._is_claim and _BYTECODE not in given and not _has_bytecode():
            variables[_BYTECODE] = str(self._folder / "bytecode")
        return {**_MEASURED, **given, **variables}

    def reported(self, measured: Measured) -> Measured:
        """`measured` with the state of the claim; unchanged without one."""
        if not (self._is_claim or self.why_unused):
            return measured
        return replace(measured, start_cache=self.state, start_cache_message=self.why_unused or None)

    def mark_served(self) -> None:
        """Mark that a server with these files serves."""
        self._change(lambda folder: (folder / _SERVED).touch())
        self.mark_ended()

    def mark_ended(self) -> None:
        """Mark that this start ended for a reason that its files have no part in."""
        self._change(lambda folder: (folder / f"{_STARTING}{socket.gethostname()}").unlink(missing_ok=True))

    def mark_drained(self) -> None:
        """Mark that this server was stopped, and answered requests until then."""
        self._change(lambda folder: (folder / _DRAINED).write_text(_node()))

    def mark_failed(self) -> None:
        """Exclude these files from other starts, because this one failed."""
        if self._is_reused:
            self._log("the start failed with files of an earlier start: the next one is without them")
        self._change(lambda folder: (folder / _FAILED).touch())

    def _change(self, work: Callable[[Path], object]) -> None:
        """Change the folder in a thread, since a network volume may hang; waits for a moment."""
        folder = self._folder
        if folder is None:
            return

        def change() -> None:
            try:
                work(folder)
            except OSError as error:
                self._log(f"the start cache {folder} cannot be written: {error}")

        thread = threading.Thread(target=change, daemon=True)
        thread.start()
        thread.join(_MARK_SECONDS)

    def _take_drained(self) -> bool:
        """Whether this node's marker exists. It counts for one start: a server that is killed leaves none."""
        assert self._folder is not None
        try:
            node = (self._folder / _DRAINED).read_text()
            (self._folder / _DRAINED).unlink()
        except (FileNotFoundError, UnicodeDecodeError):
            return False
        return node == _node()


def _chosen(root: Path, key: str, pod: str) -> Path:
    """The folder that served last, else the pod's own, empty."""
    own = root / f"{key}-{pod}"
    folders = [each for each in _folders(root) if each.name.startswith(f"{key}-")]
    for folder in sorted(folders, key=_used_at, reverse=True):
        if (folder / f"{_STARTING}{pod}").exists():
            # This pod's container ended during a start with it, before it could mark the failure.
            with contextlib.suppress(OSError):
                (folder / _FAILED).touch()
        if (folder / _SERVED).exists() and not (folder / _FAILED).exists():
            return folder
    if own.exists():
        _delete(own)
    return own


def _folders(root: Path) -> list[Path]:
    if not root.exists():
        return []
    return [each for each in root.iterdir() if _NAME.fullmatch(each.name) and not each.is_symlink()]


def _prune(folder: Path, most: int) -> None:
    """Delete other old folders: those that never served or failed, and all except the `most` last ones that served."""
    others = sorted((each for each in _folders(folder.parent) if each != folder), key=_used_at, reverse=True)
    before, kept = time.time() - IN_USE_SECONDS, 1
    for each in others:
        is_usable = (each / _SERVED).exists() and not (each / _FAILED).exists()
        kept += is_usable
        if _used_at(each) < before and not (is_usable and kept <= most):
            _delete(each)


def _used_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # another pod deletes it
        return 0.0


def _delete(folder: Path) -> None:
    """Delete what can be deleted: files of other users or open ones stay, and the next start retries."""
    shutil.rmtree(folder, ignore_errors=True)


def _node() -> str:
    """Identifies the node's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _has_bytecode() -> bool:
    """Whether the image contains compiled modules of vLLM."""
    found = importlib.util.find_spec("vllm")
    return bool(found and found.origin and Path(importlib.util.cache_from_source(found.origin)).exists())


async def opened(options: ServeOptions, seconds: float, log: Log) -> StartCache:
    """The start cache; one without a folder if the volume does not respond, so that the server starts without it."""
    try:
        return await asyncio.wait_for(in_thread(lambda: StartCache.open(options, log)), seconds)
    except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
        why = f"{options.start_cache} does not answer within {seconds:g} s: look at the volume's driver and server"
        return StartCache.unused(why, log)
