"""Reasons why a server ended, could not start, or has no model, each with its texts.

A row is everything that a reason needs beside its detection. `llmservice_api.reasons` adds the operator's own;
`docs/reference/reasons.md` is generated from both.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from llmservice_runtime.str_enum import StrEnum


class Ends(Enum):
    """How a failure can end."""

    BY_CHANGE = "somebody changes something: the spec, the model, the cluster"
    BY_RESTART = "a restart may end it; after a few it counts as BY_CHANGE"
    BY_TIME = "it may pass by itself; after ten minutes, or a few restarts, it counts as BY_CHANGE"
    OUTSIDE = "by itself, since its cause is outside of the pod; the number of restarts says nothing of it"


@dataclass(frozen=True)
class ReasonRow:
    """A reason's name and texts, in whole sentences with fields by their path."""

    section: Section
    word: str
    summary: str
    remedy: str
    look: str
    """What to look at."""
    ends: Ends


@dataclass(frozen=True)
class Section:
    """Reasons with the same way to investigate: a section of the page."""

    title: str
    look: str
    """What to look at, unless a row has its own text."""
    intro: str = ""

    def row(self, word: str, summary: str, remedy: str, *, look: str = "", ends: Ends = Ends.BY_CHANGE) -> ReasonRow:
        """A row of this section."""
        return ReasonRow(self, word, summary, remedy, look or self.look, ends)


class Explained(StrEnum):
    """CamelCase names that programs match on, each a `str` with its row. They are API and are not renamed."""

    _value_: str
    row: ReasonRow

    def __new__(cls, row: ReasonRow | str) -> Explained:
        """The member's value is the row's name: `FailureReason("InvalidFlag")` finds it."""
        assert isinstance(row, ReasonRow)  # Enum itself looks names up
        member = str.__new__(cls, row.word)
        member._value_ = row.word
        member.row = row
        return member

    @property
    def summary(self) -> str:
        return self.row.summary

    @property
    def remedy(self) -> str:
        return self.row.remedy


MODEL = Section(
    "The model",
    look="`status.failure.message`; of hf:// and buckets, `kubectl logs POD -c fetch` has the whole fetch.",
)
START = Section(
    "vLLM does not start",
    look="`status.failure.evidence`: the lines of vLLM's log that show it; `kubectl logs --previous` has them all.",
)
END = Section(
    "The server ends or stands still",
    look="`status.failure.evidence` and `kubectl logs --previous`; `kubectl get pods` counts the restarts.",
)
SPEC = Section(
    "The spec is refused",
    intro="Nothing was changed: what served before goes on serving. The condition Accepted and one Event say why. "
    "Only NameConflict is in `status.failure` and in the metrics of failures too: the others are not the "
    "cluster's.",
    look="The message, which names the field; `kubectl explain llms.spec`.",
)


class FailureReason(Explained):
    """What the supervisor, the preflight and the fetch container report."""

    MODEL_NOT_FOUND = MODEL.row(
        "ModelNotFound",
        "There is no model where spec.model.uri points.",
        "Check spec.model.uri: the repository and its revision, the claim and its path, or the path in the image.",
    )
    MODEL_ACCESS_DENIED = MODEL.row(
        "ModelAccessDenied",
        "The model hub gives this repository only to accounts that were granted access.",
        "Ask for access on the model's page, and give that account's token in spec.model.hfTokenSecretRef.",
        look="The model's page on the hub, signed in as the token's account.",
    )
    MODEL_REVISION_NOT_FOUND = MODEL.row(
        "ModelRevisionNotFound",
        "The repository exists, but not the revision that spec.model.uri names behind the @.",
        "Correct the branch, tag or commit behind the @, or leave it out for the default branch.",
    )
    MODEL_TOKEN_REFUSED = MODEL.row(
        "ModelTokenRefused",
        "The hub or the bucket's server does not accept the credentials that it was given.",
        "Put a valid token into the Secret that spec.model.hfTokenSecretRef names, or valid keys into the one of "
        "credentialsSecretRef in spec.model.s3, gcs or azure; the next start reads them.",
    )
    MODEL_DOWNLOAD_FAILED = MODEL.row(
        "ModelDownloadFailed",
        "The model could not be fetched: the hub was not reached, or the transfer broke off.",
        "Check the network, the proxy settings and HF_ENDPOINT in the operator's chart values; the pod tries again.",
        look="The message: which address it was, and what it answered.",
        ends=Ends.BY_RESTART,
    )
    FETCH_CONTAINER_FAILED = MODEL.row(
        "FetchContainerFailed",
        "The pod's container `fetch`, which fetches models and adapters, ended with an error or did not answer.",
        "See its log. Where it was OOMKilled, raise services.fetchMemoryGib in the operator's chart values. What was "
        "fetched is kept, and the fetch goes on from there.",
        look="`kubectl logs POD -c fetch --previous`; its last state in `kubectl describe pod POD`.",
        ends=Ends.BY_RESTART,
    )
    MODEL_CORRUPT = MODEL.row(
        "ModelCorrupt",
        "A file of the model is not what its source says it is: cut short, or with other content.",
        "Remove the file that the message names from the cache or the claim, or upload it again; what was fetched is "
        "checked and fetched anew at the next start.",
    )
    WEIGHTS_UNREADABLE = MODEL.row(
        "WeightsUnreadable",
        "A file of the model exists but cannot be read: its permissions, or it is damaged.",
        "Make the files readable for the container's user (chmod a+rX), or copy the model again.",
        look="The owner and mode of the file that the message names.",
    )
    UNSUPPORTED_ARCHITECTURE = MODEL.row(
        "UnsupportedArchitecture",
        "This version of vLLM does not know the model's architecture.",
        "Use a runtime image with a newer vLLM; models that bring their own code need spec.model.trustRemoteCode.",
        look="`architectures` in the model's config.json.",
    )
    REMOTE_CODE_REFUSED = MODEL.row(
        "RemoteCodeRefused",
        "The model brings code of its own, and that is not allowed to run.",
        "If you trust it, set spec.model.trustRemoteCode to true and pin a revision in spec.model.uri.",
    )
    STORAGE_FULL = MODEL.row(
        "StorageFull",
        "A volume or the node's disk is full.",
        "Give spec.model.cache a larger size, or free space on the node.",
    )
    INVALID_FLAG = START.row(
        "InvalidFlag",
        "vLLM refuses a flag or its value; the message quotes vLLM.",
        "Correct spec.runtime.extraArgs, or the field that the message names.",
    )
    INVALID_CONFIGURATION = START.row(
        "InvalidConfiguration",
        "vLLM refuses the flags in their combination, or together with this model; the message quotes vLLM.",
        "Change the field that the message names; `kubectl explain llms.spec` says what each is for.",
    )
    MAX_MODEL_LEN_TOO_LARGE = START.row(
        "MaxModelLenTooLarge",
        "spec.batching.maxModelLen is longer than the model allows.",
        "Lower spec.batching.maxModelLen to the length in the message, or remove it.",
    )
    QUANTIZATION_MISMATCH = START.row(
        "QuantizationMismatch",
        "This vLLM cannot load the checkpoint's quantization: spec.precision contradicts what the checkpoint declares, "
        "or vLLM does not have its method or its form of it; the message quotes vLLM.",
        "Remove spec.precision.quantization and let the checkpoint say it, or use a checkpoint of another method.",
    )
    PARALLELISM_MISMATCH = START.row(
        "ParallelismMismatch",
        "The model cannot be split as spec.parallelism says; the message quotes vLLM.",
        "Choose sizes that divide the model's heads and layers; the message names the numbers.",
    )
    CONTEXT_EXTENSION_INVALID = START.row(
        "ContextExtensionInvalid",
        "The model's context cannot be extended as spec.contextExtension asks.",
        "Remove spec.contextExtension for a model without rotary positions, or choose a factor that reaches "
        "spec.batching.maxModelLen; the message says which.",
    )
    DRAFT_MODEL_MISMATCH = START.row(
        "DraftModelMismatch",
        "The draft model does not speak the model's tokens: its tokenizer or vocabulary is another one.",
        "Choose a draft model of the same family in spec.speculativeDecoding.model.uri, or remove "
        "spec.speculativeDecoding.",
    )
    API_KEY_UNUSABLE = START.row(
        "APIKeyUnusable",
        "Clients are to show an API key, and the Secret holds no usable one, or vLLM answers without one.",
        "Put the keys, one a line, into the key of the Secret that spec.endpoint.apiKeySecretRef names; the next "
        "start reads them.",
        look="The message; whether the Secret's key is empty, or larger than 64 KiB or 256 keys.",
    )
    VERSION_MISMATCH = START.row(
        "VersionMismatch",
        "The image holds another vLLM version than the one that its flags were made for.",
        "Set spec.runtime.version to the version in the message, or use an image that holds the expected one.",
    )
    PACKAGE_MISSING = START.row(
        "PackageMissing",
        "The image lacks a Python package that the model, or a feature that the spec asks for, needs.",
        "Set spec.runtime.image to one that has the package that the message names (vLLM's image with `pip install` on "
        "top), or do without what needs it, such as a checkpoint of another quantization.",
    )
    ENGINE_MISSING = START.row(
        "EngineMissing",
        "The image holds no vLLM, or one that does not start.",
        "Set spec.runtime.image to an image with vLLM in it.",
    )
    KV_CACHE_TOO_SMALL = START.row(
        "KVCacheTooSmall",
        "After the weights, too little memory is left for the KV cache of one request of full length.",
        "Lower spec.batching.maxModelLen (or set it to auto), raise spec.accelerator.gpuMemoryUtilization, choose a "
        "smaller spec.precision, or spread the model with spec.parallelism.tensorParallelSize.",
    )
    GPU_OUT_OF_MEMORY = START.row(
        "GPUOutOfMemory",
        "The accelerator's memory ran out.",
        "Lower spec.accelerator.gpuMemoryUtilization or spec.batching.maxNumBatchedTokens, choose a smaller "
        "spec.precision, or raise spec.parallelism.tensorParallelSize.",
    )
    GPU_MEMORY_BUSY = START.row(
        "GPUMemoryBusy",
        "Something else holds memory of the GPU, so that vLLM's share is not free.",
        "End what else runs on that GPU, or lower spec.accelerator.gpuMemoryUtilization to what is free.",
        ends=Ends.BY_RESTART,
    )
    ACCELERATOR_MISSING = START.row(
        "AcceleratorMissing",
        "The container sees fewer accelerators than it needs, or none.",
        "Check the node's driver and device plugin, spec.accelerator and spec.podTemplate.spec.runtimeClassName.",
    )
    ATTENTION_UNSUPPORTED = START.row(
        "AttentionUnsupported",
        "None of vLLM's attention backends, or not the one in spec.attention.backend, computes this model's attention "
        "on this GPU in the precision that is asked for; the message says of each why not.",
        "Remove spec.attention.backend, set spec.precision.kvCache to auto, or choose a GPU in "
        "spec.accelerator.products with the compute capability that the message asks for.",
    )
    CPU_FEATURE_MISSING = START.row(
        "CPUFeatureMissing",
        "The CPU lacks an instruction set that vLLM needs for what the spec asks for, such as AVX-512 or AMX for an "
        "fp8 KV cache. It is found by the labels of node-feature-discovery before a pod is made, by the preflight in "
        "the pod, or in vLLM's log.",
        "Do without what the message names (spec.precision), or place the pods on nodes that have it with "
        "spec.podTemplate.spec.nodeSelector.",
        look="`kubectl get nodes -L feature.node.kubernetes.io/cpu-cpuid.AVX512F`, or `/proc/cpuinfo` of the node.",
    )
    DRIVER_MISMATCH = START.row(
        "DriverMismatch",
        "The node's GPU driver, the image's CUDA and the GPU do not go together; the message quotes what says so, with "
        "both versions where they are known.",
        "Install a newer driver on the node, or set spec.runtime.image to an image that is built for the CUDA of the "
        "node's driver and for its GPU.",
        look="`nvidia-smi` on the node: its driver, and the newest CUDA that this one can run; `kubectl describe pod "
        "POD`, where nothing of the container has run.",
    )
    ACCELERATOR_FAULT = START.row(
        "AcceleratorFault",
        "The driver reported a fault of an accelerator's hardware: its memory, its links, or that it is lost.",
        "Look at the node's kernel log for Xid messages and take the node out of service if they come back.",
        look="The node's kernel log (`dmesg | grep -i xid`).",
    )
    KERNEL_FAILED = START.row(
        "KernelFailed",
        "A computation on the accelerator failed, mostly by a fault of software: values that a kernel does not take, "
        "or a defect in it. An illegal memory access can also come from memory of the GPU that is failing.",
        "Try another vLLM version in spec.runtime.image or another spec.attention.backend, and check that tokenizer, "
        "draft model and adapters belong to the model. Suspect the GPU only if it happens on one node alone and its "
        "kernel log has Xid messages.",
        look="`status.failure.evidence`; CUDA_LAUNCH_BLOCKING=1 in spec.runtime.env shows which call fails.",
        ends=Ends.BY_RESTART,
    )
    COMMUNICATION_FAILED = START.row(
        "CommunicationFailed",
        "The processes of one replica could not exchange data between their GPUs (NCCL, RCCL).",
        "Set NCCL_DEBUG=INFO in spec.runtime.env and read the lines before the error. NCCL_P2P_DISABLE=1 shows whether "
        "it is the direct way between the GPUs.",
        look="`kubectl logs --previous`: the lines with NCCL WARN; `nvidia-smi topo -m` on the node.",
        ends=Ends.BY_RESTART,
    )
    COMPILATION_FAILED = START.row(
        "CompilationFailed",
        "Compiling the model's kernels failed.",
        "Set spec.compilation.enforceEager to true, or use an image that brings the compiler that the message names.",
    )
    SHARED_MEMORY_TOO_SMALL = START.row(
        "SharedMemoryTooSmall",
        "The processes of one replica ran out of shared memory in /dev/shm.",
        "Raise the memory limit in spec.runtime.resources: the shared memory counts against it.",
    )
    SMOKE_REQUEST_FAILED = START.row(
        "SmokeRequestFailed",
        "vLLM said that it was healthy, but the first request failed; the message quotes it.",
        "Read status.failure.evidence; an image, a driver or a precision that does not suit the hardware is the "
        "usual cause.",
        ends=Ends.BY_RESTART,
    )
    START_TIMEOUT = START.row(
        "StartTimeout",
        "The model was not ready within its start budget, and then nothing moved any more; or it moved, and took "
        "longer than any start may.",
        "Read the pod's log for the step that is slow; a spec.model.cache avoids fetching the model again.",
        look="`status.progress` while it starts; `kubectl logs --previous` for the step that took long.",
        ends=Ends.BY_RESTART,
    )
    STARTUP_FAILED = START.row(
        "StartupFailed",
        "vLLM ended before it served, for a cause that is not recognised; the message has its last words.",
        "Read status.failure.evidence and `kubectl logs --previous` of the pod.",
    )
    MEMORY_LIMIT_EXCEEDED = END.row(
        "MemoryLimitExceeded",
        "The container went over its memory limit and was killed.",
        "Raise the memory limit in spec.runtime.resources.",
        look="`kubectl top pod`, beside the memory limit in `status.effective` or the pod.",
    )
    ENGINE_DIED = END.row(
        "EngineDied",
        "vLLM's engine ended by itself; the message has its last words.",
        "Read status.failure.evidence and `kubectl logs --previous`; the container is started again.",
        ends=Ends.BY_RESTART,
    )
    GROUP_MEMBER_LOST = END.row(
        "GroupMemberLost",
        "A pod of a replica over several nodes is gone, started anew, or is not heard of any more; without it no other "
        "can serve. All of them start vLLM again as soon as each is there.",
        "Look at the pod that the message names, and at its node and network: the others wait for it.",
        look="`llmservice status` for the replica's pods and nodes; `kubectl describe pod` of the one that is named.",
        ends=Ends.BY_RESTART,
    )
    LEADER_ADDRESS_UNRESOLVED = START.row(
        "LeaderAddressUnresolved",
        "A pod of a replica over several nodes did not reach the pod of rank 0 within the start's budget: its name is "
        "not resolved, nothing answers there, or it does not take this pod for a member.",
        "Check that the pod of rank 0 runs, that the cluster's DNS resolves the name in the message, and that policies "
        "let the replica's pods reach each other on port 8083.",
        ends=Ends.BY_RESTART,
    )
    ENGINE_HUNG = END.row(
        "EngineHung",
        "Requests are running and the engine makes no progress: the pod is not ready, and its container is started "
        "again if it stays so.",
        "If it comes back on one node, look there for GPU errors (Xid messages in the kernel's log); else lower "
        "spec.batching.maxNumSeqs, set spec.compilation.enforceEager: true, or try another vLLM version with "
        "spec.runtime.image.",
        look="`kubectl logs`, with `--previous` after the restart, for the last lines before it stood still.",
        ends=Ends.BY_RESTART,
    )
    ILLEGAL_INSTRUCTION = END.row(
        "IllegalInstruction",
        "vLLM used an instruction that this CPU does not have.",
        "Set spec.precision.dtype to float32; 16-bit types need spec.compilation.enforceEager false on some CPUs. Or "
        "place the pods on nodes with AVX-512 with spec.podTemplate.spec.nodeSelector, or use an image that was "
        "built for these CPUs in spec.runtime.image.",
    )
    PRECISION_UNSUPPORTED = SPEC.row(
        "PrecisionUnsupported",
        "The accelerator cannot compute in the precision that the spec asks for.",
        "Choose another spec.precision, or a spec.accelerator.products that can.",
    )
