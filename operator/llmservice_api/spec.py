"""spec: the desired state of one LLMService."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from llmservice_api.base import BY_NAME, SET, ApiModel, Knob, Many, ObjectName, Quantity, knob, leaf, section
from llmservice_api.engine import (
    MAX_TOKENS,
    Accelerator,
    Attention,
    Batching,
    Compilation,
    ContextExtension,
    DraftModel,
    Parallelism,
    Precision,
    SpeculativeDecoding,
)
from llmservice_api.lifecycle import Drain, Endpoint, Rollout, Routing, Scaling
from llmservice_api.model import AccessMode, Model, Source, parse
from llmservice_api.runtime import PodTemplate, Runtime

# spec.generation: sampling and parsing of answers.

# vLLM looks parsers up at its start, and plugins add some: hence a pattern and not a list.
ParserName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class GenerationDefaults(ApiModel):
    """Sampling parameters of requests that do not say otherwise; what is left out is the model's own."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = knob(
        description="Randomness: 0 always takes the likeliest token.", examples=[0.7]
    )
    top_p: Annotated[float, Field(ge=0.01, le=1)] | None = knob(
        description="Choose among the likeliest tokens that together have this probability; 1 for all.", examples=[0.8]
    )
    top_k: int | None = knob(
        description="Choose among this many of the likeliest tokens; 0 for all.", examples=[20], bounds=(0, 16_777_216)
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = knob(
        description="Leave out tokens that are less likely than this share of the likeliest one's probability.",
        examples=[0.05],
    )
    repetition_penalty: Annotated[float, Field(ge=0.01, le=2)] | None = knob(
        description="Above 1, tokens that came already are made less likely.", examples=[1.05]
    )
    max_tokens: int | None = knob(
        description="Most tokens of an answer, where the request names no limit.",
        examples=[2048],
        bounds=(1, MAX_TOKENS),
    )


class Generation(ApiModel):
    """How answers are sampled, and what is read out of them."""

    tool_call_parser: ParserName | None = knob(
        description="Read tool calls out of answers with this parser of vLLM's, and let the model choose to call "
        "(--tool-call-parser, --enable-auto-tool-choice). It must be the one for the model's format.",
        examples=["hermes"],
        flag=("--enable-auto-tool-choice", "--tool-call-parser"),
    )
    reasoning_parser: ParserName | None = knob(
        description="Keep a model's thinking apart from its answer with this parser of vLLM's (--reasoning-parser). "
        "It must be the one for the model's format.",
        examples=["qwen3"],
        flag="--reasoning-parser",
    )
    seed: int | None = knob(
        description="Seed of the random numbers (--seed) of requests that bring none. Default: 0.",
        examples=[7],
        bounds=(0, 4_294_967_295),
        flag="--seed",
        vllm_default=0,
        effective=0,
    )
    defaults: Annotated[GenerationDefaults, Knob(("--override-generation-config",))] = section(
        GenerationDefaults,
        "Sampling parameters of requests that do not say otherwise (--override-generation-config); what is left out "
        "is as the model's generation_config.json says.",
    )


# spec.multimodal: images, audio and video in requests.

ANY_DOMAIN = "*"

# vLLM compares the whole host name of a URL, in lower case.
MediaDomain = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^([*]|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)$")
]


class Multimodal(ApiModel):
    """Pictures, sound and video that clients send beside the text."""

    allowed_media_domains: Annotated[Many[MediaDomain], Knob(("--allowed-media-domains",))] = leaf(
        tuple,
        description="Hosts that the server fetches media from when a request names an address "
        "(--allowed-media-domains): whole names, without scheme or port. Default: none, clients send media in the "
        'request. ["*"]: every host, also inside the cluster. See docs/serving/multimodal.md.',
        examples=[["images.example.com"]],
        max_length=64,
        json_schema_extra=SET,
    )


# spec.startCache: makes later starts faster.


class StartCache(ApiModel):
    """A volume that keeps compiled code, so that the next pod does not compile it again."""

    size: Quantity = knob(
        ...,
        description="Size of the PersistentVolumeClaim, NAME-start-cache, that the operator makes. It may grow where "
        "the storage class allows it.",
        examples=["2Gi"],
    )
    storage_class_name: ObjectName | None = knob(
        description="Storage class of the claim that the operator makes. Default: the cluster's own. It cannot be "
        "changed later.",
        examples=["fast-ssd"],
    )
    access_modes: Many[AccessMode] | None = knob(
        description="Access modes of the claim, as of model.cache. Default: [ReadWriteOnce], for pods of one node. "
        "They cannot be changed later.",
        examples=[["ReadWriteMany"]],
        min_length=1,
        max_length=3,
        json_schema_extra=SET,
        effective=["ReadWriteOnce"],
    )


# spec.adapters, spec.lora: LoRA adapters, each under a name of its own.

# No slash, unlike a model's name: it is also the name of a folder.
AdapterName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

# Shorter than a model's: a rule's cost grows with the longest uri times the number of adapters.
AdapterUri = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class Adapter(ApiModel):
    """One LoRA adapter of the model."""

    name: AdapterName = Field(
        description="Name that a request gives as `model` to get the adapter.", examples=["support"]
    )
    uri: AdapterUri = Field(
        description="Where the adapter comes from, in the forms of spec.model.uri.", examples=["s3://adapters/support"]
    )

    @property
    def source(self) -> Source:
        """The parsed uri; InvalidSpec."""
        return parse(self.uri, f"spec.adapters[{self.name}].uri")


class LoRA(ApiModel):
    """Room for adapters: fixed when a pod starts, while the adapters themselves may change."""

    max_loras: int | None = knob(
        description="Most different adapters in one step (--max-loras); requests for others wait. Each takes GPU "
        "memory. Default: 1.",
        examples=[4],
        bounds=(1, 256),
        flag="--max-loras",
        effective=1,
    )
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None = knob(
        description="Highest rank of an adapter (--max-lora-rank, r in adapter_config.json). A higher one takes more "
        "memory for all of them. Default: 16.",
        examples=[32],
        flag="--max-lora-rank",
        effective=16,
    )
    max_cpu_loras: int | None = knob(
        description="Most adapters that are kept in the pod's memory (--max-cpu-loras); more are loaded from their "
        "files again when they are asked for. At least maxLoras. Default: as many as maxLoras.",
        examples=[16],
        bounds=(1, 4096),
        flag="--max-cpu-loras",
        effective=lambda lora: lora.max_loras or 1,
    )


class LLMServiceSpec(ApiModel):
    """One model, served with vLLM behind an OpenAI-compatible endpoint. Only model.uri is required."""

    paused: bool = knob(
        False,
        description="Stop the operator from changing and repairing anything for this service; what runs goes on. For "
        "work by hand.",
        examples=[True],
    )
    model: Model = Field(description="The model: where it comes from and what clients call it.")
    fit_policy: Literal["Enforce", "Warn", "Ignore"] = knob(
        "Enforce",
        description="What happens when the model does not fit, by the plan: Enforce makes no pod and changes none; "
        "Warn starts it with Fits=False; Ignore plans nothing. A model of which too little is known is started. See "
        "docs/serving/fit.md.",
        examples=["Warn"],
    )
    precision: Precision = section(
        Precision,
        "What the weights and the KV cache are held in, and what vLLM computes in. Of weights, dtype and quantization "
        "set one; where you set more, they must agree. See docs/serving/precision.md.",
    )
    parallelism: Parallelism = section(
        Parallelism,
        "How one replica is spread over accelerators; it needs tensorParallelSize x pipelineParallelSize x "
        "dataParallelSize GPUs, all of one node unless nodes says more.",
    )
    batching: Batching = section(
        Batching,
        "Continuous batching and PagedAttention: how many requests share one step, how long each may be, which wait. "
        "vLLM's defaults suit most services; change maxModelLen when the KV cache is too small. See "
        "docs/serving/batching.md.",
    )
    attention: Attention = section(Attention, "Which kernels compute attention.")
    compilation: Compilation = section(
        Compilation, "How much vLLM compiles and records before it serves: a slower start for faster steps."
    )
    context_extension: ContextExtension | None = knob(
        description="Longer requests than the model was trained for, by rescaling its rotary position embeddings.",
        examples=[{"factor": 4}],
    )
    speculative_decoding: SpeculativeDecoding | None = knob(
        description="Several tokens a step: cheap guesses that the model checks all at once. The answers stay the "
        "same; whether they come faster depends on how many guesses are right.",
        examples=[{"method": "ngram", "numSpeculativeTokens": 4}],
        flag="--speculative-config",
    )
    adapters: Many[Adapter] = knob(
        (),
        description="LoRA adapters that are served beside the model, each under a name of its own. Adding and removing "
        "one restarts nothing, as long as lora (or another adapter) was there when the pods started.",
        examples=[[{"name": "support", "uri": "s3://adapters/support"}]],
        max_length=64,
        json_schema_extra=BY_NAME,
    )
    lora: LoRA | None = knob(
        description="What is kept free for adapters. Give it, even empty, to add the first adapter later without a "
        "restart.",
        examples=[{"maxLoras": 4, "maxLoraRank": 32}],
        flag="--enable-lora",
    )
    generation: Generation = section(Generation, "How answers are sampled, and what is read out of them.")
    multimodal: Multimodal = section(Multimodal, "Pictures, sound and video that clients send beside the text.")
    accelerator: Accelerator = section(
        Accelerator, "What the model runs on: the kind of device, which GPU products will do, and their memory."
    )
    start_cache: StartCache | None = knob(
        description="Keep compiled code and what else a start computes in a volume of this service alone, so that the "
        "next start of the same revision, image and device is faster. See docs/serving/start-time.md.",
        examples=[{"size": "2Gi"}],
    )
    scaling: Scaling = section(Scaling, "How many replicas serve; /scale sets it too.")
    rollout: Rollout = section(Rollout, "How a change that needs a restart replaces what serves.")
    drain: Drain = section(Drain, "How a replica that goes away treats the requests that it is working on.")
    endpoint: Endpoint = section(Endpoint, "The Service in front of the replicas; it has the LLMService's name.")
    routing: Routing = section(Routing, "Which replica a prompt goes to.")
    runtime: Runtime = section(Runtime, "The container that vLLM runs in.")
    pod_template: PodTemplate = section(
        PodTemplate, "What pods get beside what the operator renders, in PodTemplateSpec's own shape: a closed list."
    )

    @property
    def is_lora_on(self) -> bool:
        return bool(self.adapters) or self.lora is not None

    @property
    def sources(self) -> Mapping[str, Source]:
        """Parsed uris by field; InvalidSpec."""
        found = {"spec.model.uri": self.model.source}
        if self.draft_model is not None:
            found["spec.speculativeDecoding.model.uri"] = self.draft_model.source
        return found | {f"spec.adapters[{adapter.name}].uri": adapter.source for adapter in self.adapters}

    @property
    def draft_model(self) -> DraftModel | None:
        return None if self.speculative_decoding is None else self.speculative_decoding.model
