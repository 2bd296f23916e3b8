"""A plan for programs: the keys that scripts rely on, null where something is not known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from llmservice_planner.plan import Fit, Line, Plan, Remedy

from .answers import Answer
from .options import OPTIONS, in_options, label, write
from .questions import CPU, Question

Json = dict[str, Any]

_DIGITS = 4
_FIGURES = {
    name: re.sub("_(.)", lambda found: found[1].upper(), name.replace("_gib", "GiB"))
    for name in (
        *("verdict", "reason", "missing", "gpu", "gpus", "memory_gib", "budget_gib", "weights_gib", "non_torch_gib"),
        *("activation_gib", "graph_gib", "kv_cache_gib", "kv_cache_tokens", "kv_bytes_per_token", "block_size"),
        *("num_blocks", "max_model_len", "requested_max_model_len", "max_concurrency", "recommended_max_num_seqs"),
        *("error_band", "error_band_gib", "margin_gib", "weights_total_gib", "kv_cache_total_gib"),
        "host_memory_gib",
        *("naive_attention_gib", "flash_attention_gib"),
    )
}
"""Fields of a plan by their keys, in this order: weights_gib is weightsGiB."""
_WEIGHTS_AS_OPTION = {"int8": "int8 w8a16", "int4": "int4 w4a16"}
"""spec.precision.weights in the words of --quantization, for what is quantized before it is loaded."""
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", re.ASCII)
_OPTION_OF = {option.spec: option.name for option in OPTIONS.values() if option.spec is not None}


def document(answer: Answer, *, explain: bool = False) -> Json:
    """One plan. Names are only ever added; everything in GiB is of one GPU, unless it says total."""
    question = answer.question
    found = service_of(question) | figures(answer.plan)
    found["remedies"] = [remedy_document(one, is_manifest=question.is_manifest) for one in answer.plan.remedies]
    found["notes"] = list(question.notes)
    if answer.placement is not None:
        found["cluster"] = answer.placement.document()
    if answer.passed_over:
        found["passedOver"] = [
            {"gpu": plan.gpu, "verdict": str(plan.verdict), "reason": plan.reason} for plan in answer.passed_over
        ]
    if explain:
        found["explanation"] = [_line(line) for line in answer.plan.explanation]
    return found


def service_of(question: Question) -> Json:
    """Which LLMService of a manifest it is about; empty without one."""
    return {"service": question.name, "namespace": question.namespace} if question.is_manifest else {}


def figures(plan: Plan) -> Json:
    """Verdict and figures."""
    found: Json = {}
    for name, key in _FIGURES.items():
        found[key] = _plain(getattr(plan, name))
        if name == "gpu":
            found["product"] = product(plan.gpu)
    return found


def product(gpu: str | None) -> str | None:
    """The value of the node label that names the GPU; None for CPUs, and where only the memory is known."""
    return gpu if gpu is not None and gpu != CPU and _LABEL_VALUE.fullmatch(gpu) else None


def words_of(remedy: Remedy, *, is_manifest: bool) -> str:
    """A change by the names that its user has: fields of the spec, or options."""
    return remedy.change if is_manifest else in_options(remedy.change)


def remedy_document(remedy: Remedy, *, is_manifest: bool) -> Json:
    """A change: in words, as a patch of the manifest, and as options of this command."""
    return {
        "change": words_of(remedy, is_manifest=is_manifest),
        "patch": patch(remedy),
        "options": options_of(remedy),
        "gpu": remedy.gpu,
        "verdict": str(remedy.verdict),
        "maxModelLen": remedy.max_model_len,
        "kvCacheTokens": remedy.kv_cache_tokens,
    }


def patch(remedy: Remedy) -> Json:
    """What to merge into the manifest."""
    result: Json = {}
    for path, value in _changes(remedy):
        write(result, path, value)
    return result


def options_of(remedy: Remedy) -> Json:
    """The same under the options' names; fields that no option has are left out."""
    found: Json = {"gpu": remedy.gpu} if remedy.gpu is not None else {}
    for path, value in _changes(remedy):
        if path == "precision.weights":
            found["quantization"] = _WEIGHTS_AS_OPTION.get(str(value), value)
        elif path in _OPTION_OF:
            found[_OPTION_OF[path]] = value
    return found


def flags_of(options: Mapping[str, Any]) -> str:
    """Options as they are typed."""
    words = []
    for name, value in options.items():
        flag = label(name)
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words.append(f"{flag} '{value}'" if " " in str(value) else f"{flag} {value}")
    return " ".join(words)


def _changes(remedy: Remedy) -> list[tuple[str, Any]]:
    changes = [(path.removeprefix("spec."), value) for path, value in remedy.patch]
    if remedy.gpu is not None and not any(path == "accelerator.products" for path, _ in changes):
        changes.append(("accelerator.products", [remedy.gpu]))
    return changes


def _line(line: Line) -> Json:
    return {"name": line.name, "gib": _rounded(line.gib), "formula": line.formula, "source": line.source}


def _plain(value: Any) -> Any:
    """For JSON: rounded, null for what is no number."""
    if isinstance(value, float):
        return _rounded(value)
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Fit) else value


def _rounded(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else round(value, _DIGITS)
