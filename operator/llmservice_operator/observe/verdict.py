"""Inputs of a status beside observations: the service, and decisions about it, among them the plan as status.plan:
rounded, with constant wording, so that it never changes by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from llmservice_api.conditions import ConditionStatus
from llmservice_api.errors import Problem
from llmservice_api.lifecycle import Autoscaling
from llmservice_api.reasons import Reason
from llmservice_planner.plan import NOT_READ, Fit, Line, Plan, Remedy

from llmservice_operator.observe.progress import RolloutDecision

Json = Mapping[str, Any]

_EMPTY: Json = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Subject:
    """The LLMService for its status; it exists even where the spec is invalid."""

    name: str
    namespace: str
    uid: str
    generation: int
    previous: Json
    """The stored status."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the children cannot be as the spec requires, though the spec is valid."""

    reason: Reason
    message: str
    is_final: bool = True
    remedy: str = ""
    """If the message lacks it."""
    evidence: tuple[str, ...] = ()

    def sentence(self) -> str:
        """What happened and what to do, in one line."""
        return f"{self.message} {self.remedy}".strip()


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition that does not depend on pods: Fits, Autoscaled."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decisions about the service."""

    problems: tuple[Problem, ...] = ()
    """Why the spec is not accepted."""
    obstacle: Obstacle | None = None
    paused: bool = False
    is_pending: bool = False
    """A child is not as desired: nothing counts as rolled out, whatever the pods show."""
    replicas: int = 0
    revision: str = ""
    rolling: RolloutDecision = field(default_factory=RolloutDecision)
    selector: str = ""
    gpus: int = 0
    endpoint: Json = field(default_factory=lambda: _EMPTY)
    effective: Json = field(default_factory=lambda: _EMPTY)
    misplaced: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """By pod that failed on another GPU than planned: why the model does not fit there."""
    where_pods_go: str = ""
    """Which labels keep its pods from nodes, and the remedy."""
    fitness: Finding | None = None
    """None: the spec is not accepted, and there is no condition Fits."""
    plan: Json | None = None
    model: Json | None = None
    """The value of status.model."""
    adapters: tuple[str, ...] = ()
    """Names of the desired adapters."""
    autoscaling: Autoscaling | None = None
    """The spec's; None: it has none, or cannot be parsed."""
    autoscaled: Finding | None = None
    """None: there is no condition Autoscaled."""
    routing: Finding | None = None
    """None: there is no condition RoutingReady."""
    idle: bool | None = None
    """Autoscaling and not a user set spec.scaling.replicas to 0."""
    holding_port: int | None = None
    """Port of the activators for the service's requests; None: it always has a replica."""
    held_seconds: int | None = None
    """Seconds that a request would be held, where no replica is to run for lack of requests; None: it is not idle."""
    adapters_digest: str | None = None
    """Digest of their list, which pods report; None without LoRA."""


_TEXT_LIMIT = 1024
_LINES = 64
_REMEDIES = 8
_MISSING = 64
_NO_CHANGE = "No change of the spec that was tried makes it fit."

_VERDICTS: Mapping[str, tuple[ConditionStatus, Reason]] = {
    Fit.FITS: (ConditionStatus.TRUE, Reason.FITS),
    Fit.TIGHT: (ConditionStatus.TRUE, Reason.TIGHT),
    Fit.DOES_NOT_FIT: (ConditionStatus.FALSE, Reason.DOES_NOT_FIT),
    Fit.UNKNOWN: (ConditionStatus.UNKNOWN, Reason.FACTS_MISSING),
}


def document(plan: Plan, facts: str | None = None) -> dict[str, Any]:
    """The value of status.plan; unknown values are absent. `facts` is the hash of the model's facts."""
    per_gpu = _known(
        memoryGiB=_round(plan.memory_gib),
        budgetGiB=_round(plan.budget_gib),
        weightsGiB=_round(plan.weights_gib),
        nonTorchGiB=_round(plan.non_torch_gib),
        activationGiB=_round(plan.activation_gib),
        graphGiB=_round(plan.graph_gib),
        kvCacheGiB=_round(plan.kv_cache_gib),
    )
    return _known(
        verdict=str(plan.verdict),
        reason=_reason(plan),
        facts=facts,
        missing=[item[:_TEXT_LIMIT] for item in plan.missing][:_MISSING] or None,
        gpu=plan.gpu or None,
        gpus=plan.gpus,
        weightsGiB=_round(plan.weights_total_gib),
        kvCacheGiB=_round(plan.kv_cache_total_gib),
        hostMemoryGiB=_round(plan.host_memory_gib),
        kvCacheTokens=plan.kv_cache_tokens,
        maxModelLen=plan.max_model_len,
        requestedMaxModelLen=plan.requested_max_model_len,
        maxConcurrency=_round(plan.max_concurrency),
        recommendedMaxNumSeqs=plan.recommended_max_num_seqs,
        errorBand=_round(plan.error_band, 3),
        perGPU=per_gpu or None,
        explanation=[_line(line) for line in plan.explanation[:_LINES]] or None,
        remedies=[_remedy(remedy) for remedy in plan.remedies[:_REMEDIES]] or None,
    )


def fitness(plan: Json) -> Finding:
    """The condition Fits for a status.plan."""
    status, reason = _VERDICTS[plan["verdict"]]
    if reason is Reason.FACTS_MISSING and plan.get("missing") == [NOT_READ]:
        reason = Reason.CONFIG_TOO_COMPLEX
    parts = [plan["reason"]]
    if reason in (Reason.TIGHT, Reason.DOES_NOT_FIT) and plan.get("remedies"):
        parts.append(_would_do(plan["remedies"]))
    return Finding(status, reason, " ".join(filter(None, parts)))


def _reason(plan: Plan) -> str:
    """Nothing was tried where the cause is not memory."""
    is_tried = plan.verdict in (Fit.TIGHT, Fit.DOES_NOT_FIT) and plan.margin_gib is not None
    if not is_tried or plan.remedies:
        return plan.reason[:_TEXT_LIMIT]
    return f"{plan.reason[: _TEXT_LIMIT - len(_NO_CHANGE) - 1]} {_NO_CHANGE}"


def _would_do(remedies: Sequence[Json]) -> str:
    changes = "; ".join(f"{remedy['change']} ({remedy['verdict']})" for remedy in remedies)
    return f"What would fit: {changes}. status.plan.remedies has them as patches."


def _line(line: Line) -> str:
    figure = "" if line.gib is None else f"{line.gib:.2f} GiB"
    text = f"{line.name}: {' = '.join(filter(None, (figure, line.formula)))}"
    return (f"{text} [{line.source}]" if line.source else text)[:_TEXT_LIMIT]


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return _known(
        change=remedy.change[:_TEXT_LIMIT],
        patch=_patch(remedy),
        gpu=remedy.gpu,
        verdict=str(remedy.verdict),
        maxModelLen=remedy.max_model_len,
        kvCacheTokens=remedy.kv_cache_tokens,
    )


def _patch(remedy: Remedy) -> str | None:
    """A merge patch; another GPU becomes a change of the list of products."""
    fields = dict(remedy.patch)
    if not fields and remedy.gpu is not None:
        fields = {"accelerator.products": [remedy.gpu]}
    if not fields:
        return None
    patch: dict[str, Any] = {}
    for path, value in fields.items():
        place = patch
        *parts, last = ["spec", *path.removeprefix("spec.").split(".")]
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return json.dumps(patch, separators=(",", ":"))


def _round(value: float | None, digits: int = 2) -> float | None:
    """As the API server returns it, where 1.0 is 1 and -0.0 is 0: a record must have one hash."""
    if value is None:
        return None
    rounded = round(value, digits)
    return int(rounded) if rounded.is_integer() else rounded


def _known(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def revision_of(status: Json) -> str:
    """The revision that serves or is being rolled out; the status is written after the children."""
    return str((status.get("rollout") or {}).get("revision") or "")


def is_plan_of_another(status: Json) -> bool:
    """Whether the plan is of a held edit, and everything else of the serving revision."""
    reasons = (c.get("reason") for c in status.get("conditions") or () if c.get("type") == "Ready")
    return next(reasons, None) == Reason.DOES_NOT_FIT


def plan_of(revision: str, status: Json) -> Json | None:
    if revision_of(status) != revision or is_plan_of_another(status):
        return None
    plan: Json | None = status.get("plan")
    return plan
