"""What is answered: the plan of the first acceptable GPU that fits, with what would make it fit where none does; what
vLLM refuses whatever the memory; and the exit codes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from llmservice_api.dtypes import LOAD_METHODS
from llmservice_api.errors import Problem
from llmservice_planner import gpus, host, memory
from llmservice_planner.plan import Device, Fit, Plan, Remedy, Request
from llmservice_planner.room import profile_of

from llmservice_cli.errors import BadInput, ExitCode, print_problems

from .arguments import Options
from .options import in_options
from .questions import Given, Label, Question, exceeded_length, version_of

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
    from llmservice_planner import remedies  # and with it all of the spec's models

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
    plan = host.within_limit(memory.plan(request), question.memory_limit_gib)
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
    if device is None or device.is_cpu or not (note := gpus.note(plan.gpus, device.name)):
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


ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""The variable with which vLLM takes requests that are longer than the model was made for."""
_LENGTH = "spec.batching.maxModelLen"
_LABELS = {
    "accelerator": "gpu",
    "capability": "gpu",
    "weights": "quantization",
    "method": "quantization",
    "dtype": "dtype",
    "kvCache": "kv_cache_dtype",
}
"""The option that says a dimension of the compatibility matrix."""


def refused(request: Request, label: Label) -> Iterator[Problem]:
    """By the rules that the operator has for every version it knows."""
    sequences, tokens = request.max_num_seqs, request.max_num_batched_tokens
    if sequences is not None and tokens is not None and tokens < sequences:
        # vllm/config/scheduler.py, verify_max_model_len
        yield Problem(
            label("max_num_batched_tokens"),
            f"{tokens:,} tokens of a step are fewer than its {sequences:,} sequences, which need one each.",
            f"Give at least {sequences}, or lower {label('max_num_seqs')}.",
        )
    yield from _together(request, label)


def only_served(question: Question, label: Label, *, is_grid: bool) -> Question:
    """The question with the GPUs on which vLLM serves what is asked for; BadInput where there is none.

    A grid shows by itself what is not served where, so that its limits alone can be wrong.
    """
    if is_grid:
        if limits := list(refused(replace(question.request, device=None), label)):
            raise BadInput(limits)
        return question
    problems = [(request.device, list(refused(request, label))) for request in question.requests]
    served = tuple(device for device, found in problems if not found and device is not None)
    if all(found for _, found in problems):
        raise BadInput(dict.fromkeys(problem for _, found in problems for problem in found))
    left_out = tuple(f"{device.name} is left out: {found[0].message}" for device, found in problems if found and device)
    return replace(question, devices=served, notes=(*question.notes, *left_out))


def noted(question: Question, label: Label) -> Question:
    """The question with a note of what vLLM refuses in that version: what was measured once ran all the same."""
    found = dict.fromkeys(problem for request in question.requests for problem in refused(request, label))
    notes = tuple(f"vLLM {version_of(question.request)} refuses it: {problem}" for problem in found)
    return replace(question, notes=(*question.notes, *notes))


def within_model(request: Request, plan: Plan) -> Plan:
    """The plan, which does not fit where a request may be longer than the model was made for."""
    longest = exceeded_length(request)
    if longest is None or plan.verdict is Fit.UNKNOWN:
        return plan
    reason = (
        f"the model was made for {longest:,} tokens: vLLM refuses {request.max_model_len:,} unless its positions "
        f"are rescaled (spec.contextExtension) or {ALLOW_LONG}=1 is set."
    )
    reason = f"{plan.reason} And {reason}" if plan.verdict is Fit.DOES_NOT_FIT else f"T{reason[1:]}"
    most = None if plan.max_model_len is None else min(plan.max_model_len, longest)
    return replace(plan, verdict=Fit.DOES_NOT_FIT, reason=reason, max_model_len=most, remedies=())


def of_the_models_length(request: Request) -> Request | None:
    """The request with the longest length that the model was made for; None where it is not longer."""
    longest = exceeded_length(request)
    return None if longest is None else replace(request, max_model_len=longest)


def length_as_remedy(request: Request, plan: Plan) -> Remedy:
    """The length of a request as a change, with what comes of it."""
    change = f"set {_LENGTH} to {request.max_model_len}"
    return Remedy.of(change, ((_LENGTH.removeprefix("spec."), request.max_model_len),), plan)


def both(first: Remedy, then: Remedy) -> Remedy:
    """Two changes, of which the second was planned with the first; one where it is a length, too."""
    if dict(first.patch).keys() & dict(then.patch).keys():
        return then
    return replace(then, change=f"{first.change}, and {then.change}", patch=(*first.patch, *then.patch))


def precision(request: Request) -> Mapping[str, str]:
    """What the compatibility matrix asks of types and of the GPU, as far as a request says it."""
    device = request.device
    values: dict[str, str | None] = {
        "weights": request.weights,
        "method": request.quantization or LOAD_METHODS.get(request.weights),
        "dtype": None if request.dtype == "auto" else request.dtype,
        "kvCache": request.kv_cache_dtype,
    }
    if device is not None:
        values["accelerator"] = device.accelerator
        values["capability"] = None if device.capability is None else "{}.{}".format(*device.capability)
    return {name: value for name, value in values.items() if value is not None}


def _together(request: Request, label: Label) -> Iterator[Problem]:
    """By the compatibility matrix. It brings all of the spec's models, so it is asked only where there is something to
    ask."""
    stated = (request.quantization, request.weights, request.kv_cache_dtype, request.dtype)
    if all(value in (None, "auto") for value in stated) or request.device is None:
        return
    from llmservice_planner.compatibility import Combination, verdicts

    fields = {dimension: label(name) for dimension, name in _LABELS.items()}
    for problem in verdicts(Combination(precision(request), request.device.name, fields)):
        yield Problem(problem.field, in_options(problem.message), in_options(problem.remedy))


_WORST_FIRST = (ExitCode.BAD_INPUT, ExitCode.DOES_NOT_FIT, ExitCode.UNKNOWN, ExitCode.DONE)


@dataclass(frozen=True, slots=True)
class Ending:
    """The exit code of a verdict, by the two options that change it."""

    is_strict: bool = False
    """Tight counts as a no."""
    allows_unknown: bool = False
    """Unknown counts as a yes."""

    @classmethod
    def by(cls, options: Options) -> Ending:
        return cls(options.strict, options.allow_unknown)

    def code(self, verdict: Fit) -> ExitCode:
        codes = {
            Fit.FITS: ExitCode.DONE,
            Fit.TIGHT: ExitCode.DOES_NOT_FIT if self.is_strict else ExitCode.DONE,
            Fit.DOES_NOT_FIT: ExitCode.DOES_NOT_FIT,
            Fit.UNKNOWN: ExitCode.DONE if self.allows_unknown else ExitCode.UNKNOWN,
        }
        return codes[verdict]

    def best(self, verdicts: Iterable[Fit]) -> ExitCode:
        """Of alternatives, of which one is enough; a no where there are none."""
        found = {self.code(verdict) for verdict in verdicts}
        return next((code for code in reversed(_WORST_FIRST) if code in found), ExitCode.DOES_NOT_FIT)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """Of several plans, which all count: bad input before a no, and a no before what is not known."""
    found = set(codes)
    return next((code for code in _WORST_FIRST if code in found), ExitCode.DONE)


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions, and the problems of LLMServices that cannot be planned for."""

    given: Given
    questions: Sequence[Question]
    problems: Sequence[Problem] = ()
    is_list: bool = False
    """Of several LLMServices, even where one is left."""

    def ended(self, code: ExitCode) -> ExitCode:
        """Print the problems after the answers; the worst counts."""
        print_problems(self.problems)
        return worst((code, ExitCode.BAD_INPUT)) if self.problems else code
