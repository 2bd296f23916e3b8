"""What is answered: the plan of the first acceptable GPU that fits, with what would make it fit where none does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from llmservice_operator.planner import gpus, host, memory, node_size
from llmservice_operator.planner.plan import Device, Fit, Plan, Request
from llmservice_operator.planner.room import profile_of

from .questions import Question
from .refusals import both, length_as_remedy, of_the_models_length, within_model

if TYPE_CHECKING:
    from .placement import Placement

USUAL_GPUS = (
    *("Tesla-T4", "NVIDIA-L4", "NVIDIA-A10G", "NVIDIA-GeForce-RTX-4090", "NVIDIA-L40S", "NVIDIA-A100-SXM4-40GB"),
    *("NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "NVIDIA-B200", "AMD_Instinct_MI300X_OAM"),
)
"""What is compared, and what is proposed, where nobody says which GPUs there are."""
_BEST_FIRST = (Fit.FITS, Fit.TIGHT, Fit.UNKNOWN, Fit.DOES_NOT_FIT)


@dataclass(frozen=True, slots=True)
class Answer:
    question: Question
    request: Request
    """The one that the plan is of."""
    plan: Plan
    passed_over: tuple[Plan, ...] = ()
    """Of acceptable GPUs that the manifest prefers, and that do not fit."""
    placement: Placement | None = None
    """Where it would run, where a cluster is asked."""


def answer(question: Question) -> Answer:
    """Plan for every acceptable GPU until one fits; where none does, for the one that comes nearest, as the operator
    picks from a cluster's."""
    tried: list[tuple[Request, Plan]] = []
    for request in question.requests:
        tried.append((request, plan_of(question, request)))
        if tried[-1][1].verdict is Fit.FITS:
            break
    best = min(range(len(tried)), key=lambda i: _rank(tried[i][1]))
    request, plan = tried[best]
    if plan.verdict in (Fit.DOES_NOT_FIT, Fit.TIGHT) and not plan.remedies:
        plan = with_remedies(question, request, plan)
    return Answer(
        question, request, _on_a_node(request, honest(question, plan)), tuple(plan for _, plan in tried[:best])
    )


def with_remedies(question: Question, request: Request, plan: Plan) -> Plan:
    """What helps. Of a request that is too long for the model, nothing does without a shorter one."""
    from llmservice_operator.planner import remedies  # and with it all of the spec's models

    plan_for = partial(plan_of, question)

    def helped(asked: Request, found: Plan) -> Plan:
        others = _others(question, asked)
        return remedies.with_remedies(asked, found, others, plan_for=plan_for, accepts=question.accepts)

    shorter = None if question.allows_long else of_the_models_length(request)
    if shorter is None:
        return helped(request, plan)
    found = plan_for(shorter)
    change = length_as_remedy(shorter, found)
    if found.verdict is Fit.FITS:
        return replace(plan, remedies=(change,))
    return replace(plan, remedies=tuple(both(change, one) for one in helped(shorter, found).remedies))


def _rank(plan: Plan) -> tuple[int, float]:
    """The best first: by the verdict, and of those that do not fit by what is missing; last, where it is not memory."""
    missing = math.inf if plan.margin_gib is None else -plan.margin_gib
    short = missing if plan.verdict is Fit.DOES_NOT_FIT else 0.0
    return _BEST_FIRST.index(plan.verdict), short


def plan_of(question: Question, request: Request) -> Plan:
    """The plan of one GPU, within the container's memory on CPUs, and within the length that the model was made for."""
    plan = host.within(memory.plan(request), question.memory_limit_gib)
    return plan if question.allows_long else within_model(request, plan)


@lru_cache(maxsize=1)
def usual_devices() -> tuple[Device, ...]:
    """Those of the catalogue that most clusters have some of."""
    found = (gpus.device(name) for name in USUAL_GPUS)
    return tuple(device for device in found if device is not None)


def _others(question: Question, request: Request) -> Sequence[Device]:
    """GPUs to propose: the question's own, then the usual ones."""
    if request.device is None or request.device.is_cpu:
        return ()
    service = question.service
    if service is not None and profile_of(service.spec.accelerator.resource_name or "") is not None:
        return ()  # whatever the product, the resource has slices of one size
    known = (*question.devices, *usual_devices())
    return [device for device in known if device.name != request.device.name]


def _on_a_node(request: Request, plan: Plan) -> Plan:
    """The plan, with what nobody knows who does not see the nodes."""
    device = request.device
    if device is None or device.is_cpu or not (note := node_size.note(plan.gpus, device.name)):
        return plan
    return replace(plan, reason=f"{plan.reason} {note}")


def honest(question: Question, plan: Plan) -> Plan:
    """An Unknown says what nobody gave, and why it could not be read."""
    if plan.verdict is not Fit.UNKNOWN or not (question.missing or question.why_missing):
        return plan
    why = question.why_missing or f"The model's configuration does not say: {', '.join(question.missing)}."
    no_gpu = "a GPU and its memory"
    missing = (*question.missing, *((no_gpu,) if no_gpu in plan.missing else ()))
    return replace(plan, missing=missing, reason=why)
