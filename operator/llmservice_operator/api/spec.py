"""spec: everything that a user says about one model service."""

from pydantic import Field

from llmservice_operator.api.base import ApiModel, knob, section
from llmservice_operator.api.engine import Accelerator, Batching, Parallelism, Precision
from llmservice_operator.api.lifecycle import Drain, Endpoint, Rollout, Scaling
from llmservice_operator.api.model import Model
from llmservice_operator.api.runtime import PodTemplate, Runtime


class LLMServiceSpec(ApiModel):
    """One model, served with vLLM behind an OpenAI-compatible endpoint. Only model.uri is required."""

    paused: bool = knob(
        False,
        description="Stop the operator from changing and repairing anything for this service; what runs goes on. For "
        "work by hand.",
        examples=[True],
    )
    model: Model = Field(description="The model: where it comes from and what clients call it.")
    precision: Precision = section(
        Precision, "What the weights and the KV cache are held in, and what vLLM computes in."
    )
    parallelism: Parallelism = section(
        Parallelism,
        "How one replica is spread over accelerators; it needs tensorParallelSize x pipelineParallelSize x "
        "dataParallelSize GPUs, all of one node.",
    )
    batching: Batching = section(
        Batching,
        "Continuous batching and PagedAttention: how many requests share one step of the engine, how long each may "
        "be, and what happens to those that wait. vLLM's defaults suit most services; touch maxModelLen when the KV "
        "cache is too small, and maxNumSeqs or maxNumBatchedTokens to trade throughput for latency.",
    )
    accelerator: Accelerator = section(Accelerator, "What the model runs on.")
    scaling: Scaling = section(Scaling, "How many replicas serve.")
    rollout: Rollout = section(Rollout, "How a change that needs a restart replaces what serves.")
    drain: Drain = section(Drain, "How a replica that goes away treats the requests that it is working on.")
    endpoint: Endpoint = section(Endpoint, "The Service in front of the replicas; it has the LLMService's name.")
    runtime: Runtime = section(Runtime, "The container that vLLM runs in.")
    pod_template: PodTemplate = section(
        PodTemplate, "What pods get beside what the operator renders, in PodTemplateSpec's own shape: a closed list."
    )
