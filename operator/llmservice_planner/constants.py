"""Numbers that are not in any source code: fitted to measured starts, with unit, source and uncertainty.

`python -m benchmarks.calibration` fits them and writes docs/reference/planner-accuracy.md, which also has each model's
error when it is left out of the fit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Constant:
    """A number with its uncertainty."""

    value: float
    unit: str
    uncertainty: float
    """In the same unit: nine of ten measured starts lie within."""
    source: str


@dataclass(frozen=True, slots=True)
class Constants:
    """A set of constants; the calibration creates others, each without one model."""

    hidden_copies: Constant = Constant(
        3.0,
        "values per hidden unit and token",
        0.4,
        "Beside the MLP's buffers a layer holds the residual, its normalised copy and its own result. Slope of two "
        "start-ups that differ in their length only (vllm#10517, 8B at 20,000 and 29,000 tokens): 2.98.",
    )
    sampler_bytes_plain: Constant = Constant(
        14.0,
        "bytes per sequence and token of the vocabulary",
        2.0,
        "vllm/v1/sample/sampler.py and ops/topk_topp_sampler.py: logits in 16 bit (2) and 32 bit (4), probabilities "
        "(4) and noise (4); nothing is sorted. Measured with a 7B on an L4: 14.0.",
    )
    sampler_bytes_bare: Constant = Constant(
        2.0,
        "bytes per sequence and token of the vocabulary",
        2.0,
        "vllm/v1/worker/gpu/sample/sampler.py: the dummy step asks for no sampling parameters, so that logits stay as "
        "they are, in 16 bit. A 0.5B that prints its peak: 2.",
    )
    non_torch: Constant = Constant(
        0.30,
        "GiB",
        0.15,
        "Kernels, cuBLAS and attention workspaces that are loaded while the engine profiles itself, on one GPU.",
    )
    non_torch_peer: Constant = Constant(
        0.25,
        "GiB per further GPU",
        0.08,
        "Buffers for exchange with each further rank of a tensor-parallel group: NCCL's and custom all-reduce's. "
        "0.28 on 8 x A100, 0.3 on 8 x H100, 0.27 on 16 x H20; next to nothing on cards without fast links.",
    )
    graph_mib: Constant = Constant(
        0.35,
        "MiB per layer and captured size",
        0.12,
        "CUDA graphs hold the launches of every layer once for each captured batch size. Start-ups that print their "
        "estimate or use: 0.26 to 0.6 MiB.",
    )
    free_at_start: Constant = Constant(
        0.40,
        "GiB",
        0.15,
        "What driver and CUDA context take of a GPU before the engine looks at it: it refuses to start where its share "
        "of all memory is more than what is free (vllm/v1/worker/utils.py, request_memory). Contexts take 0.4 to 0.5 "
        "on data-centre cards and less on others; an A5000 served with 0.56 left, a 4090 with 0.71.",
    )
    band_gib: Constant = Constant(
        0.10, "GiB per GPU", 0.0, "Floor of the error band: totals that drivers report of one product differ so much."
    )
    band_share: Constant = Constant(
        0.30,
        "share of the overheads",
        0.0,
        "The error band as far as it grows with activation, non-torch and graph memory: nine of ten start-ups of "
        "models that had no part in the fit, on engines from 0.19 on.",
    )

    def named(self) -> dict[str, Constant]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


TAKEN_OF_UNIFIED = Constant(
    0.129,
    "share of the memory",
    0.020,
    "What the system has of a memory that GPU and node share, when the engine starts: 101 to 106 of 121.7 GiB are free "
    "on a GB10 after its boot (three reports), and 0.85 of it serves.",
)
"""Not fitted: it depends on the node and not on the engine."""

PRIOR = Constants()
"""Values from sources and single measurements; the fit stays near them."""

FITTED: dict[str, float] = {
    "hidden_copies": 3.29,
    "non_torch": 0.36,
    "non_torch_peer": 0.25,
    "graph_mib": 0.38,
}
"""Values of the last calibration."""

CONSTANTS = replace(PRIOR, **{name: replace(PRIOR.named()[name], value=value) for name, value in FITTED.items()})
