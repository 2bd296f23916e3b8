"""The planner's answer for each known model, in each precision, on each of the usual GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmservice_cli.plan.compare import refusal
from llmservice_planner import gpus, memory
from llmservice_planner.changes import INT4
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Architecture
from llmservice_planner.plan import Device, Fit, Plan, Request
from llmservice_planner.remedies import counts, over

HERE = Path(__file__).parent
MODELS = HERE / "models.json"
SHARED = HERE.parent / "calibration" / "more_models.json"
"""Where the config.json of models is that were also measured."""
GPUS = {
    "NVIDIA-L4": "L4",
    "NVIDIA-A10": "A10",
    "NVIDIA-L40S": "L40S",
    "NVIDIA-A100-SXM4-40GB": "A100 40 GB",
    "NVIDIA-A100-SXM4-80GB": "A100 80 GB",
    "NVIDIA-H100-80GB-HBM3": "H100",
    "NVIDIA-H200": "H200",
    "NVIDIA-B200": "B200",
    "AMD_Instinct_MI300X_OAM": "MI300X",
}
"""Values of the node label, and what people say."""
SHORT, LONG = 4096, 8192
"""Tokens of the requests that are counted. A model is counted as fitting where one of LONG surely fits."""


@dataclass(frozen=True, slots=True)
class Model:
    """A published model."""

    name: str
    billions: float
    """Parameters, as published."""
    source: str
    """Where the numbers of its config.json were read."""
    architecture: Architecture
    is_certain: bool = True
    """False: its sizes are from reports, not from its own files."""


@dataclass(frozen=True, slots=True)
class Size:
    """One model in one precision on one product, with the fewest GPUs of a node that surely suffice."""

    model: Model
    precision: str
    device: Device
    gpus: int | None = None
    """None: more than a node has, or not served."""
    maybe: int | None = None
    """Fewer, with which the margin lies inside the error band: it may start or not."""
    plan: Plan | None = None
    """With these GPUs and requests of LONG tokens (or the model's own length, where that is shorter)."""
    short: Plan | None = None
    """With requests of SHORT tokens."""
    refused: str | None = None
    """Why vLLM does not serve the precision on the product."""


def models() -> tuple[Model, ...]:
    """All of models.json, in its order: by size."""
    shared: dict[str, Any] = json.loads(SHARED.read_text("utf-8"))
    return tuple(
        _model(name, row, row.get("config") or shared[row.get("like", name)])
        for name, row in json.loads(MODELS.read_text("utf-8")).items()
    )


def sizes() -> Iterator[Size]:
    """Of all models, GPU by GPU within each precision."""
    devices = [device for device in map(gpus.device, GPUS) if device is not None]
    for model in models():
        for precision, request in _precisions(model.architecture):
            for device in devices:
                yield _size(model, precision, replace(request, device=device), device)


def _model(name: str, row: dict[str, Any], config: dict[str, Any]) -> Model:
    return Model(name, row["parameters"], row["source"], config_json.read(config), config.get("certain", True))


def _precisions(model: Architecture) -> Iterator[tuple[str, Request]]:
    """As published; where that is 16 bit also converted while it loads, and a checkpoint of another precision."""
    published = Request(model, None)
    if model.quantization is not None:
        yield model.quantization.method, published
        return
    yield "bf16", published
    yield "fp8", replace(published, weights="fp8")
    yield (
        "int4",
        replace(published, architecture=replace(model, quantization=INT4), weights="int4", quantization="awq"),
    )


def _size(model: Model, precision: str, request: Request, device: Device) -> Size:
    longest = model.architecture.max_position_embeddings or LONG
    request = replace(request, max_model_len=min(LONG, longest))
    empty = Size(model, precision, device)
    if (refused := refusal(request)) is not None:
        return replace(empty, refused=refused)
    for count in counts(device):
        split = over(request, count, device)
        if split is None:
            continue
        plan = memory.plan(split)
        if plan.verdict is Fit.FITS:
            short = memory.plan(replace(split, max_model_len=min(SHORT, longest)))
            return replace(empty, gpus=count, plan=plan, short=short)
        if plan.verdict is Fit.TIGHT:
            empty = replace(empty, maybe=empty.maybe or count)
    return empty
