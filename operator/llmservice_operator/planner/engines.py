"""vLLM's generations, as far as memory is concerned: what each profiles, holds back and counts.

The planner plans for the version that the operator is made for. Older ones are here because published start-ups, which
the constants are fitted on, ran on them, and because a service may name an older image.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from llmservice_operator.planner.constants import Constant, Constants
from llmservice_operator.planner.model.architecture import Architecture, Kind
from llmservice_operator.planner.plan import Request

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Engine:
    """One generation."""

    name: str
    is_v1: bool
    default_utilization: float
    """--gpu-memory-utilization where it is not given."""
    sampler: Literal["v0", "v1", "plain", "bare"]
    """How logits are copied while the engine profiles itself: with a sort, without, or not at all."""
    counts_context: bool
    """Whether the CUDA context counts as the engine's own memory."""
    graphs_in_budget: bool
    """Whether CUDA graphs are estimated and taken out of the budget before the KV cache is sized."""
    mla: Literal["latent", "padded", "expanded"]
    """How MLA models keep their cache: compressed, padded to 640 values, or expanded to full heads of 256."""
    swa_groups: bool
    """Whether sliding-window layers keep their window only; before, they were treated as full ones."""
    chunk_above: int | None = None
    """V0: a longer maximum switches chunked prefill on."""
    chunk_tokens: int = 2048
    """V0: tokens of a step with chunked prefill."""
    expert_chunk: int | None = None
    """Tokens that experts work on at a time (VLLM_FUSED_MOE_CHUNK_SIZE); None: all."""
    seqs_large_default: bool = False
    """V1 before 0.8.5: 1,024 sequences by default on every GPU."""
    counts_growth: bool = False
    """Whether only what came after the start counts as memory outside torch."""
    second_runner: Literal["none", "listed", "dense", "all"] = "none"
    """Models that the second model runner takes, which profiles with bare logits (vllm/v1/worker/gpu/model_runner.py,
    _dummy_sampler_run)."""
    second_graphs: bool = False
    """Whether that runner estimates graphs for the budget too."""
    profiles_videos: Literal["no", "with their times", "as they are"] = "no"
    """Whether a video may be what encoders are profiled with, and whether the words for its times counted as tokens of
    it: then as many results were kept."""
    least_capability: tuple[int, int] = (7, 0)
    """Of an NVIDIA GPU, for the project's own images, by its installation guide."""
    knows_methods: bool = False
    """Whether the tables of quantization methods are of it; earlier ones had others."""

    def sampler_bytes(self, constants: Constants) -> Constant:
        """Bytes per sequence and token of the vocabulary while it samples."""
        return {
            "v0": constants.sampler_bytes_v0,
            "v1": constants.sampler_bytes_v1,
            "plain": constants.sampler_bytes_plain,
            "bare": constants.sampler_bytes_bare,
        }[self.sampler]

    def band(self, overheads_gib: float, constants: Constants) -> float:
        """Half the width of the error band in GiB: nine of ten start-ups lie within."""
        if self.counts_context:
            floor, share = constants.band_reserved_gib, constants.band_reserved_share
        else:
            floor = constants.band_gib
            share = constants.band_share if self.sampler in ("plain", "bare") else constants.band_share_old
        return floor.value + share.value * overheads_gib


_V0 = Engine(
    "V0, to 0.2",
    is_v1=False,
    default_utilization=0.9,
    sampler="v0",
    counts_context=False,
    graphs_in_budget=False,
    mla="expanded",
    swa_groups=False,
)
_V0_03 = replace(_V0, name="V0, 0.3 to 0.5.2", counts_context=True)
_V0_053 = replace(_V0_03, name="V0, 0.5.3 to 0.5.5", chunk_above=32768, chunk_tokens=512, expert_chunk=32768)
_V0_06 = replace(_V0_053, name="V0, 0.6", counts_context=False)
_V0_07 = replace(_V0_06, name="V0, 0.7 on", mla="padded", chunk_tokens=2048)
_V1_080 = replace(
    _V0_07,
    name="V1, 0.8.0 to 0.8.4",
    is_v1=True,
    sampler="v1",
    mla="latent",
    chunk_above=None,
    seqs_large_default=True,
)
_V1_085 = replace(_V1_080, name="V1, 0.8.5 to 0.9.1", seqs_large_default=False)
_V1_092 = replace(_V1_085, name="V1, 0.9.2", counts_growth=True)
_V1_010 = replace(_V1_092, name="V1, 0.10 to 0.12", swa_groups=True, profiles_videos="with their times")
# That the budget counts results alone from here on is known from start-ups of 0.11 and early 2026.
_V1_013 = replace(_V1_010, name="V1, 0.13 to 0.18", profiles_videos="as they are")
_V1_019 = replace(_V1_013, name="V1, 0.19 to 0.20", sampler="plain", expert_chunk=None, counts_growth=False)
_V1_021 = replace(
    _V1_019,
    name="V1, 0.21 to 0.22",
    default_utilization=0.92,
    graphs_in_budget=True,
    least_capability=(7, 5),
)
# When the second runner took which models is known from release articles; from 0.24 to 0.31 the steps are approximate.
_V1_023 = replace(_V1_021, name="V1, 0.23 to 0.26", second_runner="listed")
_V1_027 = replace(_V1_021, name="V1, 0.27 to 0.31", second_runner="dense", knows_methods=True)
_V1_032 = replace(_V1_021, name="V1, 0.32 on", second_runner="all", second_graphs=True, knows_methods=True)

_GENERATIONS: tuple[tuple[Version, Engine], ...] = (
    ((0, 0, 0), _V0),
    ((0, 3, 0), _V0_03),
    ((0, 5, 3), _V0_053),
    ((0, 6, 0), _V0_06),
    ((0, 7, 0), _V0_07),
    ((0, 8, 0), _V1_080),
    ((0, 8, 5), _V1_085),
    ((0, 9, 2), _V1_092),
    ((0, 10, 0), _V1_010),
    ((0, 13, 0), _V1_013),
    ((0, 19, 0), _V1_019),
    ((0, 21, 0), _V1_021),
    ((0, 23, 0), _V1_023),
    ((0, 27, 0), _V1_027),
    ((0, 32, 0), _V1_032),
)
CURRENT = _GENERATIONS[-1][1]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_RELEASED: tuple[tuple[tuple[int, int], Version], ...] = (
    # The first release of a month, where it is another generation.
    ((2023, 1), (0, 1, 0)),
    ((2024, 2), (0, 3, 0)),
    ((2024, 7), (0, 5, 3)),
    ((2024, 9), (0, 6, 0)),
    ((2025, 2), (0, 7, 2)),
    ((2025, 4), (0, 8, 3)),
    ((2025, 5), (0, 8, 5)),
    ((2025, 8), (0, 10, 0)),
    ((2026, 2), (0, 16, 0)),
    ((2026, 4), (0, 19, 0)),
    ((2026, 5), (0, 21, 0)),
    ((2026, 6), (0, 23, 0)),
    ((2026, 8), (0, 27, 0)),
    ((2026, 11), (0, 32, 0)),
)


@lru_cache(maxsize=256)
def engine(version: str | None) -> Engine:
    """The generation of a version as people write it: 0.32.0, `0.8.3 (V0)`, `Mar 2026`; the current one for None."""
    text = (version or "").lower()
    found = _version(text)
    if found is None:
        return CURRENT
    says_v0, says_v1 = re.search(r"\bv0\b(?!\.)", text), re.search(r"\bv1\b", text)
    if says_v0 and not says_v1 and found >= (0, 8, 0):
        return _V0_07
    chosen = [made for since, made in _GENERATIONS if since <= found][-1]
    if says_v1 and not chosen.is_v1:
        return next(made for _, made in _GENERATIONS if made.is_v1)
    return chosen


def _version(text: str) -> Version | None:
    number = re.search(r"(?<![\d.])(\d+)\.(\d+)(?:\.(\d+))?", text)
    if number:
        return (int(number[1]), int(number[2]), int(number[3] or 0))
    year = re.search(r"\b(20\d\d)(?:-(\d\d))?", text)
    if year is None:
        return None
    month = int(year[2]) if year[2] else next((i for i, name in enumerate(_MONTHS, 1) if name in text), 12)
    return next((v for since, v in reversed(_RELEASED) if since <= (int(year[1]), month)), None)


_LISTED = frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"})
"""Classes that the second runner took first."""
_FIRST_RUNNER_ONLY = frozenset({"medusa", "suffix", "mlp_speculator"})
"""Speculation that the second runner does not know (vllm/config/vllm.py, _get_v2_model_runner_unsupported_features)."""


def engine_of(request: Request, model: Architecture) -> Engine:
    """The generation as it treats this model."""
    found = engine(request.vllm_version)
    if found.second_runner == "none" or (request.draft is not None and request.draft.method in _FIRST_RUNNER_ONLY):
        return found
    if found.second_runner != "all" and (_is_quantized(request, model) or not _is_dense_text(model)):
        return found
    if found.second_runner == "listed" and model.name not in _LISTED:
        return found
    return replace(found, sampler="bare", graphs_in_budget=found.second_graphs)


def _is_quantized(request: Request, model: Architecture) -> bool:
    is_stated = request.quantization is not None or request.weights in ("fp8", "int8", "int4")
    return is_stated or model.quantization is not None


def _is_dense_text(model: Architecture) -> bool:
    return not model.vision_values and all(
        layer.attention.kind is not Kind.STATE and not layer.feed_forward.experts for layer, _ in model.distinct_layers
    )
