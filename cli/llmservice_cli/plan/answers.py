"""What is answered: that vLLM refuses what is asked, or the plan of the first acceptable GPU that fits, with what would
make it fit where none does and its room in a cluster; the exit code; and all of that as JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any

from llmservice_api.dtypes import LOAD_METHODS
from llmservice_api.errors import Problem
from llmservice_planner import gpus, host, memory, remedies
from llmservice_planner.checks import Combination, verdicts
from llmservice_planner.plan import Device, Fit, Line, Plan, Remedy, Request
from llmservice_planner.requests import limit_gib
from llmservice_planner.room import Admitted, profile_of

from llmservice_cli.errors import BadInput, ExitCode
from llmservice_cli.plan import OPTION_OF, Options, in_options

from .questions import ALLOW_LONG, Label, Question, exceeded_length, version_of, write
from .values import CPU

Json = dict[str, Any]

USUAL_GPUS = (
    *("Tesla-T4", "NVIDIA-L4", "NVIDIA-A10G", "NVIDIA-GeForce-RTX-4090", "NVIDIA-L40S", "NVIDIA-A100-SXM4-40GB"),
    *("NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "NVIDIA-B200", "AMD_Instinct_MI300X_OAM"),
)
"""What is compared, and what is proposed, where nobody says which GPUs there are."""
_BEST_FIRST = (Fit.FITS, Fit.TIGHT, Fit.UNKNOWN, Fit.DOES_NOT_FIT)


MOST_NODES = 500
"""That an answer lists."""
MOST_LINES = 20
"""That a screen lists."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node that has accelerators of the kind; on CPUs, any node. Programs get it under these names."""

    name: str
    product: str | None
    accelerators: int
    free: int
    replicas: int
    """For how many more there is room; of replicas over several nodes, for how many of their pods."""
    reason: str | None = None
    """Why there is none, as a clause."""
    domain: str | None = None
    """With spec.parallelism.topologyKey: its value of that label."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Room in the cluster for one service."""

    product: str | None
    """That the pods would be bound to or prefer, or that the plan is of."""
    resource: str | None
    nodes: tuple[NodePlace, ...] = ()
    """Those with the most room first."""
    asked: int = 1
    """Replicas that the spec asks for."""
    is_planned: bool = True
    """The plan does not rule it out."""
    quota: Admitted | None = None
    reason: str | None = None
    """Why there is no room, as a sentence."""
    unknown: str | None = None
    """Why it is not known what is free, as a clause."""
    is_required: bool = True
    """The pods go to nodes with the product only."""
    size: int = 1
    """Nodes of one replica."""
    topology_key: str | None = None
    """The label whose value the nodes of a replica share."""
    domains: tuple[tuple[str, int], ...] = ()
    """Replicas over several nodes, by that value; "" without a label."""

    @property
    def replicas(self) -> int | None:
        """For how many there is room now; None: not known."""
        if self.unknown is not None:
            return None
        return self._on_nodes if self.quota is None else min(self._on_nodes, self.quota.replicas)

    @property
    def _on_nodes(self) -> int:
        if self.size > 1:
            return sum(replicas for _, replicas in self.domains)
        return sum(node.replicas for node in self.nodes)

    @property
    def lacks_room(self) -> bool:
        """A plan that fits, and no place for it now."""
        return self.is_planned and self.replicas == 0

    def document(self) -> dict[str, Any]:
        """For programs."""
        quota = self.quota and {"name": self.quota.quota, "key": self.quota.key, "replicas": self.quota.replicas}
        return {
            "fitsNow": None if self.replicas is None else self.is_planned and self.replicas > 0,
            "product": self.product,
            "resource": self.resource,
            "replicas": self.replicas,
            "replicasAsked": self.asked,
            "nodes": [asdict(node) for node in self.nodes[:MOST_NODES]],
            "nodesLeftOut": max(0, len(self.nodes) - MOST_NODES),
            "nodesOfReplica": self.size,
            "quota": quota,
            "reason": self.unknown or self.reason,
        }

    def lines(self) -> Iterator[str]:
        """For people: the sum, why it is no more, and the nodes."""
        of_choice = f" on {self.product}" if self.is_required else f" ({self.product} is preferred)"
        on = of_choice if self.product else ""
        if self.unknown is not None:
            yield f"what is free is not known: {self.unknown}"
        else:
            asked = "" if self.asked <= 1 else f"; {self.asked} are asked for"
            count = self.replicas
            over = f" over {self.size} nodes" if self.size > 1 else ""
            yield f"room for {count or 'no'} replica{'' if count == 1 else 's'}{over}{on}{asked}"
        if self.topology_key is not None:
            for domain, replicas in self.domains[:MOST_LINES]:
                free = ", ".join(node.name for node in self.nodes if node.domain == domain and node.replicas)
                yield f"{self.topology_key} {domain}: room for {replicas or 'no replica'}{free and f', on {free}'}"
        if self.quota is not None and self.quota.replicas < max(1, self._on_nodes):
            yield f"the ResourceQuota {self.quota.quota} admits {self.quota.replicas} ({self.quota.key})"
        if self.reason is not None:
            yield self.reason
        for node in self.nodes[:MOST_LINES]:
            having = (
                f" {node.free} of {node.accelerators} {node.product or 'unnamed GPUs'} free," if self.resource else ""
            )
            pods = " of its pods" if self.size > 1 else ""
            room = f"room for {node.replicas}{pods}" if node.replicas else f"no room: {node.reason}"
            yield f"node {node.name}:{having} {room}"
        if len(self.nodes) > MOST_LINES:
            yield f"and {len(self.nodes) - MOST_LINES} more nodes (-o json lists them)"


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
    plan = honest(question, with_remedies(question, request, plan))
    if request.device is not None and not request.device.is_cpu and (note := gpus.note(plan.gpus, request.device.name)):
        plan = replace(plan, reason=f"{plan.reason} {note}")  # nobody knows the nodes
    return Answer(question, request, plan, tuple(plan for _, plan in tried[:best]))


def with_remedies(question: Question, request: Request, plan: Plan) -> Plan:
    """With what helps where it is not sure to fit. Of a request that is too long for the model, nothing does without a
    shorter one."""
    if plan.verdict not in (Fit.DOES_NOT_FIT, Fit.TIGHT) or plan.remedies:
        return plan
    plan_for, others = partial(plan_of, question), _others(question, request)
    helped = partial(remedies.with_remedies, others=others, plan_for=plan_for, accepts=question.accepts)
    longest = None if question.allows_long else exceeded_length(request)
    if longest is None:
        return helped(request, plan)
    shorter = replace(request, max_model_len=longest)
    found = plan_for(shorter)
    change = Remedy.of(f"set spec.{_LENGTH} to {longest}", ((_LENGTH, longest),), found)
    if found.verdict is Fit.FITS:
        return replace(plan, remedies=(change,))
    return replace(plan, remedies=tuple(_both(change, one) for one in helped(shorter, found).remedies))


def _both(first: Remedy, then: Remedy) -> Remedy:
    """Two changes, of which the second was planned with the first; one where it is a length, too."""
    if dict(first.patch).keys() & dict(then.patch).keys():
        return then
    return replace(then, change=f"{first.change}, and {then.change}", patch=(*first.patch, *then.patch))


def _rank(plan: Plan) -> tuple[int, float]:
    """The best first: by the verdict, and of those that do not fit by what is missing; last, where it is not memory."""
    missing = math.inf if plan.margin_gib is None else -plan.margin_gib
    short = missing if plan.verdict is Fit.DOES_NOT_FIT else 0.0
    return _BEST_FIRST.index(plan.verdict), short


def plan_of(question: Question, request: Request) -> Plan:
    """The plan of one GPU, within the container's memory on CPUs, and within the length that the model was made for."""
    plan = host.within_limit(memory.plan(request), limit_gib(question.service.spec))
    longest = None if question.allows_long else exceeded_length(request)
    if longest is None or plan.verdict is Fit.UNKNOWN:
        return plan
    reason = (
        f"the model was made for {longest:,} tokens: vLLM refuses {request.max_model_len:,} unless its positions "
        f"are rescaled (spec.contextExtension) or {ALLOW_LONG}=1 is set."
    )
    reason = f"{plan.reason} And {reason}" if plan.verdict is Fit.DOES_NOT_FIT else f"T{reason[1:]}"
    most = None if plan.max_model_len is None else min(plan.max_model_len, longest)
    return replace(plan, verdict=Fit.DOES_NOT_FIT, reason=reason, max_model_len=most, remedies=())


@lru_cache(maxsize=1)
def usual_devices() -> tuple[Device, ...]:
    """Those of the catalogue that most clusters have some of."""
    return tuple(filter(None, map(gpus.device, USUAL_GPUS)))


def _others(question: Question, request: Request) -> Sequence[Device]:
    """GPUs to propose: the question's own, then the usual ones."""
    if request.device is None or request.device.is_cpu:
        return ()
    if profile_of(question.service.spec.accelerator.resource_name or "") is not None:
        return ()  # whatever the product, the resource has slices of one size
    known = (*question.devices, *usual_devices())
    return [device for device in known if device.name != request.device.name]


def honest(question: Question, plan: Plan) -> Plan:
    """An Unknown says what nobody gave, and why it could not be read."""
    if plan.verdict is not Fit.UNKNOWN or not (question.missing or question.why_missing):
        return plan
    why = question.why_missing or f"The model's configuration does not say: {', '.join(question.missing)}."
    no_gpu = "a GPU and its memory"
    missing = (*question.missing, *((no_gpu,) if no_gpu in plan.missing else ()))
    return replace(plan, missing=missing, reason=why)


_LENGTH = "batching.maxModelLen"
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
    """What vLLM refuses of options, by the rules that the operator has for every version it knows."""
    sequences, tokens = request.max_num_seqs, request.max_num_batched_tokens
    if sequences is not None and tokens is not None and tokens < sequences:
        # vllm/config/scheduler.py, verify_max_model_len
        yield Problem(
            label("max_num_batched_tokens"),
            f"{tokens:,} tokens of a step are fewer than its {sequences:,} sequences, which need one each.",
            f"Give at least {sequences}, or lower {label('max_num_seqs')}.",
        )
    if request.device is None:
        return
    fields = {dimension: label(name) for dimension, name in _LABELS.items()}
    for problem in verdicts(Combination(precision(request), request.device.name, fields)):
        yield Problem(problem.field, in_options(problem.message), in_options(problem.remedy))


def only_served(question: Question, *, is_grid: bool) -> Question:
    """The question with the GPUs on which vLLM serves what is asked for; BadInput where there is none.

    A grid shows by itself what is not served where, so that its limits alone can be wrong.
    """
    label = question.given.label
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


def noted(question: Question) -> Question:
    """The question with a note of what vLLM refuses in that version: what was measured once ran all the same."""
    found = dict.fromkeys(one for request in question.requests for one in refused(request, question.given.label))
    notes = tuple(f"vLLM {version_of(question.request)} refuses it: {problem}" for problem in found)
    return replace(question, notes=(*question.notes, *notes))


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


_WORST_FIRST = (ExitCode.BAD_INPUT, ExitCode.DOES_NOT_FIT, ExitCode.UNKNOWN, ExitCode.DONE)


def code_of(verdict: Fit, options: Options) -> ExitCode:
    """With --strict, Tight is a no; with --allow-unknown, Unknown is a yes."""
    codes = {
        Fit.FITS: ExitCode.DONE,
        Fit.TIGHT: ExitCode.DOES_NOT_FIT if options.strict else ExitCode.DONE,
        Fit.DOES_NOT_FIT: ExitCode.DOES_NOT_FIT,
        Fit.UNKNOWN: ExitCode.DONE if options.allow_unknown else ExitCode.UNKNOWN,
    }
    return codes[verdict]


def best(codes: Iterable[ExitCode]) -> ExitCode:
    """Of alternatives, of which one is enough; a no where there are none."""
    return max(codes, key=_WORST_FIRST.index, default=ExitCode.DOES_NOT_FIT)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """Of several plans, which all count: bad input before a no, and a no before what is not known."""
    return min(codes, key=_WORST_FIRST.index, default=ExitCode.DONE)


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


def document(answer: Answer, *, explain: bool = False) -> Json:
    """One plan for programs: the keys that scripts rely on, null where something is not known.

    Names are only ever added; everything in GiB is of one GPU, unless it says total.
    """
    question = answer.question
    found = service_of(question) | figures(answer.plan)
    found["remedies"] = [_remedy(one, is_manifest=question.is_manifest) for one in answer.plan.remedies]
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


def _remedy(remedy: Remedy, *, is_manifest: bool) -> Json:
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
        elif path in OPTION_OF:
            found[OPTION_OF[path]] = value
    return found


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
    return None if value is None or not math.isfinite(value) else round(value, _DIGITS)
