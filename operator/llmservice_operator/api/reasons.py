"""Every reason that a condition, an event or a failure may carry; each one is explained here and nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Reason(StrEnum):
    """CamelCase words that machines match on. They are API: none is renamed."""

    # the object itself
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    NAME_CONFLICT = "NameConflict"
    PRECISION_UNSUPPORTED = "PrecisionUnsupported"
    TENSOR_PARALLEL_SIZE_INVALID = "TensorParallelSizeInvalid"
    UNSUPPORTED_COMBINATION = "UnsupportedCombination"
    UNKNOWN_FLAG = "UnknownFlag"
    UNKNOWN_VERSION = "UnknownVersion"
    # the plan
    FITS = "Fits"
    TIGHT = "Tight"
    DOES_NOT_FIT = "DoesNotFit"
    INSPECTING_MODEL = "InspectingModel"
    FACTS_MISSING = "FactsMissing"
    POLICY_IGNORE = "PolicyIgnore"
    # the rollout
    ROLLED_OUT = "RolledOut"
    PAUSED = "Paused"
    PROGRESSING = "Progressing"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid"
    STARTING = "Starting"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    SCALED_TO_ZERO = "ScaledToZero"
    REPLICAS_READY = "ReplicasReady"
    NO_REPLICA_READY = "NoReplicaReady"
    QUOTA_EXCEEDED = "QuotaExceeded"
    ADMISSION_REFUSED = "AdmissionRefused"
    DELETING = "Deleting"
    ADAPTER_NOT_SERVED = "AdapterNotServed"
    # what the supervisor found; the same words as llmservice_runtime.contract.FailureReason
    INVALID_FLAG = "InvalidFlag"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_ACCESS_DENIED = "ModelAccessDenied"
    MODEL_REVISION_NOT_FOUND = "ModelRevisionNotFound"
    MODEL_TOKEN_REFUSED = "ModelTokenRefused"
    MODEL_DOWNLOAD_FAILED = "ModelDownloadFailed"
    MODEL_CORRUPT = "ModelCorrupt"
    WEIGHTS_UNREADABLE = "WeightsUnreadable"
    UNSUPPORTED_ARCHITECTURE = "UnsupportedArchitecture"
    REMOTE_CODE_REFUSED = "RemoteCodeRefused"
    MAX_MODEL_LEN_TOO_LARGE = "MaxModelLenTooLarge"
    KV_CACHE_TOO_SMALL = "KVCacheTooSmall"
    GPU_OUT_OF_MEMORY = "GPUOutOfMemory"
    GPU_MEMORY_BUSY = "GPUMemoryBusy"
    ACCELERATOR_MISSING = "AcceleratorMissing"
    ACCELERATOR_FAULT = "AcceleratorFault"
    QUANTIZATION_MISMATCH = "QuantizationMismatch"
    PARALLELISM_MISMATCH = "ParallelismMismatch"
    CONTEXT_EXTENSION_INVALID = "ContextExtensionInvalid"
    DRAFT_MODEL_MISMATCH = "DraftModelMismatch"
    COMPILATION_FAILED = "CompilationFailed"
    ILLEGAL_INSTRUCTION = "IllegalInstruction"
    MEMORY_LIMIT_EXCEEDED = "MemoryLimitExceeded"
    STORAGE_FULL = "StorageFull"
    SHARED_MEMORY_TOO_SMALL = "SharedMemoryTooSmall"
    VERSION_MISMATCH = "VersionMismatch"
    ENGINE_MISSING = "EngineMissing"
    START_TIMEOUT = "StartTimeout"
    SMOKE_REQUEST_FAILED = "SmokeRequestFailed"
    ENGINE_HUNG = "EngineHung"
    ENGINE_DIED = "EngineDied"
    STARTUP_FAILED = "StartupFailed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class ReasonDoc:
    """What happened, and what to do about it."""

    summary: str
    remedy: str


_DOCS = {
    Reason.VALID: ReasonDoc(
        "The spec is valid and nothing else owns the names that the service needs.",
        "Nothing to do.",
    ),
    Reason.INVALID_SPEC: ReasonDoc(
        "The spec says something that the operator cannot act on; the message names the field.",
        "Change the field that the message names. Whatever served before goes on serving.",
    ),
    Reason.NAME_CONFLICT: ReasonDoc(
        "An object with a name that this service needs exists and belongs to somebody else.",
        "Rename or delete the object that the message names, or give the LLMService another name.",
    ),
    Reason.PRECISION_UNSUPPORTED: ReasonDoc(
        "The accelerator cannot compute in the precision that the spec asks for.",
        "Choose another spec.precision, or a spec.accelerator.product that can.",
    ),
    Reason.TENSOR_PARALLEL_SIZE_INVALID: ReasonDoc(
        "The tensor-parallel size does not divide the model's attention heads.",
        "Set spec.parallelism.tensorParallelSize to a divisor; the message lists those that work.",
    ),
    Reason.UNSUPPORTED_COMBINATION: ReasonDoc(
        "Two things that the spec asks for do not go together in vLLM, or not on this accelerator.",
        "Change one of the fields that the message names; docs/reference/compatibility.md lists every such pair.",
    ),
    Reason.UNKNOWN_FLAG: ReasonDoc(
        "spec.runtime.extraArgs holds a flag that this version of vLLM does not have, or an ambiguous abbreviation.",
        "Correct the flag, or set spec.runtime.version to the vLLM version that has it.",
    ),
    Reason.UNKNOWN_VERSION: ReasonDoc(
        "The operator has no table of flags for the vLLM version that spec.runtime names.",
        "Use a version that the message lists, or set spec.runtime.version to the one that the image is built from.",
    ),
    Reason.FITS: ReasonDoc(
        "By the plan, the model and the KV cache of its longest request fit into the accelerator's memory.",
        "Nothing to do; status.plan has the figures.",
    ),
    Reason.TIGHT: ReasonDoc(
        "By the plan it fits, or does not, by less than the plan's own error: it may start or not.",
        "Nothing to do if it starts. For a sure start lower spec.batching.maxModelLen to status.plan.maxModelLen, or "
        "take one of status.plan.remedies.",
    ),
    Reason.DOES_NOT_FIT: ReasonDoc(
        "By the plan, the model or the KV cache of one request of full length is larger than the accelerator's memory; "
        "the message has the figures. With fitPolicy Enforce no pod is made or changed, and what serves goes on.",
        "Make one of the changes in status.plan.remedies, each with a patch for `kubectl patch llms NAME --type "
        "merge -p`, or set spec.fitPolicy to Warn to try it all the same.",
    ),
    Reason.INSPECTING_MODEL: ReasonDoc(
        "A short Job reads the model's config.json and the headers of its weights; the rollout waits for it.",
        "Wait: two minutes at most, and half a minute when its pod cannot run. Facts in spec.model.architecture make "
        "it unnecessary.",
    ),
    Reason.FACTS_MISSING: ReasonDoc(
        "Too little is known to say whether the model fits; the message says what is missing. It is started all the "
        "same.",
        "Give what the message names: facts of the model in spec.model.architecture, the GPU in "
        "spec.accelerator.product or spec.accelerator.memory, or the right to list nodes.",
    ),
    Reason.POLICY_IGNORE: ReasonDoc(
        "spec.fitPolicy is Ignore, so nothing was planned.",
        "Set spec.fitPolicy to Warn or Enforce to have the next revision planned.",
    ),
    Reason.ROLLED_OUT: ReasonDoc(
        "Every replica runs the current generation and answers.",
        "Nothing to do.",
    ),
    Reason.PAUSED: ReasonDoc(
        "spec.paused is true: the operator changes and repairs nothing.",
        "Set spec.paused to false to have the spec carried out again.",
    ),
    Reason.PROGRESSING: ReasonDoc(
        "A rollout is under way and its pods are being made or replaced.",
        "Wait; the message says which step it is at.",
    ),
    Reason.UNSCHEDULABLE: ReasonDoc(
        "The scheduler finds no node with room for a pod; the message quotes it.",
        "Free or add nodes with the accelerator that is asked for, or change spec.accelerator, spec.parallelism, "
        "spec.runtime.resources or the placement fields in spec.podTemplate.spec.",
    ),
    Reason.IMAGE_PULL_FAILED: ReasonDoc(
        "A node cannot pull the runtime image.",
        "Check spec.runtime.image, and spec.runtime.imagePullSecrets where the registry asks for a login.",
    ),
    Reason.CONTAINER_CONFIG_INVALID: ReasonDoc(
        "The kubelet cannot set a container up: a Secret, ConfigMap, key or volume that it needs is missing.",
        "Create what the message names, or correct the reference to it in the spec.",
    ),
    Reason.STARTING: ReasonDoc(
        "Pods run and the model is being fetched or loaded.",
        "Wait; the message says what the pod is doing. Loading a large model takes minutes.",
    ),
    Reason.PROGRESS_DEADLINE_EXCEEDED: ReasonDoc(
        "A rollout made no progress for longer than its deadline.",
        "See status.failure and the pod's log; correct the spec, or raise spec.rollout.progressDeadlineSeconds.",
    ),
    Reason.SCALED_TO_ZERO: ReasonDoc(
        "spec.scaling.replicas is 0, so nothing serves.",
        "Set spec.scaling.replicas to 1 or more, or `kubectl scale llms/NAME --replicas=1`.",
    ),
    Reason.REPLICAS_READY: ReasonDoc(
        "At least one replica answers.",
        "Nothing to do.",
    ),
    Reason.NO_REPLICA_READY: ReasonDoc(
        "No replica answers.",
        "See the Ready condition and status.failure for the cause.",
    ),
    Reason.QUOTA_EXCEEDED: ReasonDoc(
        "A ResourceQuota of the namespace refuses the pods.",
        "Ask for less in spec.runtime.resources, or have the quota that the message names raised.",
    ),
    Reason.ADMISSION_REFUSED: ReasonDoc(
        "The API server or an admission webhook refuses an object that the service needs; the message quotes it.",
        "Change the field or the policy that the message names.",
    ),
    Reason.DELETING: ReasonDoc(
        "The LLMService is being deleted.",
        "Nothing to do.",
    ),
    Reason.ADAPTER_NOT_SERVED: ReasonDoc(
        "An adapter of the spec cannot be served; the model and the other adapters are. Seen in Events only.",
        "Do what the message and status.adapters say; the server tries again by itself.",
    ),
    Reason.INVALID_FLAG: ReasonDoc(
        "vLLM refuses a flag or its value; the message quotes vLLM.",
        "Correct spec.runtime.extraArgs, or the field that the message names.",
    ),
    Reason.INVALID_CONFIGURATION: ReasonDoc(
        "vLLM refuses the flags in their combination, or together with this model; the message quotes vLLM.",
        "Change the field that the message names; `kubectl explain llms.spec` says what each is for.",
    ),
    Reason.MODEL_NOT_FOUND: ReasonDoc(
        "There is no model where spec.model.uri points.",
        "Check spec.model.uri: the repository and its revision, the claim and its path, or the path in the image.",
    ),
    Reason.MODEL_ACCESS_DENIED: ReasonDoc(
        "The model hub gives this repository only to accounts that were granted access.",
        "Ask for access on the model's page, and give that account's token in spec.model.tokenSecretRef.",
    ),
    Reason.MODEL_REVISION_NOT_FOUND: ReasonDoc(
        "The repository exists, but not the revision that spec.model.uri names behind the @.",
        "Correct the branch, tag or commit behind the @, or leave it out for the default branch.",
    ),
    Reason.MODEL_TOKEN_REFUSED: ReasonDoc(
        "The hub or the S3 server does not know the credentials that it was given.",
        "Put a valid token into the Secret that spec.model.tokenSecretRef names, or valid keys into the one of "
        "spec.model.s3.credentialsSecretRef; the next start reads them.",
    ),
    Reason.MODEL_CORRUPT: ReasonDoc(
        "A file of the model is not what its source says it is: cut short, or with other content.",
        "Remove the file that the message names from the cache or the claim, or upload it again; what was fetched is "
        "checked and fetched anew at the next start.",
    ),
    Reason.MODEL_DOWNLOAD_FAILED: ReasonDoc(
        "The model could not be fetched: the hub was not reached, or the transfer broke off.",
        "Check the network, the proxy settings and HF_ENDPOINT in the operator's chart values; the pod tries again.",
    ),
    Reason.WEIGHTS_UNREADABLE: ReasonDoc(
        "A file of the model exists but cannot be read: its permissions, or it is damaged.",
        "Make the files readable for the container's user (chmod a+rX), or copy the model again.",
    ),
    Reason.UNSUPPORTED_ARCHITECTURE: ReasonDoc(
        "This version of vLLM does not know the model's architecture.",
        "Use a runtime image with a newer vLLM; models that bring their own code need spec.model.trustRemoteCode.",
    ),
    Reason.REMOTE_CODE_REFUSED: ReasonDoc(
        "The model brings code of its own, and that is not allowed to run.",
        "If you trust it, set spec.model.trustRemoteCode to true and pin a revision in spec.model.uri.",
    ),
    Reason.MAX_MODEL_LEN_TOO_LARGE: ReasonDoc(
        "spec.batching.maxModelLen is longer than the model allows.",
        "Lower spec.batching.maxModelLen to the length in the message, or remove it.",
    ),
    Reason.KV_CACHE_TOO_SMALL: ReasonDoc(
        "After the weights, too little memory is left for the KV cache of one request of full length.",
        "Lower spec.batching.maxModelLen (or set it to auto), raise spec.accelerator.gpuMemoryUtilization, "
        "choose a smaller spec.precision, or spread the model with spec.parallelism.tensorParallelSize.",
    ),
    Reason.GPU_OUT_OF_MEMORY: ReasonDoc(
        "The accelerator's memory ran out.",
        "Lower spec.accelerator.gpuMemoryUtilization or spec.batching.maxNumBatchedTokens, choose a smaller "
        "spec.precision, or raise spec.parallelism.tensorParallelSize.",
    ),
    Reason.GPU_MEMORY_BUSY: ReasonDoc(
        "Something else holds memory of the GPU, so that vLLM's share is not free.",
        "End what else runs on that GPU, or lower spec.accelerator.gpuMemoryUtilization to what is free.",
    ),
    Reason.ACCELERATOR_MISSING: ReasonDoc(
        "The container sees fewer accelerators than it needs, or none.",
        "Check the node's driver and device plugin, spec.accelerator and spec.podTemplate.spec.runtimeClassName.",
    ),
    Reason.ACCELERATOR_FAULT: ReasonDoc(
        "The driver reported a fault of an accelerator.",
        "Look at the node's kernel log for Xid messages and take the node out of service if they come back.",
    ),
    Reason.QUANTIZATION_MISMATCH: ReasonDoc(
        "spec.precision contradicts the quantization that the checkpoint declares, or that it does not have.",
        "Remove spec.precision.quantization and let the checkpoint say it, or use a checkpoint of that method.",
    ),
    Reason.PARALLELISM_MISMATCH: ReasonDoc(
        "The model cannot be split as spec.parallelism says; the message quotes vLLM.",
        "Choose sizes that divide the model's heads and layers; the message names the numbers.",
    ),
    Reason.CONTEXT_EXTENSION_INVALID: ReasonDoc(
        "The model's context cannot be extended as spec.contextExtension asks.",
        "Remove spec.contextExtension for a model without rotary positions, or choose a factor that reaches "
        "spec.batching.maxModelLen; the message says which.",
    ),
    Reason.DRAFT_MODEL_MISMATCH: ReasonDoc(
        "The draft model does not speak the model's tokens: its tokenizer or vocabulary is another one.",
        "Choose a draft model of the same family in spec.speculativeDecoding.model.uri, or remove "
        "spec.speculativeDecoding.",
    ),
    Reason.COMPILATION_FAILED: ReasonDoc(
        "Compiling the model's kernels failed.",
        "Set spec.compilation.enforceEager to true, or use an image that brings the compiler that the message names.",
    ),
    Reason.ILLEGAL_INSTRUCTION: ReasonDoc(
        "vLLM used an instruction that this CPU does not have.",
        "Set spec.precision.dtype to float32, or place the pods on newer CPUs with spec.podTemplate.spec.nodeSelector.",
    ),
    Reason.MEMORY_LIMIT_EXCEEDED: ReasonDoc(
        "The container went over its memory limit and was killed.", "Raise the memory limit in spec.runtime.resources."
    ),
    Reason.STORAGE_FULL: ReasonDoc(
        "A volume or the node's disk is full.", "Give spec.model.cache a larger size, or free space on the node."
    ),
    Reason.SHARED_MEMORY_TOO_SMALL: ReasonDoc(
        "The processes of one replica ran out of shared memory in /dev/shm.",
        "Raise the memory limit in spec.runtime.resources: the shared memory counts against it.",
    ),
    Reason.VERSION_MISMATCH: ReasonDoc(
        "The image holds another vLLM version than the one that its flags were made for.",
        "Set spec.runtime.version to the version in the message, or use an image that holds the expected one.",
    ),
    Reason.ENGINE_MISSING: ReasonDoc(
        "The image holds no vLLM, or one that does not start.", "Set spec.runtime.image to an image with vLLM in it."
    ),
    Reason.START_TIMEOUT: ReasonDoc(
        "The model was not ready within its start budget.",
        "Read the pod's log for the step that is slow; a spec.model.cache avoids fetching the model again.",
    ),
    Reason.SMOKE_REQUEST_FAILED: ReasonDoc(
        "vLLM said that it was healthy, but the first request failed; the message quotes it.",
        "Read status.failure.evidence; an image, a driver or a precision that does not suit the hardware is "
        "the usual cause.",
    ),
    Reason.ENGINE_HUNG: ReasonDoc(
        "Requests were running and the engine made no progress, so the container was started again.",
        "If it comes back, lower spec.batching.maxNumSeqs, or try another vLLM version with spec.runtime.image.",
    ),
    Reason.ENGINE_DIED: ReasonDoc(
        "vLLM's engine ended by itself; the message has its last words.",
        "Read status.failure.evidence and `kubectl logs --previous`; the container is started again.",
    ),
    Reason.STARTUP_FAILED: ReasonDoc(
        "vLLM ended before it served, for a cause that is not recognised; the message has its last words.",
        "Read status.failure.evidence and `kubectl logs --previous` of the pod.",
    ),
    Reason.UNKNOWN: ReasonDoc(
        "The container ended and left no word about why.",
        "Read `kubectl logs --previous` and `kubectl describe` of the pod.",
    ),
}

REASONS: Mapping[Reason, ReasonDoc] = MappingProxyType(_DOCS)
