"""Cheap checks before a long start, in a process that ends before vLLM starts."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from llmservice_vllm.modules import DISTRIBUTIONS

from llmservice_runtime.bounded_json import Reader, Refused, parse
from llmservice_runtime.contract import (
    DRAFT_ARTIFACT,
    GPU,
    MODEL_ARTIFACT,
    TERMINATION_LIMIT,
    Failure,
    FailureReason,
    Phase,
)
from llmservice_runtime.failures.failures import driver_mismatch
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight import accelerators, cpu_features, model_checks, model_files
from llmservice_runtime.redact import log
from llmservice_runtime.supervisor.processes import Child
from llmservice_runtime.supervisor.tasks import read_all
from llmservice_runtime.supervisor.vllm_process import Flags, is_local, read_flags


def main(options: ServeOptions, args: Sequence[str]) -> int:
    """Print the report as JSON. The exit code is 0 unless the checks themselves crash."""
    flags = replace(read_flags(args, options.expected_version), nodes=options.nodes)
    devices = list[accelerators.Device]()
    failure = next(check(options, flags, devices), None)
    print(reported(failure, accelerators.smallest(devices, flags.gpus)), flush=True)
    return 0


def reported(failure: Failure | None, gpu: GPU | None) -> str:
    """Input of `read_report`: the first failure, and the GPU that was found before it."""
    if failure is not None:
        return replace(failure, gpu=gpu).to_json()
    return json.dumps({} if gpu is None else {"gpu": gpu.to_document()})


def check(options: ServeOptions, flags: Flags, devices: list[accelerators.Device] | None = None) -> Iterator[Failure]:
    """All failures, the cheapest checks first. GPUs that are found are added to `devices`."""
    for failure in _checks(options, flags, [] if devices is None else devices):
        yield replace(failure, phase=Phase.PREFLIGHT)


def _checks(options: ServeOptions, flags: Flags, devices: list[accelerators.Device]) -> Iterator[Failure]:
    version = vllm_version()
    yield from check_version(version, options.expected_version)
    config: model_files.Config = {}
    fetched = {text.partition("=")[0] for text in options.fetch}
    if is_local(flags.model) and MODEL_ARTIFACT not in fetched:
        yield from model_files.check_files(Path(flags.model), needs_weights=flags.load_format != "dummy")
        config = model_files.read_config(Path(flags.model))
    if is_local(flags.draft_model) and DRAFT_ARTIFACT not in fetched:
        yield from model_files.check_files(Path(flags.draft_model), needs_weights=True)
    if not fetched & {MODEL_ARTIFACT, DRAFT_ARTIFACT}:
        # The fetch process checks fetched models once their configuration is present.
        yield from model_checks.of_configuration(flags, None, None, options.weights, options.context_extension)
    if options.accelerator == "cpu":
        log(f"vLLM {version} on CPUs")
        method, bits = cpu_features.declared(config)
        features = cpu_features.read_features()
        yield from cpu_features.check(features, flags.kv_cache_dtype, flags.quantization or method, bits)
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        devices += accelerators.list_devices()
    log(f"vLLM {version}; GPUs: {', '.join(device.name for device in devices) or 'none'}")
    if len(devices) < flags.gpus:
        # Without a suitable driver torch finds no GPU, and warns with the cause.
        text = "\n".join(str(warning.message) for warning in said)
        yield from filter(
            None, [driver_mismatch(text, os.environ.get("CUDA_VERSION", ""), accelerators.driver_version())]
        )
    yield from accelerators.check(devices, flags, flags.quantization or _method(config))


def vllm_version() -> str | None:
    """The installed vLLM's version without importing it; None without vLLM."""
    if importlib.util.find_spec("vllm") is None:
        return None
    for distribution in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of an unknown version"


def check_version(found: str | None, expected: str | None) -> Iterator[Failure]:
    """Flags are rendered for one MAJOR.MINOR."""
    if found is None:
        yield Failure(
            FailureReason.ENGINE_MISSING, "There is no vLLM in this image.", "spec.runtime.image must be a vLLM image."
        )
    elif expected and _series(found) and _series(found) != _series(expected):
        yield Failure(
            FailureReason.VERSION_MISMATCH,
            f"The image holds vLLM {found}, and the flags are for {expected}.",
            f"Set spec.runtime.version: {found.split('+')[0]}, or an image with vLLM {expected} in spec.runtime.image.",
        )


def _series(version: str) -> tuple[str, ...] | None:
    """MAJOR.MINOR; None for a version that is not a release, such as a custom build."""
    match = re.match(r"v?(\d+)\.(\d+)\.\d", version)
    return match.groups() if match else None


def _method(config: model_files.Config) -> str | None:
    quantized = config.get("quantization_config")
    return str(quantized.get("quant_method")) if isinstance(quantized, dict) else None


class Report(NamedTuple):
    """What the preflight found."""

    failure: Failure | None = None
    gpu: GPU | None = None


async def report_of(child: Child, seconds: float, log: Callable[[str], None]) -> Report:
    """What the preflight reported. `seconds` limits its output and its end, each.

    A preflight that crashes or times out is logged and ignored: vLLM checks the same again.
    """
    try:
        output = await asyncio.wait_for(read_all(child.output), seconds)
        ended = await asyncio.wait_for(child.ended, seconds)
    except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
        log(f"preflight: no result within {seconds:g} s; skipped")
        return Report()
    if ended.code != 0:
        log(f"preflight: ended with {ended}; skipped")
    return read_report(output.strip().rpartition("\n")[2])


def read_report(text: str) -> Report:
    """The report in the preflight's last line; empty for any other text."""
    try:
        gpu = GPU.from_document(Reader(parse(text, 4 * TERMINATION_LIMIT)).within("gpu"))
    except Refused:
        gpu = None
    return Report(Failure.from_json(text), gpu)
