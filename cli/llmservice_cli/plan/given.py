"""What a command line says, read once: values, GPUs and where the model is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmservice_operator.api.errors import Problem
from llmservice_operator.planner.plan import Device

from llmservice_cli.errors import BadInput

from .arguments import Options
from .models import REMOTE, meant
from .options import Reading, Values, read_options, share_out
from .questions import counted, device, taken_as
from .values import NotGiven, Refused, shown


@dataclass(frozen=True, slots=True)
class Given:
    """The options of a command line, each of them valid."""

    values: Values
    devices: tuple[Device, ...] = ()
    """Those that --gpu names."""
    config: str | None = None
    """A path, a folder or `-`."""
    notes: tuple[str, ...] = ()
    model: str | None = None
    """hf://..., s3://..., gs://..., az://... or a folder."""


def given(options: Options) -> Given:
    """The command line; BadInput names every option that is wrong."""
    reading = read_options(options)
    model = None if options.model is None else meant(options.model, reading.notes)
    if options.config is not None and options.model is not None:
        reading.problems.append(
            Problem("--model", "--config already says which model it is.", "Leave one of them out.")
        )
    if [options.file, options.config, options.batch].count("-") > 1:
        reading.problems.append(Problem("-", "standard input can be read once only.", "Name a file for the other."))
    if options.offline and model is not None and model.startswith(REMOTE):
        message = f"{model} is not read with --offline."
        reading.problems.append(Problem("--model", message, "Give its config.json with --config, or a folder."))
    devices = _devices(_names(options.gpu or ()), reading, is_manifest=options.file is not None)
    if reading.problems:
        raise BadInput(reading.problems)
    return Given(reading.found, devices, options.config, tuple(reading.notes), model)


def _names(given: Sequence[str]) -> list[str]:
    """`L4,L40S` is two of them: no label's value has a comma."""
    return [name.strip() for one in given for name in one.split(",")]


def _devices(names: Sequence[str], reading: Reading, *, is_manifest: bool) -> tuple[Device, ...]:
    memory = reading.found.get("gpu_memory_gib")
    found = []
    numbers = set()
    for raw in names:
        try:
            number, name = counted(raw)
            numbers.add(number)
            one = device(name, memory)
            reading.notes += () if one is None else taken_as(name, one)
            found.append(one)
        except Refused as refused:
            reading.problems.append(Problem("--gpu", refused.message, refused.remedy))
        except NotGiven:
            reading.notes.append(f"--gpu {shown(raw)} is taken as not given")
    gpus = numbers.pop() if len(numbers) == 1 else None
    if numbers:
        reading.notes.append("the GPUs are named with different numbers, which are left out: give -tp")
    elif gpus is not None and is_manifest:
        reading.notes.append(f"the manifest, not --gpu, says how many GPUs there are: {gpus} is left out")
    elif gpus is not None:
        share_out(gpus, "--gpu", reading)
    return tuple(one for one in found if one is not None)
