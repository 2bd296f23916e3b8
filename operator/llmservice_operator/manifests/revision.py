"""Revisions: the fields that need a restart, recorded choices, the start budget, and the ControllerRevision.

The budget of a start is the time after which a server has to show progress. A start beyond it is slow, not failed, so
that it may be inaccurate; it has to be generous. In seconds, with the formula of each step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from llmservice_api.constants import REVISION_LABEL
from llmservice_api.model import ACCESS_FIELDS
from llmservice_api.service import LLMService, cached_by_spec, parse_spec
from llmservice_api.spec import LLMServiceSpec
from llmservice_runtime.contract import START_CEILING_SECONDS, START_SECONDS
from pydantic.alias_generators import to_camel

from llmservice_operator.manifests.meta import Manifest, digest, metadata
from llmservice_operator.manifests.sources import adapter_stores, fetched

MIB = 2**20
USUAL_PACE = 250 * MIB
"""Bytes per second of a cloud's network volume; a local NVMe disk is several times as fast."""
SLOW_PACE = 40 * MIB
"""Bytes per second of shared file systems, and of volumes that are first read from a snapshot."""
ENGINE_SECONDS = 45
"""vLLM's imports and processes, profiling, KV cache, warm-up. Measured in pods: 26 to 46 s on two cores."""
RANKS_SECONDS = 20
"""In addition for several ranks. Measured: 62 to 70 s with two ranks, 46 s with one."""
CPU_COMPILE_SECONDS = 45
"""Measured: 57 to 92 s compiled, 26 to 46 s without."""
GPU_COMPILE_SECONDS = 80
"""torch.compile and CUDA graphs of an 8B model on an A10 without a cache, as users report it."""
SLACK = 3
"""Factor of a budget over the usual time: other machines, a cold cache, busy nodes."""
LEAST_BUDGET = 600


@dataclass(frozen=True, slots=True)
class StartInputs:
    bytes_to_read: int | None
    """Of the weights; None: unknown, with a generous budget."""
    is_cpu: bool = False
    compiles: bool = True
    ranks: int = 1
    measured_seconds: float | None = None
    """Of an earlier start of the same model with the same settings."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the arithmetic."""

    name: str
    seconds: int
    formula: str


@dataclass(frozen=True, slots=True)
class StartPlan:
    budget_seconds: int
    usual_seconds: int | None
    """None: unknown."""
    steps: tuple[Step, ...]


def expected_start(starting: StartInputs) -> StartPlan:
    """The usual time as measured, else the sum of the steps, with a generous budget."""
    steps = tuple(_steps(starting))
    measured = starting.measured_seconds
    if starting.bytes_to_read is None:
        budget = max(START_SECONDS, SLACK * (measured or 0))
        return StartPlan(_bounded(budget), None if measured is None else _rounded(measured), steps)
    fixed = sum(step.seconds for step in steps if step.name in _FIXED)
    budget = SLACK * fixed + starting.bytes_to_read / SLOW_PACE
    usual = fixed + starting.bytes_to_read / USUAL_PACE if measured is None else measured
    return StartPlan(_bounded(max(budget, SLACK * usual)), _rounded(usual), steps)


_FIXED = ("engine", "ranks", "compilation")


def _steps(starting: StartInputs) -> Iterator[Step]:
    yield Step("engine", ENGINE_SECONDS, "imports, processes, profiling, KV cache, warm-up")
    if starting.ranks > 1:
        yield Step("ranks", RANKS_SECONDS, f"{starting.ranks} ranks find each other")
    if starting.compiles:
        on, seconds = ("CPU", CPU_COMPILE_SECONDS) if starting.is_cpu else ("GPU", GPU_COMPILE_SECONDS)
        yield Step("compilation", seconds, f"torch.compile on a {on}, nothing cached")
    if starting.bytes_to_read is not None:
        gib, seconds = starting.bytes_to_read / 2**30, round(starting.bytes_to_read / USUAL_PACE)
        pace = f"{USUAL_PACE // MIB} MiB/s is usual, {SLOW_PACE // MIB} MiB/s is allowed for"
        yield Step("weights", seconds, f"{gib:.2f} GiB to read; {pace}")
    if starting.measured_seconds is not None:
        yield Step("measured", round(starting.measured_seconds), "what an earlier start took")


def _bounded(seconds: float) -> int:
    return _rounded(min(max(seconds, LEAST_BUDGET), START_CEILING_SECONDS))


def _rounded(seconds: float) -> int:
    """Rounded up to 5 s, since figures are estimates."""
    return 5 * -int(-seconds // 5)


Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RevisionChoices:
    """`data.chosen` of a ControllerRevision; earlier releases wrote fewer fields or none."""

    gpu: str | None = None
    """The planned GPU product, as in its node label: required where the spec lists products, else preferred."""
    max_model_len: int | None = None
    """Tokens: the value of `auto`."""
    plan: Json | None = None
    """The value of status.plan; None: no plan."""
    start: Json | None = None
    """Budget and usual length of a start, from `start_plan`; None: from an earlier release, use the defaults."""
    update_requested: str | None = None
    spec: Json | None = None
    """The part of the spec from which it was created, as users write it; None: from an earlier release."""
    excluded_gpus: Sequence[str] | None = None
    """Products on which the model does not fit, where the spec lists none."""
    excluded_architectures: Sequence[str] | None = None
    """Architectures of nodes for which the images are not built."""
    claim: Json | None = None
    """Name and content of its ResourceClaimTemplate, where the operator claims devices."""
    recorded: Json | None = field(default=None, compare=False, repr=False)
    """The record from which this was read, written back unchanged: `data` of a ControllerRevision is immutable."""

    @classmethod
    def from_document(cls, document: Json) -> Self:
        """Read a record; absent fields are None."""
        return cls(**{name: document.get(key) for name, key in _RECORDED.items()}, recorded=document)

    @property
    def host_memory_gib(self) -> int:
        """GiB of the node's memory that vLLM pins by the plan, rounded up."""
        return math.ceil((self.plan or {}).get("hostMemoryGiB") or 0)

    def to_document(self) -> dict[str, Any]:
        """The record without fields that are None."""
        if self.recorded is not None:
            return dict(self.recorded)
        record = {key: getattr(self, name) for name, key in _RECORDED.items()}
        return {key: value for key, value in record.items() if value is not None}


_RECORDED = {field.name: to_camel(field.name) for field in fields(RevisionChoices) if field.name != "recorded"}
NO_CHOICES = RevisionChoices()


# All other fields need no restart. Omitted on purpose: model.architecture and accelerator.memory on GPUs, which are
# facts for checks; of the cache all but its claim; the drain timeout, which waits for the next rollout, since a restart
# costs more; of the adapters all but whether there may be any and what is mounted for them, since the supervisor loads
# and unloads them.
_MODEL = {"uri", "served_model_names", "trust_remote_code", "runner", "convert", "chat_template", *ACCESS_FIELDS}
_RESTARTING: dict[str, Any] = {
    "model": _MODEL,
    "precision": True,
    "parallelism": True,
    "batching": True,
    "attention": True,
    "compilation": True,
    "context_extension": True,
    "speculative_decoding": True,
    "lora": True,
    "generation": True,
    "multimodal": True,
    "accelerator": True,
    "endpoint": {"api_key_secret_ref"},
    "runtime": True,
    "pod_template": True,
}


@cached_by_spec
def revision_key(spec: LLMServiceSpec) -> str:
    """Hash of the fields that need a restart, independent of settings and the operator's version.

    An explicit default equals an absent field.
    """
    fields = spec.model_dump(mode="json", include=_RESTARTING, exclude_defaults=True)
    if spec.accelerator.type != "cpu":
        fields.get("accelerator", {}).pop("memory", None)
    if (events := spec.batching.kv_events) is not None and not events.enabled:
        fields.get("batching", {}).pop("kv_events", None)
        if not fields.get("batching", True):
            del fields["batching"]
    cache = spec.model.cache
    fields["cache"] = cache.claim_name or (cache.size is not None)
    fields["start_cache"] = spec.start_cache is not None
    # An empty `lora` and an adapter both start vLLM with LoRA.
    fields["lora"] = [fields.get("lora") or {}, adapter_stores(spec)] if spec.is_lora_on else None
    return digest({key: value for key, value in fields.items() if value})


def recorded_spec(spec: LLMServiceSpec) -> dict[str, Any]:
    """The fields that need a restart, as users write them; recorded with the template for a rollback."""
    include = dict.fromkeys((*_RESTARTING, "start_cache"), True) | {"endpoint": {"api_key_secret_ref"}}
    fields = spec.model_dump(mode="json", by_alias=True, include=include, exclude_defaults=True)
    return fields | {"lora": fields.get("lora") or {}} if spec.is_lora_on else fields


def with_recorded_fields(spec: LLMServiceSpec, recorded: Json) -> LLMServiceSpec:
    """The spec with the recorded values of exactly the fields that the key covers; InvalidSpec where this release
    cannot read them.

    Pods of the recorded revision serve the current adapters for which they have room.
    """
    fields = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    made = dict(fields)
    for section, restarting in _RESTARTING.items():
        name = to_camel(section)
        now, then = fields.get(name) or {}, recorded.get(name) or {}
        made[name] = then if restarting is True else _with_recorded(now, then, set(map(to_camel, restarting)))
    made["model"] = _with_recorded_claim(made["model"], (recorded.get("model") or {}).get("cache") or {})
    if (made["accelerator"] or {}).get("type") != "cpu":
        made["accelerator"] = _with_recorded(made["accelerator"], fields.get("accelerator") or {}, {"memory"})
    # The revision decides whether pods mount this claim; size and class are current.
    if "startCache" not in recorded:
        made.pop("startCache", None)
    elif "startCache" not in made:
        made["startCache"] = recorded["startCache"]
    if "lora" not in recorded:
        made.pop("adapters", None)
        made.pop("lora", None)
    elif spec.is_lora_on and recorded["lora"] == (fields.get("lora") or {}):
        made["lora"] = fields.get("lora")  # an empty one means the same as an adapter
    return parse_spec({name: value for name, value in made.items() if value or (name == "lora" and value is not None)})


def _with_recorded(now: Json, then: Json, names: Collection[str]) -> dict[str, Any]:
    """A section with the recorded values, or absence, of these names."""
    kept = {name: value for name, value in now.items() if name not in names}
    return kept | {name: value for name, value in then.items() if name in names}


_CLAIM = {"claimName", "size", "storageClassName", "accessModes"}


def _with_recorded_claim(model: Json, then: Json) -> dict[str, Any]:
    """The revision decides whether and which claim the pods mount; everything else of the cache is current."""
    now: Json = model.get("cache") or {}
    if _claim(now) == _claim(then):
        return dict(model)
    cache = _with_recorded(now, then, _CLAIM)
    return {**model, "cache": cache if _claim(then) else {}}


def _claim(cache: Json) -> str | bool:
    """As in the key: a user's claim, one that the operator creates, or none."""
    return cache.get("claimName") or ("size" in cache)


def spec_digest(spec: LLMServiceSpec, update_requested: str | None) -> str:
    """Hash of the spec without replicas, and of the requested update: identifies the spec of a failure."""
    fields = spec.model_dump(mode="json", exclude={"scaling", "paused"}, exclude_defaults=True)
    return digest([fields, update_requested])


def revision_label(key: str, template: Manifest, update_requested: str | None) -> str:
    """Label of a revision that is not the first of its key: a hash that includes the template."""
    return digest([key, update_requested, template])


def labelled(template: Manifest, label: str) -> Manifest:
    metadata = template["metadata"]
    return template | {"metadata": metadata | {"labels": metadata["labels"] | {REVISION_LABEL: label}}}


KEPT = 5
"""Revisions that are kept, including the current one."""


def controller_revision(
    llm: LLMService, *, label: str, number: int, key: str, template: Manifest, chosen: RevisionChoices
) -> Manifest:
    """The ControllerRevision; the API server allows later changes of `revision` only."""
    meta = metadata(llm, f"{llm.name}-{label}")
    meta["labels"][REVISION_LABEL] = label
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": meta,
        "revision": number,
        "data": {"key": key, "template": template, "chosen": chosen.to_document()},
    }


def start_plan(llm: LLMService, plan: Json | None) -> dict[str, Any]:
    """Start budget and steps, recorded with the revision and used by its template. `plan` is status.plan."""
    budget = expected_start(_starting(llm, plan))
    steps = [{"name": step.name, "seconds": step.seconds, "formula": step.formula} for step in budget.steps]
    usual = {} if budget.usual_seconds is None else {"usualSeconds": budget.usual_seconds}
    return {"budgetSeconds": budget.budget_seconds, **usual, "steps": steps}


def _starting(llm: LLMService, plan: Json | None) -> StartInputs:
    """Inputs of the budget."""
    spec, weights = llm.spec, (plan or {}).get("weightsGiB")
    return StartInputs(
        bytes_to_read=None if weights is None else round(weights * 2**30),
        is_cpu=spec.accelerator.type == "cpu",
        compiles=not spec.compilation.enforce_eager,
        ranks=spec.parallelism.accelerators,
        measured_seconds=_measured(llm) if _is_comparable(llm, plan or {}) else None,
    )


def _is_comparable(llm: LLMService, plan: Json) -> bool:
    """Whether status.measured is of weights of this size, on this hardware, with the same compilation."""
    previous, effective = llm.status.get("plan") or {}, llm.status.get("effective") or {}
    return (
        previous.get("weightsGiB") == plan.get("weightsGiB")
        and previous.get("gpu") == plan.get("gpu")
        and (effective.get("accelerator") or {}).get("type") == llm.spec.accelerator.type
        and (effective.get("compilation") or {}).get("enforceEager") == llm.spec.compilation.enforce_eager
        and (effective.get("model") or {}).get("servedModelNames") == list(llm.served_model_names)
    )


def _measured(llm: LLMService) -> float | None:
    """Seconds of the measured start without its fetch, which the budget does not cover."""
    measured: Json = llm.status.get("measured") or {}
    if measured.get("startCache") == "Reused":
        return None  # a start that compiles takes longer
    if not fetched(llm.spec):
        return measured.get("startSeconds")
    parts = [measured.get("modelLoadSeconds"), measured.get("engineInitSeconds")]
    return None if None in parts else ENGINE_SECONDS + sum(part for part in parts if part is not None)
