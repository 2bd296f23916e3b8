"""What vLLM refuses whatever the memory: combinations that it does not serve, and limits at odds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from llmservice_operator.api.dtypes import LOAD_METHODS
from llmservice_operator.api.errors import Problem
from llmservice_operator.planner.plan import Fit, Plan, Remedy, Request

from llmservice_cli.errors import BadInput

from .options import in_options
from .questions import Label, Question, exceeded_length, version_of

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
    yield from limit_problems(request, label)
    yield from _together(request, label)


def limit_problems(request: Request, label: Label) -> Iterator[Problem]:
    """More sequences in a step than tokens."""
    sequences, tokens = request.max_num_seqs, request.max_num_batched_tokens
    if sequences is not None and tokens is not None and tokens < sequences:
        # vllm/config/scheduler.py, verify_max_model_len
        yield Problem(
            label("max_num_batched_tokens"),
            f"{tokens:,} tokens of a step are fewer than its {sequences:,} sequences, which need one each.",
            f"Give at least {sequences}, or lower {label('max_num_seqs')}.",
        )


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
    from llmservice_operator.planner.compatibility import Combination, verdicts

    fields = {dimension: label(name) for dimension, name in _LABELS.items()}
    for problem in verdicts(Combination(precision(request), request.device.name, fields)):
        yield Problem(problem.field, in_options(problem.message), in_options(problem.remedy))
