"""spec: everything that a user says about one model service."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from llmservice_operator.api.adapters import Adapter, LoRA
from llmservice_operator.api.base import BY_NAME, ApiModel, Many, knob, section
from llmservice_operator.api.engine import Accelerator, Batching, Parallelism, Precision
from llmservice_operator.api.generation import Generation
from llmservice_operator.api.lifecycle import Drain, Endpoint, Rollout, Scaling
from llmservice_operator.api.model import Model
from llmservice_operator.api.multimodal import Multimodal
from llmservice_operator.api.runtime import PodTemplate, Runtime
from llmservice_operator.api.start_cache import StartCache
from llmservice_operator.api.techniques import Attention, Compilation, ContextExtension, DraftModel, SpeculativeDecoding
from llmservice_operator.api.uri import Source


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
        "dataParallelSize GPUs, all of one node.",
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
    runtime: Runtime = section(Runtime, "The container that vLLM runs in.")
    pod_template: PodTemplate = section(
        PodTemplate, "What pods get beside what the operator renders, in PodTemplateSpec's own shape: a closed list."
    )

    @property
    def is_lora_on(self) -> bool:
        """Whether vLLM is started so that it can serve adapters."""
        return bool(self.adapters) or self.lora is not None

    @property
    def sources(self) -> Mapping[str, Source]:
        """Parsed uris by field; raises InvalidSpec."""
        found = {"spec.model.uri": self.model.source}
        if self.draft_model is not None:
            found["spec.speculativeDecoding.model.uri"] = self.draft_model.source
        return found | {f"spec.adapters[{adapter.name}].uri": adapter.source for adapter in self.adapters}

    @property
    def draft_model(self) -> DraftModel | None:
        """The draft model, where speculation asks for one."""
        return None if self.speculative_decoding is None else self.speculative_decoding.model
