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
    UNKNOWN_FLAG = "UnknownFlag"
    UNKNOWN_VERSION = "UnknownVersion"
    NOT_EVALUATED = "NotEvaluated"
    # the rollout
    ROLLED_OUT = "RolledOut"
    PAUSED = "Paused"
    PROGRESSING = "Progressing"
    SCHEDULING = "Scheduling"
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
    UPDATE_PENDING = "UpdatePending"
    DELETING = "Deleting"
    # what the supervisor found; the same words as llmservice_runtime.contract.FailureReason
    INVALID_FLAG = "InvalidFlag"
    MODEL_NOT_FOUND = "ModelNotFound"
    WEIGHTS_UNREADABLE = "WeightsUnreadable"
    GATED_MODEL = "GatedModel"
    UNKNOWN_ARCHITECTURE = "UnknownArchitecture"
    MAX_MODEL_LEN_TOO_LARGE = "MaxModelLenTooLarge"
    KV_CACHE_TOO_SMALL = "KVCacheTooSmall"
    OUT_OF_MEMORY = "OutOfMemory"
    GPU_OUT_OF_MEMORY = "GPUOutOfMemory"
    VERSION_MISMATCH = "VersionMismatch"
    ENGINE_DIED = "EngineDied"
    ENGINE_HUNG = "EngineHung"
    ILLEGAL_INSTRUCTION = "IllegalInstruction"
    START_TIMEOUT = "StartTimeout"
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
    Reason.UNKNOWN_FLAG: ReasonDoc(
        "spec.runtime.extraArgs holds a flag that this version of vLLM does not have, or an ambiguous abbreviation.",
        "Correct the flag, or set spec.runtime.version to the vLLM version that has it.",
    ),
    Reason.UNKNOWN_VERSION: ReasonDoc(
        "The operator has no table of flags for the vLLM version that spec.runtime names.",
        "Use a version that the message lists, or set spec.runtime.version to the one that the image is built from.",
    ),
    Reason.NOT_EVALUATED: ReasonDoc(
        "The operator has not worked out whether the model fits.",
        "Nothing to do: the model's own start decides.",
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
    Reason.SCHEDULING: ReasonDoc(
        "Pods wait for a node.",
        "Wait; it becomes Unschedulable when the scheduler finds no node.",
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
    Reason.UPDATE_PENDING: ReasonDoc(
        "A change of the operator waits for the next rollout; what runs is not touched.",
        "To have it now, annotate the LLMService: `kubectl annotate llms/NAME --overwrite "
        'llmservice.dev/update-requested="$(date)"`.',
    ),
    Reason.DELETING: ReasonDoc(
        "The LLMService is being deleted.",
        "Nothing to do.",
    ),
    Reason.INVALID_FLAG: ReasonDoc(
        "vLLM refuses a flag or its value; the message quotes vLLM.",
        "Correct spec.runtime.extraArgs, or the field that the message names.",
    ),
    Reason.MODEL_NOT_FOUND: ReasonDoc(
        "There is no model where spec.model.uri points.",
        "Check spec.model.uri: the repository and its revision, the claim and its path, or the path in the image.",
    ),
    Reason.WEIGHTS_UNREADABLE: ReasonDoc(
        "A file of the model exists but cannot be read: its permissions, or it is damaged.",
        "Make the files readable for the container's user (chmod a+rX), or copy the model again.",
    ),
    Reason.GATED_MODEL: ReasonDoc(
        "The model hub gives this repository only to accounts that were granted access.",
        "Ask for access on the model's page, and give that account's token in spec.model.tokenSecretRef.",
    ),
    Reason.UNKNOWN_ARCHITECTURE: ReasonDoc(
        "This version of vLLM does not know the model's architecture.",
        "Use a runtime image with a newer vLLM; models that bring their own code need spec.model.trustRemoteCode.",
    ),
    Reason.MAX_MODEL_LEN_TOO_LARGE: ReasonDoc(
        "spec.batching.maxModelLen is longer than the model allows.",
        "Lower spec.batching.maxModelLen to the length in the message, or remove it.",
    ),
    Reason.KV_CACHE_TOO_SMALL: ReasonDoc(
        "After the weights, too little memory is left for the KV cache of one request of full length.",
        "Lower spec.batching.maxModelLen (or set it to auto), raise spec.accelerator.gpuMemoryUtilization, choose a "
        "smaller spec.precision, or spread the model with spec.parallelism.tensorParallelSize.",
    ),
    Reason.OUT_OF_MEMORY: ReasonDoc(
        "The container went over its memory limit and was killed.",
        "Raise the memory limit in spec.runtime.resources.",
    ),
    Reason.GPU_OUT_OF_MEMORY: ReasonDoc(
        "The accelerator's memory ran out.",
        "Lower spec.accelerator.gpuMemoryUtilization or spec.batching.maxNumBatchedTokens, choose a smaller "
        "spec.precision, or raise spec.parallelism.tensorParallelSize.",
    ),
    Reason.VERSION_MISMATCH: ReasonDoc(
        "The image holds another vLLM version than the one that its flags were made for.",
        "Set spec.runtime.version to the version in the message, or use an image that holds the expected one.",
    ),
    Reason.ENGINE_DIED: ReasonDoc(
        "vLLM's engine ended by itself; the message has its last words.",
        "Read status.failure.evidence and `kubectl logs --previous`; the container is started again.",
    ),
    Reason.ENGINE_HUNG: ReasonDoc(
        "Requests were running and the engine made no progress, so the container was started again.",
        "If it comes back, lower spec.batching, or try another vLLM version with spec.runtime.image.",
    ),
    Reason.ILLEGAL_INSTRUCTION: ReasonDoc(
        "vLLM used an instruction that this CPU does not have.",
        "Set spec.precision.dtype to float32, or place the pods on newer CPUs with spec.podTemplate.spec.nodeSelector.",
    ),
    Reason.START_TIMEOUT: ReasonDoc(
        "The model was not ready within its start budget.",
        "Read the pod's log for the step that is slow; a spec.model.cache avoids fetching the model again.",
    ),
    Reason.UNKNOWN: ReasonDoc(
        "The container ended and the cause was not recognised; the message has the last lines of the log.",
        "Read `kubectl logs --previous` of the pod.",
    ),
}

REASONS: Mapping[Reason, ReasonDoc] = MappingProxyType(_DOCS)
