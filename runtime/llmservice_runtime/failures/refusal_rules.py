"""Rules for what vLLM refuses: by its words, and by the file that raised the error."""

from __future__ import annotations

from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.failures.rule import Place, Rule, rule

_PARTS = (
    "Choose a smaller spec.parallelism.tensorParallelSize, so that each GPU's part is a multiple of the number that "
    "the message names; for a mixture of experts set spec.parallelism.expertParallel: true, which splits no expert; or "
    "use a checkpoint that is quantized in smaller groups, or not at all."
)
_CAPABILITY = (
    "Choose a precision that this GPU can do: spec.precision.dtype: float16 before compute capability 8.0, another "
    "quantization, or another GPU in spec.accelerator.products."
)
_NO_LORA = "Remove spec.lora and spec.adapters: this vLLM serves no adapters with this model."

REFUSAL_RULES: tuple[Rule, ...] = (
    # The model and this vLLM.
    rule(
        R.REMOTE_CODE_REFUSED,
        "If you trust the model's own code, set spec.model.trustRemoteCode: true.",
        "trust_remote_code=True",
        "requires you to execute the ",
    ),
    rule(
        R.UNSUPPORTED_ARCHITECTURE,
        "This vLLM does not know the model's architecture: choose another model, or a newer vLLM in "
        "spec.runtime.image (and spec.runtime.version).",
        "Model architectures …are not supported for now",
        "does not recognize this architecture",
        "is not supported in-tree anymore",
        "and is not supported anymore. Please use an older version",
        "Cannot find model module.",
        "is not compatible with vLLM",
        "is not supported by ROCm for now",
        "failed to be inspected",
    ),
    # Shapes and precision.
    rule(
        R.PARALLELISM_MISMATCH,
        "Choose a spec.parallelism.tensorParallelSize that divides the model's attention heads "
        "and fits the GPUs of one node.",
        "must be divisible by tensor parallel size",
        "is larger than the number of available GPUs",
        "DP adjusted local rank",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        _PARTS,
        "is not divisible by weight quantization block_",
        "is not divisible by group_size",
        "is not divisible by min_thread_",
        "is not aligned with the quantized weight shape",
        "requires the MoE intermediate size per tensor-parallel partition",
        "requires input_size_per_partition (…to be divisible by",
        "requires intermediate_size_per_partition divisible by",
        "intermediate_size_per_partition=…must be divisible by",
        "must evenly divide both hidden size (",
        "which must be divisible by the OCP MX group size",
        "Input size per partition (…must be divisible by group size",
        "hidden and per-rank intermediate sizes must align to",
        "which is not divisible by the OCP MX group size",
        "Shared-expert intermediate size …must be divisible by tensor-parallel size",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        "Choose a spec.parallelism.tensorParallelSize of at most the number of experts that the message names; for "
        "more GPUs add replicas.",
        "Tensor parallel size …is greater than the number of experts",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        "Choose a spec.parallelism.tensorParallelSize that divides the numbers in the message: the model's attention "
        "heads, KV heads and groups.",
        "must be divisible by tp_size",
        "must be divisible by TP size",
        "must be divisible by tensor-parallel world size",
        "is not divisible by tp_size",
        "Tensor parallel world size must divide",
        "If tensor parallel world size does not divide",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        "Set spec.parallelism.expertParallel: true, or remove --moe-backend from spec.runtime.extraArgs.",
        "requires expert parallel. Enable it with",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        "Set spec.parallelism.pipelineParallelSize to 1: this model has no pipeline stages in vLLM.",
        "Pipeline parallelism is not supported for this model",
        "requires pipeline_parallel_size=1",
        "does not support pipeline parallelism",
        "pipeline parallel is not supported",
        "Pipeline parallel of models with multiple",
    ),
    rule(
        R.PARALLELISM_MISMATCH,
        "Set spec.parallelism.expertParallel to false: the model has no experts.",
        "Number of experts in the model must be greater than 0 when expert parallelism is enabled",
    ),
    rule(
        R.MAX_MODEL_LEN_TOO_LARGE,
        "Lower spec.batching.maxModelLen to what the model was made for, or set it to auto.",
        "User-specified max_model_len (…is greater than the derived max_model_len",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Raise spec.batching.maxNumBatchedTokens to at least the number that the message names, or lower "
        "spec.batching.maxModelLen or maxNumSeqs.",
        "max_num_batched_tokens (…is smaller than max_model_len (",
        "max_num_batched_tokens (…must be greater than or equal to max_num_seqs",
        "is larger than max_num_batched_tokens (",
        "does not have enough slots to schedule a token",
    ),
    rule(
        R.PACKAGE_MISSING,
        "bitsandbytes is a plugin of its own: set spec.runtime.image to an image that has it, or use a checkpoint of "
        "another quantization.",
        "Unknown quantization method: bitsandbytes",
        "Please install bitsandbytes",
    ),
    rule(
        R.QUANTIZATION_MISMATCH,
        "Leave spec.precision.quantization (and weights) unset where the checkpoint is quantized already: vLLM reads "
        "its method there. To quantize at load use spec.precision.weights: fp8.",
        "Quantization method specified in the model config",
        "Cannot find the config file for",
        "no longer supports online quantization",
        "is deprecated and will be removed in future versions of vLLM. To bypass",
    ),
    rule(
        R.QUANTIZATION_MISMATCH,
        "This vLLM does not have this quantization: use another checkpoint of the model, or an image whose vLLM has it "
        "in spec.runtime.image.",
        "Unknown quantization method",
        "(desc_act=True) is no longer supported",
        "activation ordering (actorder=…is no longer supported",
        "No compressed-tensors compatible scheme was found",
        "No quark compatible scheme was found",
        "No INC scheme found for layer config",
    ),
    rule(
        R.PRECISION_UNSUPPORTED,
        _CAPABILITY,
        "Bfloat16 is only supported on GPUs",
        "is not supported for the current GPU",
        "is not supported for quantization method",
        "quantization is currently not supported in",
        "does not support float16. Reason: ",
        "requires GPU compute capability",
        "requires a Blackwell (SM100) GPU",
        "requires SM100 GPUs",
        "requires an SM100-class GPU",
    ),
    rule(
        R.PRECISION_UNSUPPORTED,
        "No kernel of this vLLM computes these layers with this GPU, precision and parallelism. Remove --moe-backend "
        "and --linear-backend from spec.runtime.extraArgs and spec.adapters, if they are there; otherwise choose "
        "another GPU in spec.accelerator.products, a checkpoint of another quantization, or a newer vLLM in "
        "spec.runtime.image. VLLM_LOGGING_LEVEL=DEBUG in spec.runtime.env shows why each kernel was left out.",
        "MoE backend supports the deployment configuration",
        "No MXFP8 MoE backends available",
        "Failed to find a kernel that can implement the",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Remove --moe-backend and --linear-backend from spec.runtime.extraArgs: vLLM then takes one that can do it.",
        "moe_backend=…is not supported for",
        "moe_backend=…does not support activation=",
        "the explicitly requested moe_backend=",
        "--linear-backend=…was requested but no",
    ),
    rule(
        R.PRECISION_UNSUPPORTED,
        "Set spec.precision.kvCache to auto, or to a type that the message names.",
        "fp8_e5m2 kv-cache is not supported with fp8 checkpoints",
        "nvfp4 KV cache is not supported with MLA",
        "is incompatible with dtype=…Please set `--kv-cache-dtype`",
        "is not supported by MLA attention on CPU",
        "is not supported by the CPU attention backend on this host",
        "FP8 KV cache is not yet supported with KV transfer on CPU",
    ),
    rule(
        R.ATTENTION_UNSUPPORTED,
        "Remove spec.attention.backend: vLLM then takes one that can do it.",
        "Selected backend …is not valid for this configuration",
        "is not supported for vit attention",
        "Invalid attention backend for",
    ),
    rule(
        R.ATTENTION_UNSUPPORTED,
        "Choose a GPU with the compute capability that the message asks for in spec.accelerator.products, set "
        "spec.precision.kvCache to auto, or try a newer vLLM in spec.runtime.image.",
        "No valid attention backend found for",
        "No valid MLA prefill backend found",
        "No valid CPU MLA prefill backend found",
        "Sparse Attention is not supported on CPU",
    ),
    # What a model does not do.
    rule(
        R.INVALID_CONFIGURATION,
        "Set spec.model.runner to pooling, or leave it out: the model generates no text.",
        "This model does not support `--runner generate`",
        "Embedding models do not support `--runner",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Set spec.model.convert to what the message names, or spec.model.runner to generate.",
        "This model does not support `--runner pooling`",
        "does not support any pooling tasks",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        _NO_LORA,
        "LoRA is not supported for",
        "LoRA is not supported with moe_backend",
        "does not support LoRA yet",
        "is not supported for LoRA",
        "No supported LoRA modules found in",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Remove spec.batching.kvOffloadingSize: this model's KV cache cannot be moved out of the GPU.",
        "Encoder-decoder models are not currently supported with KV connectors",
        "does not support HMA but HMA is enabled",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Remove spec.speculativeDecoding, or choose a method that this model has.",
        "does not support EAGLE3 interface",
        "Unsupported speculative method",
        "MTP speculative decoding layer …weights missing from checkpoint",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Set spec.runtime.sleepMode to false.",
        "Sleep mode is not supported on current platform",
        "does not support sleep mode",
    ),
    rule(
        R.DRAFT_MODEL_MISMATCH,
        "Choose a draft model of the same family in spec.speculativeDecoding.model.uri, or remove "
        "spec.speculativeDecoding.",
        "Target and draft model should have the same vocabulary size",
        "requires `draft_vocab_size` to match the target vocabulary",
        "DFlash drafter expects",
        "model is configured for parallel drafting",
    ),
)

_REFUSALS = ("ValueError", "NotImplementedError", "TypeError", "ImportError", "FileNotFoundError")

# The first that matches; more specific folders first.
PLACES: tuple[Place, ...] = (
    Place(
        R.INVALID_CONFIGURATION,
        "Leave out what the message names: flags of Ray in spec.runtime.extraArgs, and VLLM_GPU_NIC_PCIE_MAPPING in "
        "spec.runtime.env. A replica is one pod, which needs neither.",
        ("v1/executor/ray", "v1/executor/vllm_net_devices.py"),
        (),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Leave the load format to vLLM: remove it from spec.runtime.extraArgs.",
        ("model_executor/model_loader/weight_cache/", "model_executor/model_loader/tensorizer"),
        (),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change spec.speculativeDecoding as the message says, or remove it.",
        ("config/speculative.py",),
        (*_REFUSALS, "AssertionError"),
    ),
    Place(
        R.PARALLELISM_MISMATCH,
        "Choose sizes in spec.parallelism that divide the numbers in the message.",
        ("distributed/utils.py",),
        ("ValueError", "AssertionError"),
    ),
    Place(
        R.COMMUNICATION_FAILED,
        "Set NCCL_DEBUG=INFO in spec.runtime.env and read the lines before the error.",
        ("distributed/utils.py", "distributed/device_communicators/pynccl"),
        ("RuntimeError",),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change the value that the message names: in spec.runtime.extraArgs or spec.runtime.env, or in the field that "
        "it comes from.",
        ("config/", "engine/arg_utils.py", "platforms/", "v1/executor/", "v1/engine/", "distributed/kv_transfer/"),
        (*_REFUSALS, "AttributeError"),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change the value that the message names: in spec.runtime.extraArgs, or in the field that it comes from.",
        ("config/",),
        ("AssertionError",),
    ),
    Place(
        R.QUANTIZATION_MISMATCH,
        "This vLLM cannot load this form of the quantization: use another checkpoint of the model, or another vLLM in "
        "spec.runtime.image; where spec.precision asks for it, leave it out there.",
        ("model_executor/layers/quantization/",),
        (),
    ),
    Place(
        R.ATTENTION_UNSUPPORTED,
        "Remove spec.attention.backend and set spec.precision.kvCache to auto; if it stays, try a newer vLLM in "
        "spec.runtime.image.",
        ("model_executor/layers/attention/", "v1/attention/"),
        (*_REFUSALS, "AssertionError", "RuntimeError"),
    ),
    Place(
        R.UNSUPPORTED_ARCHITECTURE,
        "This vLLM does not understand the model's config.json: choose another model, or a newer vLLM in "
        "spec.runtime.image (and spec.runtime.version).",
        ("model_executor/models/registry.py", "transformers_utils/"),
        (*_REFUSALS, "RuntimeError", "AssertionError"),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change how the weights are loaded (load format and its extra config in spec.runtime.extraArgs) as the message "
        "says, or leave it to vLLM.",
        ("model_executor/model_loader/",),
        (*_REFUSALS, "RuntimeError"),
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change spec.batching.blockSize, spec.precision.kvCache or spec.attention.backend as the message says, or "
        "leave them to vLLM.",
        ("v1/core/", "v1/worker/"),
        _REFUSALS,
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change spec.generation.toolCallParser, spec.generation.reasoningParser or the parser in "
        "spec.runtime.extraArgs to the one for the model's format, or remove it.",
        ("reasoning/", "tool_parsers/", "parser/"),
        _REFUSALS,
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change spec.speculativeDecoding as the message says, or remove it.",
        ("v1/spec_decode/",),
        _REFUSALS,
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Remove spec.batching.kvOffloadingSize, or change the connector's settings in spec.runtime.extraArgs as the "
        "message says.",
        ("v1/kv_offload/", "v1/simple_kv_offload/", "distributed/ec_transfer/"),
        _REFUSALS,
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "Change the value that the message names: in spec.runtime.extraArgs or spec.runtime.env, or in the field that "
        "it comes from.",
        ("entrypoints/", "envs.py", "compilation/"),
        _REFUSALS,
    ),
    Place(
        R.INVALID_CONFIGURATION,
        "vLLM does not run this model in this way. Leave out what the message names of spec.parallelism, "
        "spec.precision, spec.attention, spec.speculativeDecoding and spec.runtime.extraArgs; where it names nothing "
        "of them, use another checkpoint of the model, or another vLLM in spec.runtime.image.",
        ("model_executor/models/", "models/", "model_executor/layers/", "model_executor/kernels/"),
        (*_REFUSALS, "AssertionError"),
    ),
    Place(R.INVALID_CONFIGURATION, f"{_NO_LORA} Or change them as the message says.", ("lora/",), _REFUSALS),
)
