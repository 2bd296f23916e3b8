"""What a command line says, read once: values, GPUs and where the model is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from llmservice_operator.planner.plan import Device

from llmservice_cli.errors import BadInput, Wrong

from .options import Reading, Values, read_options
from .questions import device
from .values import Refused


@dataclass(frozen=True, slots=True)
class Given:
    """Options, with what is wrong already told."""

    values: Values
    devices: tuple[Device, ...] = ()
    """Those that --gpu names."""
    config: str | None = None
    """A path, a folder or `-`."""
    model: str | None = None
    """hf://..., s3://... or a folder."""


def given(options: argparse.Namespace) -> Given:
    """The command line; BadInput names every option that is wrong."""
    reading = read_options(options)
    if options.config is not None and options.model is not None:
        reading.wrongs.append(Wrong("--model", "--config already says which model it is.", "Leave one of them out."))
    if [options.file, options.config, options.batch].count("-") > 1:
        reading.wrongs.append(Wrong("-", "standard input can be read once only.", "Name a file for the other."))
    devices = _devices(options.gpu or (), reading)
    if reading.wrongs:
        raise BadInput(reading.wrongs)
    return Given(reading.found, devices, options.config, options.model)


def _devices(names: Sequence[str], reading: Reading) -> tuple[Device, ...]:
    memory = reading.found.get("gpu_memory_gib")
    found = []
    for name in names:
        try:
            found.append(device(name, memory))
        except Refused as refused:
            reading.wrongs.append(Wrong("--gpu", refused.message, refused.remedy))
    return tuple(one for one in found if one is not None)
