"""What the supervisor beside vLLM finds; the same words as llmservice_runtime.contract.FailureReason."""

from llmservice_operator.api.reason_docs.doc import Group, ReasonDoc

MODEL = Group(
    "The model",
    intro="",
    look="`status.failure.message`; `kubectl logs POD -c fetch` has the whole fetch.",
    docs={
        "ModelNotFound": ReasonDoc(
            "There is no model where spec.model.uri points.",
            "Check spec.model.uri: the repository and its revision, the claim and its path, or the path in the image.",
        ),
        "ModelAccessDenied": ReasonDoc(
            "The model hub gives this repository only to accounts that were granted access.",
            "Ask for access on the model's page, and give that account's token in spec.model.hfTokenSecretRef.",
            look="The model's page on the hub, signed in as the token's account.",
        ),
        "ModelRevisionNotFound": ReasonDoc(
            "The repository exists, but not the revision that spec.model.uri names behind the @.",
            "Correct the branch, tag or commit behind the @, or leave it out for the default branch.",
        ),
        "ModelTokenRefused": ReasonDoc(
            "The hub or the bucket's server does not accept the credentials that it was given.",
            "Put a valid token into the Secret that spec.model.hfTokenSecretRef names, or valid keys into the one of "
            "credentialsSecretRef in spec.model.s3, gcs or azure; the next start reads them.",
        ),
        "ModelDownloadFailed": ReasonDoc(
            "The model could not be fetched: the hub was not reached, or the transfer broke off.",
            "Check the network, the proxy settings and HF_ENDPOINT in the operator's chart values; the pod tries "
            "again.",
            look="The message: which address it was, and what it answered.",
        ),
        "FetchContainerFailed": ReasonDoc(
            "The pod's container `fetch`, which fetches models and adapters, ended with an error or did not answer.",
            "See its log. Where it was OOMKilled, raise services.fetchMemoryGib in the operator's chart values. What "
            "was fetched is kept, and the fetch goes on from there.",
            look="`kubectl logs POD -c fetch --previous`; its last state in `kubectl describe pod POD`.",
        ),
        "ModelCorrupt": ReasonDoc(
            "A file of the model is not what its source says it is: cut short, or with other content.",
            "Remove the file that the message names from the cache or the claim, or upload it again; what was "
            "fetched is checked and fetched anew at the next start.",
        ),
        "WeightsUnreadable": ReasonDoc(
            "A file of the model exists but cannot be read: its permissions, or it is damaged.",
            "Make the files readable for the container's user (chmod a+rX), or copy the model again.",
            look="The owner and mode of the file that the message names.",
        ),
        "UnsupportedArchitecture": ReasonDoc(
            "This version of vLLM does not know the model's architecture.",
            "Use a runtime image with a newer vLLM; models that bring their own code need spec.model.trustRemoteCode.",
            look="`architectures` in the model's config.json.",
        ),
        "RemoteCodeRefused": ReasonDoc(
            "The model brings code of its own, and that is not allowed to run.",
            "If you trust it, set spec.model.trustRemoteCode to true and pin a revision in spec.model.uri.",
        ),
        "StorageFull": ReasonDoc(
            "A volume or the node's disk is full.",
            "Give spec.model.cache a larger size, or free space on the node.",
        ),
    },
)

START = Group(
    "vLLM does not start",
    intro="",
    look=(
        "`status.failure.evidence`: the lines of vLLM's log that it was told by; `kubectl logs --previous` has them "
        "all."
    ),
    docs={
        "InvalidFlag": ReasonDoc(
            "vLLM refuses a flag or its value; the message quotes vLLM.",
            "Correct spec.runtime.extraArgs, or the field that the message names.",
        ),
        "InvalidConfiguration": ReasonDoc(
            "vLLM refuses the flags in their combination, or together with this model; the message quotes vLLM.",
            "Change the field that the message names; `kubectl explain llms.spec` says what each is for.",
        ),
        "MaxModelLenTooLarge": ReasonDoc(
            "spec.batching.maxModelLen is longer than the model allows.",
            "Lower spec.batching.maxModelLen to the length in the message, or remove it.",
        ),
        "QuantizationMismatch": ReasonDoc(
            "spec.precision contradicts the quantization that the checkpoint declares, or that it does not have.",
            "Remove spec.precision.quantization and let the checkpoint say it, or use a checkpoint of that method.",
        ),
        "ParallelismMismatch": ReasonDoc(
            "The model cannot be split as spec.parallelism says; the message quotes vLLM.",
            "Choose sizes that divide the model's heads and layers; the message names the numbers.",
        ),
        "ContextExtensionInvalid": ReasonDoc(
            "The model's context cannot be extended as spec.contextExtension asks.",
            "Remove spec.contextExtension for a model without rotary positions, or choose a factor that reaches "
            "spec.batching.maxModelLen; the message says which.",
        ),
        "DraftModelMismatch": ReasonDoc(
            "The draft model does not speak the model's tokens: its tokenizer or vocabulary is another one.",
            "Choose a draft model of the same family in spec.speculativeDecoding.model.uri, or remove "
            "spec.speculativeDecoding.",
        ),
        "APIKeyUnusable": ReasonDoc(
            "Clients are to show an API key, and the Secret holds no usable one, or vLLM answers without one.",
            "Put the keys, one a line, into the key of the Secret that spec.endpoint.apiKeySecretRef names; the next "
            "start reads them.",
            look="The message; whether the Secret's key is empty, or larger than 64 KiB or 256 keys.",
        ),
        "VersionMismatch": ReasonDoc(
            "The image holds another vLLM version than the one that its flags were made for.",
            "Set spec.runtime.version to the version in the message, or use an image that holds the expected one.",
        ),
        "EngineMissing": ReasonDoc(
            "The image holds no vLLM, or one that does not start.",
            "Set spec.runtime.image to an image with vLLM in it.",
        ),
        "KVCacheTooSmall": ReasonDoc(
            "After the weights, too little memory is left for the KV cache of one request of full length.",
            "Lower spec.batching.maxModelLen (or set it to auto), raise spec.accelerator.gpuMemoryUtilization, "
            "choose a smaller spec.precision, or spread the model with spec.parallelism.tensorParallelSize.",
        ),
        "GPUOutOfMemory": ReasonDoc(
            "The accelerator's memory ran out.",
            "Lower spec.accelerator.gpuMemoryUtilization or spec.batching.maxNumBatchedTokens, choose a smaller "
            "spec.precision, or raise spec.parallelism.tensorParallelSize.",
        ),
        "GPUMemoryBusy": ReasonDoc(
            "Something else holds memory of the GPU, so that vLLM's share is not free.",
            "End what else runs on that GPU, or lower spec.accelerator.gpuMemoryUtilization to what is free.",
        ),
        "AcceleratorMissing": ReasonDoc(
            "The container sees fewer accelerators than it needs, or none.",
            "Check the node's driver and device plugin, spec.accelerator and spec.podTemplate.spec.runtimeClassName.",
        ),
        "CPUFeatureMissing": ReasonDoc(
            "The CPU lacks an instruction set that vLLM needs for what the spec asks for, such as AVX-512 or AMX for "
            "an fp8 KV cache. It is found by the labels of node-feature-discovery before a pod is made, by the "
            "preflight in the pod, or in vLLM's log.",
            "Do without what the message names (spec.precision), or place the pods on nodes that have it with "
            "spec.podTemplate.spec.nodeSelector.",
            look="`kubectl get nodes -L feature.node.kubernetes.io/cpu-cpuid.AVX512F`, or `/proc/cpuinfo` of the node.",
        ),
        "AcceleratorFault": ReasonDoc(
            "The driver reported a fault of an accelerator.",
            "Look at the node's kernel log for Xid messages and take the node out of service if they come back.",
            look="The node's kernel log (`dmesg | grep -i xid`).",
        ),
        "CompilationFailed": ReasonDoc(
            "Compiling the model's kernels failed.",
            "Set spec.compilation.enforceEager to true, or use an image that brings the compiler that the message "
            "names.",
        ),
        "SharedMemoryTooSmall": ReasonDoc(
            "The processes of one replica ran out of shared memory in /dev/shm.",
            "Raise the memory limit in spec.runtime.resources: the shared memory counts against it.",
        ),
        "SmokeRequestFailed": ReasonDoc(
            "vLLM said that it was healthy, but the first request failed; the message quotes it.",
            "Read status.failure.evidence; an image, a driver or a precision that does not suit the hardware is the "
            "usual cause.",
        ),
        "StartTimeout": ReasonDoc(
            "The model was not ready within its start budget, and then nothing moved any more; or it moved, and took "
            "longer than any start may.",
            "Read the pod's log for the step that is slow; a spec.model.cache avoids fetching the model again.",
            look="`status.progress` while it starts; `kubectl logs --previous` for the step that took long.",
        ),
        "StartupFailed": ReasonDoc(
            "vLLM ended before it served, for a cause that is not recognised; the message has its last words.",
            "Read status.failure.evidence and `kubectl logs --previous` of the pod.",
        ),
    },
)

END = Group(
    "The server ends or stands still",
    intro="",
    look="`status.failure.evidence` and `kubectl logs --previous`; `kubectl get pods` counts the restarts.",
    docs={
        "MemoryLimitExceeded": ReasonDoc(
            "The container went over its memory limit and was killed.",
            "Raise the memory limit in spec.runtime.resources.",
            look="`kubectl top pod`, beside the memory limit in `status.effective` or the pod.",
        ),
        "EngineDied": ReasonDoc(
            "vLLM's engine ended by itself; the message has its last words.",
            "Read status.failure.evidence and `kubectl logs --previous`; the container is started again.",
        ),
        "EngineHung": ReasonDoc(
            "Requests are running and the engine makes no progress: the pod is not ready, and its container is started "
            "again if it stays so.",
            "If it comes back, lower spec.batching.maxNumSeqs, or try another vLLM version with spec.runtime.image.",
            look="`kubectl logs`, with `--previous` after the restart, for the last lines before it stood still.",
        ),
        "IllegalInstruction": ReasonDoc(
            "vLLM used an instruction that this CPU does not have.",
            "Set spec.precision.dtype to float32; 16-bit types need spec.compilation.enforceEager false on some CPUs. "
            "Or place the pods on nodes with AVX-512 with spec.podTemplate.spec.nodeSelector, or use an image that was "
            "built for these CPUs in spec.runtime.image.",
        ),
        "CrashLoop": ReasonDoc(
            "The container ended again and again and left no word about why; it is started with growing pauses.",
            "Read the last lines in status.failure.evidence and `kubectl logs --previous`, then correct the image or "
            "the spec.",
        ),
        "Unknown": ReasonDoc(
            "The container ended and left no word about why.",
            "Read `kubectl logs --previous` and `kubectl describe` of the pod.",
            look="`kubectl logs --previous` and `kubectl describe pod`: the reason and exit code of its last state.",
        ),
    },
)
