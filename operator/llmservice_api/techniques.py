"""spec.attention, spec.compilation, spec.contextExtension, spec.speculativeDecoding: how vLLM computes."""

from typing import Annotated, Literal

from pydantic import Field

from llmservice_api.base import ApiModel, Uri, knob
from llmservice_api.engine import MAX_TOKENS
from llmservice_api.model import Source, parse

_Flash = Literal["FLASH_ATTN", "FLASH_ATTN_DIFFKV", "FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE"]
_FlashInfer = Literal["FLASHINFER", "FLASHINFER_MLA", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM90"]
_FlashInferNew = Literal["FLASHINFER_MLA_SPARSE_SM120", "FLASHINFER_MLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV41"]
_FlashMLA = Literal["FLASHMLA", "FLASHMLA_SPARSE"]
_FlashMLANew = Literal["FLASHMLA_SPARSE_DSV4", "FLASHMLA_SPARSE_DSV41", "FLASHMLA_MEGA_ATTN_DSV41"]
_Triton = Literal["TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_FLASH_ATTN", "TRITON_FLASHINFER"]
_Latent = Literal["TRITON_MLA", "TRITON_MSA", "CUTLASS_MLA", "CUTLASS_MSA", "TOKENSPEED_MLA", "MINIMAX_M3_SPARSE"]
_Others = Literal["FLEX_ATTENTION", "HPC_ATTN", "B12X", "TURBOQUANT", "ULTRAQUANT"]
_Rocm = Literal["ROCM_ATTN", "ROCM_SEGMENTED_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN"]
_RocmMLA = Literal["ROCM_AITER_MLA", "ROCM_AITER_MLA_SPARSE", "ROCM_AITER_TRITON_MLA", "ROCM_FLASHMLA_SPARSE_DSV4"]
_Since33 = Literal["FLASH_ATTN_MLA_SPARSE_FA4", "STEP5_DSA", "ROCM_OCTAVE", "ROCM_FLASHMLA_SPARSE_DSV41"]
AttentionBackend = Literal[
    "auto",
    _Flash,
    _FlashInfer,
    _FlashInferNew,
    _FlashMLA,
    _FlashMLANew,
    _Triton,
    _Latent,
    _Others,
    _Rocm,
    _RocmMLA,
    _Since33,
]
CompilationMode = Literal["none", "stockTorchCompile", "dynamoTraceOnce", "vllmCompile"]
CudaGraphs = Literal["none", "piecewise", "full", "fullDecodeOnly", "fullAndPiecewise"]
SpeculativeMethod = Literal["ngram", "draftModel", "eagle", "eagle3", "medusa", "mtp"]


class Attention(ApiModel):
    """Which kernels compute attention."""

    backend: AttentionBackend = knob(
        "auto",
        description="vLLM's attention backend (--attention-backend). auto takes the fastest one that the GPU, the KV "
        "cache's type and the model allow. Name one to compare, or to get around a fault of another. CPUs have one of "
        "their own.",
        examples=["FLASHINFER"],
        flag="--attention-backend",
    )


class Compilation(ApiModel):
    """How much vLLM compiles and records before it serves: a slower start for faster steps."""

    enforce_eager: bool = knob(
        False,
        description="Compile nothing and record no CUDA graphs (--enforce-eager): the fastest start and the slowest "
        "steps. For trying things out, and where compiling fails.",
        examples=[True],
        flag="--enforce-eager",
    )
    mode: CompilationMode | None = knob(
        description="How the model is compiled (mode of --compilation-config): vllmCompile is vLLM's own pipeline, "
        "stockTorchCompile PyTorch's, dynamoTraceOnce traces the model once, none leaves it as it is. Default: by "
        "optimizationLevel.",
        examples=["vllmCompile"],
        flag="--compilation-config.mode",
    )
    cuda_graphs: CudaGraphs | None = knob(
        description="Which steps are recorded as CUDA graphs (cudagraph_mode of --compilation-config). none saves "
        "their memory and start time and costs time per token; piecewise leaves attention out, for backends that "
        "cannot be recorded. Default: by optimizationLevel and the attention backend.",
        examples=["piecewise"],
        flag="--compilation-config.cudagraph_mode",
    )
    optimization_level: Literal[0, 1, 2, 3] | None = knob(
        description="One knob for mode and cudaGraphs (--optimization-level): 0 starts fastest, higher levels run "
        "faster. Default: 2.",
        examples=[1],
        flag="--optimization-level",
        effective=2,
    )


class ContextExtension(ApiModel):
    """Longer requests than the model was trained for, by rescaling its rotary position embeddings."""

    method: Literal["yarn"] = knob(
        "yarn",
        description="How positions are rescaled: yarn. Only for models with rotary position embeddings.",
        examples=["yarn"],
    )
    factor: Annotated[float, Field(ge=1, le=64)] = Field(
        description="How many times longer: the new length is factor x the original length. Long factors cost "
        "accuracy on short texts; take the smallest one that reaches the length that you need.",
        examples=[4],
    )
    original_max_position_embeddings: int | None = knob(
        description="Length that the model was trained for. Default: read from the model's config.json.",
        examples=[32768],
        bounds=(1, MAX_TOKENS),
    )

    @property
    def argument(self) -> str:
        """METHOD:FACTOR[:ORIGINAL], an option of the supervisor."""
        original = self.original_max_position_embeddings
        return f"{self.method}:{self.factor:g}" + ("" if original is None else f":{original}")


class DraftModel(ApiModel):
    """The small model, or the heads, that guess tokens."""

    uri: Uri = Field(
        description="Where it comes from, in the forms of spec.model.uri.", examples=["hf://Qwen/Qwen2.5-0.5B-Instruct"]
    )

    @property
    def source(self) -> Source:
        """The parsed uri; InvalidSpec."""
        return parse(self.uri, "spec.speculativeDecoding.model.uri")


class SpeculativeDecoding(ApiModel):
    """Several tokens a step: cheap guesses that the model checks all at once."""

    method: SpeculativeMethod = Field(
        description="Who guesses: ngram looks the last tokens up in the prompt, for answers that repeat it; "
        "draftModel is a small model with the same vocabulary; eagle, eagle3 and medusa are heads that were trained "
        "for this model; mtp are the model's own prediction layers.",
        examples=["ngram"],
    )
    model: DraftModel | None = knob(
        description="The draft model or heads. Not with ngram; optional with mtp, whose layers are in the model.",
        examples=[{"uri": "hf://Qwen/Qwen2.5-0.5B-Instruct"}],
    )
    num_speculative_tokens: int = Field(
        description="Tokens that are guessed at a time. More help when most guesses are right (see the acceptance "
        "rate in the metrics), and cost time when they are not.",
        examples=[4],
        ge=1,
        le=64,
    )
    prompt_lookup_min: int | None = knob(
        description="Fewest tokens that must match for a guess. Only with ngram. Default: vLLM's (5, or "
        "promptLookupMax where that is given).",
        examples=[2],
        bounds=(1, 1024),
    )
    prompt_lookup_max: int | None = knob(
        description="Most tokens that are matched. Only with ngram. Default: vLLM's (5, or promptLookupMin where that "
        "is given).",
        examples=[4],
        bounds=(1, 1024),
    )
    draft_tensor_parallel_size: int | None = knob(
        description="Spread the draft model over this many GPUs: 1, or as many as tensorParallelSize. Default: as "
        "many.",
        examples=[1],
        bounds=(1, 64),
    )
