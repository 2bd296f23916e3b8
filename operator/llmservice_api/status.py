"""Models of status, for the CRD's schema and for checks of stored statuses; the operator writes plain JSON."""

from collections.abc import Mapping
from datetime import datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, create_model
from pydantic.alias_generators import to_camel

from llmservice_api.base import BY_NAME, ApiModel, Many
from llmservice_api.constants import TYPICAL_REQUEST
from llmservice_api.engine import Parallelism
from llmservice_api.spec import LLMServiceSpec

Text = Annotated[str, StringConstraints(max_length=4096)]
Word = Annotated[str, StringConstraints(max_length=1024)]
IntOrWord = Annotated[
    int | str,
    Field(
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 16,
        }
    ),
]


def _a_time(text: str) -> str:
    """The text, if it is a time with an offset; ValueError otherwise: times without one cannot be compared."""
    if len(text) > 64 or datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("is not a time with an offset")
    return text


Time = Annotated[str, AfterValidator(_a_time), Field(json_schema_extra={"format": "date-time", "maxLength": 64})]


class StatusModel(BaseModel):
    """A part of the status. Unknown fields are ignored: newer operators write more."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )


def optional(description: str, **extra: Any) -> Any:
    """A field that is absent while the operator does not know its value."""
    return Field(default=None, description=description, **extra)


def in_force(**extra: Any) -> Any:
    """A field of status.effective; the CRD copies its description from the same field of the spec."""
    return Field(default=None, **extra)


class StatusCondition(StatusModel):
    """One condition, in the shape of Kubernetes' metav1.Condition."""

    type: Annotated[str, StringConstraints(max_length=316)] = Field(
        description="Accepted, Fits, Available, Ready; Autoscaled with spec.scaling.autoscaling; Reconciling, Stalled "
        "and Degraded while they are true."
    )
    status: Annotated[str, Field(json_schema_extra={"enum": ["True", "False", "Unknown"]})] = Field(
        description="status of the condition, one of True, False, Unknown."
    )
    reason: Annotated[str, StringConstraints(max_length=1024)] = Field(
        description="One word for the cause; docs/reference/reasons.md explains each."
    )
    message: Annotated[str, StringConstraints(max_length=32_768)] = Field(description="What happened, and what to do.")
    observed_generation: int | None = optional("The generation of the spec that this is about.", ge=0)
    last_transition_time: Time = Field(
        description="The last time the condition transitioned from one status to another."
    )


class EndpointStatus(StatusModel):
    """Where and under which names the model answers."""

    url: Word | None = optional("Base address of the OpenAI API inside the cluster.")
    model_names: Many[Word] | None = optional(
        "Names that a request may give as model, adapters included.", max_length=80
    )


class EffectiveModel(StatusModel):
    served_model_names: Many[Word] | None = in_force(max_length=16)
    revision: Word | None = optional("Branch, tag or commit that spec.model.uri asks for.")
    runner: Word | None = in_force()
    convert: Word | None = in_force()


class EffectiveAccelerator(StatusModel):
    type: Word | None = in_force()
    resource_name: Word | None = in_force()
    count: int | None = optional("GPUs of one replica: the product of the sizes in spec.parallelism; 0 on CPUs.")
    gpu_memory_utilization: float | None = in_force()


class EffectiveRollout(StatusModel):
    strategy: Word | None = optional(
        "The value in force of spec.rollout.strategy; status.rollout.strategy is what Auto came down to."
    )
    progress_deadline_seconds: int | None = in_force()


class EffectiveStartCache(StatusModel):
    size: Word | None = in_force()
    storage_class_name: Word | None = in_force()
    access_modes: Many[Word] | None = in_force(max_length=3)


class EffectiveScaling(StatusModel):
    min_replicas: int | None = optional("The fewest replicas, outside of spec.scaling.autoscaling.schedule.")
    max_replicas: int | None = optional("The most replicas, outside of spec.scaling.autoscaling.schedule.")
    idle_seconds: int | None = optional("Seconds without a request after which the last replica is removed.")
    concurrency_per_replica: int | None = optional(
        "Requests in progress for each replica that autoscaling aims at. auto: maxNumSeqs, or as many as fit into the "
        f"KV cache, measured or else planned, at {TYPICAL_REQUEST:,} tokens a request or maxModelLen; not dependent on "
        "the load. Absent while nothing is known."
    )


_OWN_SHAPE: dict[str, type[StatusModel]] = {
    "model": EffectiveModel,
    "accelerator": EffectiveAccelerator,
    "rollout": EffectiveRollout,
    "start_cache": EffectiveStartCache,
    "scaling": EffectiveScaling,
}
_IN_FORCE: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    (
        *("precision", "batching", "attention", "compilation", "context_extension"),
        *("speculative_decoding", "lora", "generation"),
    ),
    (),
) | {
    "parallelism": tuple(name for name in Parallelism.model_fields if name not in ("network", "topology_key")),
    "drain": ("timeout_seconds",),
    "endpoint": ("port",),
    "runtime": ("image", "version", "sleep_mode"),
}
"""Sections of the spec in status.effective, with the fields that are repeated; none: all."""


def _section(section: type[ApiModel], only: tuple[str, ...] = ()) -> type[StatusModel]:
    """A section of the spec for status.effective: these fields, optional and without bounds."""
    fields: dict[str, Any] = {
        name: (_value(section.model_fields[name].annotation) | None, in_force())
        for name in only or section.model_fields
    }
    return create_model(f"Effective{section.__name__}", __base__=StatusModel, **fields)


def _value(kind: Any, only: tuple[str, ...] = ()) -> Any:
    """The type of a field of the spec without its bounds; for a section, with these fields."""
    if get_origin(kind) in (Union, UnionType):
        kinds = [one for one in get_args(kind) if one is not NoneType]
        return IntOrWord if len(kinds) > 1 else _value(kinds[0])
    if get_origin(kind) is Annotated:
        return _value(get_args(kind)[0])
    if get_origin(kind) is Literal:
        kind = type(get_args(kind)[0])
    if issubclass(kind, ApiModel):
        return _section(kind, only)
    return Word if kind is str else kind


def _effective() -> type[StatusModel]:
    fields: dict[str, Any] = {}
    for name, info in LLMServiceSpec.model_fields.items():
        if name in _IN_FORCE or name in _OWN_SHAPE:
            kind: Any = _OWN_SHAPE.get(name) or _value(info.annotation, _IN_FORCE[name])
            fields[name] = (kind | None, in_force())
    return create_model("EffectiveStatus", __base__=StatusModel, **fields)


EffectiveStatus = _effective()


class ProgressStatus(StatusModel):
    """How far a pod has come that starts; written when its phase or step changes, else every 15 seconds at most."""

    pod: Word | None = optional("Name of the starting pod that this is about.")
    phase: Word | None = optional("Preflight, Fetching, Loading or Smoke (its first request).")
    message: Text | None = optional("What it is doing, in the server's own words.")
    artifact: Word | None = optional("What is being fetched: model or draft.")
    step: Word | None = optional("Listing, Waiting (for another pod that fetches the same), Downloading or Verifying.")
    percent: int | None = optional("Share of the bytes that are there, in percent.", ge=0, le=100)
    bytes_per_second: int | None = optional("Present pace of the fetch, in bytes a second.", ge=0)
    eta_seconds: int | None = optional("Seconds until all are there, at the present pace.", ge=0)


class AdapterStatus(StatusModel):
    """One LoRA adapter of spec.adapters."""

    name: Word = Field(description="Name that a request gives as model.")
    loaded: bool = Field(description="Whether every replica serves it.")
    message: Text | None = optional("Why it is not served, and what to do about it; absent while it is on its way.")


class MeasuredStatus(StatusModel):
    """What vLLM itself reported."""

    vllm_version: Word | None = optional("Version that the running vLLM reports.")
    kv_cache_tokens: int | None = optional("Tokens that fit into the KV cache of one replica.")
    max_concurrency: float | None = optional("Requests of full length that fit into the KV cache at once.")
    max_model_len: int | None = optional("Most tokens of one request, prompt and answer together.")
    model_load_seconds: float | None = optional("Seconds that loading the weights took.")
    model_memory_gi_b: float | None = optional("GiB that the weights take on one GPU.")
    kv_cache_memory_gi_b: float | None = optional("GiB that the KV cache takes on one GPU.")
    engine_init_seconds: float | None = optional("Seconds that profiling, KV cache and warm-up took.")
    start_seconds: float | None = optional("Seconds from the container's start to the first answer.")
    start_cache: Word | None = optional(
        "Reused: compiled code of an earlier start was used. New: it is kept for the next start. Unused: it cannot be."
    )
    start_cache_message: Text | None = optional("Why the start cache is unused, and what to do.")
    reason: Word | None = optional("Why values are missing, when they are.")


class InspectedTensors(StatusModel):
    """Bytes of the checkpoint's tensors, by what they are for."""

    embedding: int | None = optional("Bytes of the table of input embeddings.")
    head: int | None = optional("Bytes of the output head; 0 where it is the embedding.")
    attention: int | None = optional("Bytes of attention, norms and what else is in a layer.")
    feed_forward: int | None = optional("Bytes of dense MLPs and shared experts.")
    experts: int | None = optional("Bytes of the routed experts of all layers.")
    vision: int | None = optional("Bytes of encoders of pictures and sound.")
    mtp: int | None = optional("Bytes of layers for multi-token prediction.")
    other: int | None = optional("Bytes of tensors that are none of the above.")
    parameters: int | None = optional("Number of values, packed ones as they are stored.")
    dtype: Word | None = optional("Type that most bytes are stored in, such as bfloat16.")


class ModelStatus(StatusModel):
    """What was read of the model: the plan's facts."""

    inspection: Word | None = optional("What was inspected, as a hash: another uri or revision has another one.")
    revision: Word | None = optional("Commit of the repository that was read.")
    config: Annotated[str, StringConstraints(max_length=8192)] | None = optional(
        "What config.json says and the plan needs, as JSON text."
    )
    tensors: InspectedTensors | None = optional("What the headers of the safetensors files add up to.")
    failure: Text | None = optional("Why the model could not be read.")


class PlanPerGPU(StatusModel):
    """The memory of the fullest GPU, in GiB."""

    memory_gi_b: float | None = optional("Memory of the GPU, as its driver reports it.")
    budget_gi_b: float | None = optional("The share of memoryGiB that vLLM takes.")
    weights_gi_b: float | None = optional("What the weights take on this GPU.")
    non_torch_gi_b: float | None = optional("What libraries and communication between GPUs take.")
    activation_gi_b: float | None = optional("What the largest step needs beside the weights.")
    graph_gi_b: float | None = optional("What the recorded CUDA graphs take.")
    kv_cache_gi_b: float | None = optional("What is left for the KV cache.")


class PlanRemedy(StatusModel):
    """A change with which it would fit."""

    change: Text = Field(description="What to change: the field and its new value, in words.")
    patch: Text | None = optional("For `kubectl patch llms NAME --type merge -p`; absent where other nodes are needed.")
    gpu: Word | None = optional("The other GPU, where that is the change.")
    verdict: Word | None = optional("Fits or Tight: the verdict with the change.")
    max_model_len: int | None = optional("The longest request that fits for sure with it.")
    kv_cache_tokens: int | None = optional("Tokens in the KV cache with it.")


class PlanStatus(StatusModel):
    """What the planner computed before a pod was made; it stays as it is while the revision does."""

    verdict: Word | None = optional("Fits, Tight, DoesNotFit or Unknown.")
    reason: Text | None = optional("Why this verdict, with the figures that decided.")
    missing: Many[Word] | None = optional("What an Unknown verdict would need.", max_length=64)
    facts: Word | None = optional("Hash of the model's facts that it was planned with.")
    gpu: Word | None = optional("Product of the GPU that it was planned for.")
    gpus: int | None = optional("Number of GPUs that one replica needs.")
    weights_gi_b: float | None = optional("GiB of weights, over all GPUs of a replica.")
    kv_cache_gi_b: float | None = optional("GiB of KV cache, over all GPUs of a replica.")
    host_memory_gi_b: float | None = optional(
        "GiB of the node's memory that vLLM pins for a replica; its memory request has room for it."
    )
    kv_cache_tokens: int | None = optional("Tokens that fit into the KV cache, as vLLM will print them.")
    max_model_len: int | None = optional("The longest request that fits for sure, in tokens.")
    requested_max_model_len: int | None = optional("The longest request that was asked for, in tokens.")
    max_concurrency: float | None = optional("Requests of the asked length that fit at once.")
    recommended_max_num_seqs: int | None = optional("A spec.batching.maxNumSeqs that the KV cache can feed.")
    error_band: float | None = optional("Nine of ten starts have this share of KV tokens more or less, at most.")
    per_gpu: PlanPerGPU | None = optional("The memory of the fullest GPU.", alias="perGPU")
    explanation: Many[Text] | None = optional("The arithmetic of the plan, one step an item.", max_length=64)
    remedies: Many[PlanRemedy] | None = optional("Changes with which it would fit, the cheapest first.", max_length=8)


GatedPod = Annotated[str, StringConstraints(max_length=128)]
"""uid of a pod, followed after a space by the time when its gates were gone; without it the pod is still gated."""
MOST_GATED = 64
"""Pods in status.rollout.gatedPods."""


class RolloutStatus(StatusModel):
    """What runs, and what a change is waiting for."""

    strategy: Word | None = optional(
        "How a change replaces what serves: Surge, Replace or Recreate; Auto is one of them."
    )
    reason: Text | None = optional(
        "Why this strategy, and whether nothing will answer for a while; after a rollback, why. Told until the "
        "revision is rolled out."
    )
    revision: Word | None = optional("Revision of the current spec, or the one in its place; a label of its pods.")
    stable_revision: Word | None = optional("The last revision that was fully rolled out.")
    pinned: bool | None = optional("Whether revision is the one of spec.rollout.pinnedRevision.")
    failed_revision: Word | None = optional("Revision whose rollout failed.")
    failed_spec: Word | None = optional(
        "Hash of the spec, scaling apart, that a rollback left: another spec, or another value of the annotation "
        "llmservice.dev/update-requested, is tried again."
    )
    update_pending: bool | None = optional(
        "Whether a change of the operator or of drain settings waits for the next rollout; the annotation "
        "llmservice.dev/update-requested asks for it now."
    )
    gap: Text | None = optional(
        "What becomes of requests while the rollout leaves no replica that answers, of a service whose requests are "
        "held: spec.scaling.holding.rollouts, or minReplicas 0."
    )
    update_waiting: Text | None = optional("Why an update that was asked for has not begun.")
    update_blocked: Text | None = optional(
        "Why this version of the operator would refuse to make the revision that runs, such as a vLLM that it does not "
        "know. The revision runs on as recorded, and is scaled and repaired; the next change that needs a restart is "
        "refused until this is mended."
    )
    gated_pods: Many[GatedPod] | None = optional(
        "Pods seen at a scheduling gate: the uid, and when the gate was gone.", max_length=MOST_GATED
    )


class FailureStatus(StatusModel):
    """The last failure that stands in the way of the current spec."""

    reason: Word | None = optional("One word for the cause; docs/reference/reasons.md explains each.")
    message: Text | None = optional("What happened, with names and figures of this case.")
    remedy: Text | None = optional("What to change or check to mend this failure.")
    pod: Word | None = optional("Pod that the failure was seen in; absent where no pod has it.")
    since: Time | None = optional("When this failure was first seen.")
    evidence: Many[Text] | None = optional("Lines of the log that show the failure.", max_length=64)


class GroupMemberStatus(StatusModel):
    """One pod of a replica over several nodes."""

    rank: int = Field(description="Its number in the group; 0 is the leader.", ge=0)
    pod: Word | None = optional("Name of the pod that has this rank.")
    node: Word | None = optional("Node that the pod of this rank is on.")
    step: Word | None = optional(
        "Preparing, Waiting (for the others), Running, Failed or Leaving (it got SIGTERM); absent while the leader has "
        "not heard of it."
    )


MOST_GROUPS = 16
"""Replicas over several nodes in the status."""


class GroupStatus(StatusModel):
    """A replica over several nodes, as its leader reports it; written when a step or the cause changes."""

    name: Word = Field(description="Name of the leader's pod, of rank 0.")
    ready: bool = Field(description="Whether all members run and the leader takes requests.")
    restarts: int | None = optional(
        "Starts of vLLM on all members after a failure, within the hour before its leader was last asked.", ge=0
    )
    cause: Text | None = optional("Why vLLM last ended on all members: the rank on which it happened, and the failure.")
    members: Many[GroupMemberStatus] | None = optional("Its pods that the leader knows, by rank.", max_length=64)


class HoldingStatus(StatusModel):
    port: int | None = optional(
        "Port of the activators that belongs to this service alone: requests reach it while no replica serves."
    )
    idle: bool | None = optional(
        "true: the 0 in spec.scaling.replicas is autoscaling's; it ends once requests come, or minReplicas is raised. "
        "false: minReplicas was raised, and requests are held until a replica serves."
    )


class LLMServiceStatus(StatusModel):
    """What the operator found. kubectl wait and kstatus read observedGeneration and conditions."""

    observed_generation: int | None = optional(
        "The generation of the spec that the operator last looked at; -1 before it ever did."
    )
    conditions: Annotated[
        Many[StatusCondition] | None,
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = optional(
        "Accepted, Fits, Available and Ready; Autoscaled with spec.scaling.autoscaling; Reconciling or Stalled, and "
        "Degraded, while true.",
        max_length=16,
    )
    replicas: int | None = optional("Pods of the service, of any revision.")
    updated_replicas: int | None = optional("Pods of the current revision, status.rollout.revision.")
    ready_replicas: int | None = optional("Pods that are Ready, and so get requests.")
    available_replicas: int | None = optional("Pods that have answered for a while.")
    selector: Word | None = optional("Label selector of the pods, for autoscalers.")
    ready: Word | None = optional("Ready and wanted replicas, as 1/2.")
    gpus: int | None = optional("GPUs that all wanted replicas ask for.")
    endpoint: EndpointStatus | None = optional("Where and under which names the model answers.")
    holding: HoldingStatus | None = optional("Where requests are held, of a service that may have no replica.")
    effective: EffectiveStatus | None = optional(  # type: ignore[valid-type]
        "The values in force for every field of the spec that has a default; what is absent is vLLM's or the model's "
        "own choice."
    )
    progress: ProgressStatus | None = optional("How far a pod of the current revision has come that starts.")
    model: ModelStatus | None = optional("What was read of the model, for the plan.")
    plan: PlanStatus | None = optional("What the planner computed; status.measured is what became of it.")
    measured: MeasuredStatus | None = optional("What vLLM itself reported; status.plan is what was computed before.")
    adapters: Annotated[Many[AdapterStatus] | None, Field(json_schema_extra=BY_NAME)] = optional(
        "The adapters of the spec, and whether they are served.", max_length=64
    )
    groups: Annotated[Many[GroupStatus] | None, Field(json_schema_extra=BY_NAME)] = optional(
        "Replicas over several nodes and their pods, the first ones by name.", max_length=MOST_GROUPS
    )
    rollout: RolloutStatus | None = optional("What runs, and what a change is waiting for.")
    failure: FailureStatus | None = optional("The failure that stands in the way of the current spec.")
