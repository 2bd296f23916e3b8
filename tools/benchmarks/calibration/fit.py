"""Constants that explain the measured start-ups best, without leaving what is known of each by other means.

Maximum a posteriori: residuals of the KV cache in GiB count by their size, not by its square, since some published
records are wrong; each constant is held at what sources and single measurements say of it (`PRIOR`), as firmly as its
uncertainty there. Few constants, so coordinate descent is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from llmservice_planner import weights
from llmservice_planner.batching import batching
from llmservice_planner.constants import Constant, Constants
from llmservice_planner.overheads import Load, ModelRunner, load, model_runner, overheads
from llmservice_planner.plan import GIB, Device, Request

from benchmarks.calibration.earlier import PRIOR, EarlierConstants, constants_of, generation
from benchmarks.calibration.records import Startup

VARIED = (
    "hidden_copies",
    "hidden_copies_v0",
    "sampler_bytes_v0",
    "sampler_bytes_v1",
    "non_torch",
    "non_torch_v0",
    "cuda_context",
    "non_torch_peer",
    "graph_mib",
)
SCALE_GIB = 0.12
"""A residual of this size counts as much as a constant that is off by its uncertainty."""
SHARE = 0.03
"""Larger caches are measured less exactly: their GPU's total memory is known to half a percent or so."""
STEPS = (0.3, 0.1, 0.03, 0.01)


@dataclass(frozen=True)
class Point:
    """A start-up of which everything but the overheads is known."""

    id: str
    model: str
    version: str | None
    request: Request
    load: Load
    runner: ModelRunner
    overhead_gib: float | None
    """Budget less weights and KV cache, as measured."""
    scale: float
    activation_gib: float | None
    non_torch_gib: float | None
    graph_gib: float | None
    """As printed, where they were."""

    @cached_property
    def alike(self) -> tuple[str, bool, bool]:
        """Equal for points that have the same constants (`constants_of`)."""
        request = self.request
        return generation(self.version).name, request.vllm_version is None, request.tensor_parallel_size > 1


def points(records: Iterable[Startup]) -> list[Point]:
    """Those that the constants can be fitted to."""
    made = (point(record) for record in records if not record.is_doubtful)
    return [one for one in made if one is not None]


def point(record: Startup) -> Point | None:
    """None where nothing is known that the constants have to do with."""
    request = record.request
    if request is None or request.device is None or request.architecture is None:
        return None
    runner = model_runner(request, request.architecture)
    counts_graphs = runner.graphs_in_budget and generation(record.version).graphs_in_budget
    printed = record.facts.get
    return Point(
        record.id,
        record.model,
        record.version,
        request,
        load(request, request.architecture, request.device, batching(request)),
        runner,
        overhead_gib=_overhead(record, request, request.device),
        scale=SCALE_GIB + SHARE * max(0.0, record.kv_gib or 0.0),
        # This one includes the graphs.
        activation_gib=None if counts_graphs else printed("activation_gib"),
        non_torch_gib=printed("non_torch_gib"),
        # Before it was estimated for the budget other sizes were captured.
        graph_gib=printed("graph_gib") if counts_graphs else None,
    )


def _overhead(record: Startup, request: Request, device: Device) -> float | None:
    utilization = record.facts.get("gpu_memory_utilization")
    if record.kv_gib is None or utilization is None:
        return None
    measured = record.facts.get("weights_gib")
    weighed = float(measured) if measured is not None else weights.weigh(request).per_gpu / GIB
    return device.memory_gib * float(utilization) - weighed - record.kv_gib


Errors = dict[tuple[str, tuple[float, ...]], float]
"""How far off the planner is, by a point's id and the values of `VARIED`."""


def fit(known: Sequence[Point], start: EarlierConstants = PRIOR, found: Errors | None = None) -> EarlierConstants:
    """The constants for these points. `found` is what fits of other selections from the same start have computed."""
    values = {name: getattr(start, name).value for name in VARIED}
    found = {} if found is None else found
    best = _cost(known, _with(start, values), found)
    for step in STEPS:
        for _ in range(30):
            before = best
            for name in VARIED:
                for sign in (1, -1):
                    changed = values | {name: values[name] + sign * step * getattr(PRIOR, name).uncertainty}
                    cost = _cost(known, _with(start, changed), found)
                    if cost < best - 1e-9:
                        best, values = cost, changed
            if best > before - 1e-6:
                break
    return _with(start, values)


def residuals(one: Point, constants: Constants) -> Iterator[float]:
    """GiB that the planner is off, part by part where they were printed."""
    made = overheads(one.load, one.runner, constants)
    pairs = (
        (made.activation, one.activation_gib),
        (made.non_torch, one.non_torch_gib),
        (made.graphs, one.graph_gib),
        (made.counted, one.overhead_gib),
    )
    yield from (planned / GIB - measured for planned, measured in pairs if measured is not None)


def _cost(known: Sequence[Point], constants: EarlierConstants, found: Errors) -> float:
    if any(getattr(constants, name).value < 0 for name in VARIED):
        return float("inf")
    values = tuple(getattr(constants, name).value for name in VARIED)
    if missing := [one for one in known if (one.id, values) not in found]:
        alike = {one.alike: one for one in missing}
        made = {key: constants_of(constants, one.version, one.request) for key, one in alike.items()}
        for one in missing:
            found[one.id, values] = sum(abs(residual) / one.scale for residual in residuals(one, made[one.alike]))
    errors = sum(found[one.id, values] for one in known)
    return errors + sum(_pull(getattr(constants, name), getattr(PRIOR, name)) for name in VARIED)


def _pull(constant: Constant, prior: Constant) -> float:
    return ((constant.value - prior.value) / prior.uncertainty) ** 2


def _with(constants: EarlierConstants, values: dict[str, float]) -> EarlierConstants:
    return replace(constants, **{name: replace(getattr(constants, name), value=v) for name, v in values.items()})
