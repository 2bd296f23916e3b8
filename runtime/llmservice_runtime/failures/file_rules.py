"""Rules for the command line, and for what goes wrong when the model's files are found and read."""

from __future__ import annotations

from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.failures.rule import Rule, rule

_MODEL_URI = (
    "Check spec.model.uri. A private or gated model also needs spec.model.hfTokenSecretRef, a token that may read it."
)
_UNREADABLE = (
    "The server's user may not read this file (vLLM also calls that \"No such file\"): make it readable for the pod's "
    "user or group, for example with chmod -R a+rX on the model's folder, or set "
    "spec.podTemplate.spec.securityContext.fsGroup to the owning group."
)
_CACHES = (
    "The server may not write there: its root file system is read-only. The operator sets HOME, XDG_CACHE_HOME, "
    "HF_HOME, VLLM_CACHE_ROOT and TRITON_CACHE_DIR to folders that it may write: take them out of spec.runtime.env. "
    "For what does not heed them, name a folder below /tmp in its own variable there, or mount an emptyDir at the path "
    "with spec.podTemplate."
)
_SHM = "/dev/shm is full: raise the memory limit in spec.runtime.resources, which it counts against."

FILE_RULES: tuple[Rule, ...] = (
    # The command line. argparse ends with 2.
    rule(
        R.INVALID_FLAG,
        "Correct the value in spec.runtime.extraArgs (or in the field that it comes from); "
        "spec.runtime.version must name the vLLM of spec.runtime.image.",
        ": error: ",
        exit_codes={2},
    ),
    # Finding and reading the model. A missing repository also answers 401.
    rule(R.MODEL_NOT_FOUND, _MODEL_URI, "Repository Not Found for url", "RepositoryNotFoundError: "),
    rule(
        R.MODEL_ACCESS_DENIED,
        "Accept the model's licence on the hub and set spec.model.hfTokenSecretRef to a token that may read it.",
        "Cannot access gated repo",
        "You are trying to access a gated repo",
        "GatedRepoError: ",
        "Access to model …is restricted",
        "401 Client Error",
        "403 Client Error",
        "Make sure your token has the correct permissions",
    ),
    rule(
        R.MODEL_NOT_FOUND,
        _MODEL_URI,
        "Invalid repository ID or local directory specified",
        "is not a local folder and is not a valid model identifier",
        "Repo id must be in the form",
        "RevisionNotFoundError: ",
        "404 Client Error",
        "Can't load the configuration of",
        "does not appear to have a file named config.json",
        "is not a valid git identifier",
        "Could not detect config format for no config file found",
    ),
    rule(
        R.SHARED_MEMORY_TOO_SMALL,
        _SHM,
        "shared memory…No space left on device",
        "/dev/shm…No space left on device",
        "/torch_…No space left on device",
        "unable to allocate shared memory(shm)",
        "unable to open shared memory object",
        "MiB required…(e.g. --shm-size or --ipc=host)",
        "Fatal Python error: Bus error",
        "died unexpectedly (exit code: -7)",
    ),
    rule(
        R.STORAGE_FULL,
        "Enlarge the model cache (spec.model.cache.size) or the node's ephemeral storage.",
        "No space left on device",
        "Disk quota exceeded",
    ),
    rule(
        R.MODEL_DOWNLOAD_FAILED,
        "The model hub could not be reached from the pod: check DNS, proxy and CA settings of the operator's chart and "
        "HF_ENDPOINT, or serve from storage with spec.model.uri: pvc://CLAIM/PATH.",
        "LocalEntryNotFoundError: ",
        "outgoing traffic has been disabled",
        "We couldn't connect to",
        "Max retries exceeded with url",
        "Temporary failure in name resolution",
        "Name or service not known",
        "ConnectTimeout: ",
        "ProxyError: ",
        "CERTIFICATE_VERIFY_FAILED",
        "429 Too Many Requests",
        " Server Error: ",
        "Server error '5",
        "Network is unreachable",
        "ConnectError: ",
    ),
    # By the path: the volumes of models and of caches, folders that are no volume, and all others.
    rule(
        R.WEIGHTS_UNREADABLE,
        _UNREADABLE,
        "Permission denied: '/llmservice/source",
        "Permission denied: '/llmservice/models",
        "Permission denied: '/llmservice/draft",
        "Permission denied: '/llmservice/adapter",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "The pod's user may not write to the cache's volume: set spec.podTemplate.spec.securityContext.fsGroup to the "
        "group that owns it, make its folders writable for that group, or have it mounted for writing.",
        "Permission denied: '/llmservice/cache",
        "Permission denied: '/llmservice/start-cache",
        "[Errno 30] Read-only file system: '/llmservice/cache",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        _CACHES,
        "Permission denied: '/.",
        "Permission denied: '/root/.",
        "Permission denied: …/.cache/",
        "[Errno 30] Read-only file system",
    ),
    rule(
        R.WEIGHTS_UNREADABLE,
        _UNREADABLE,
        "FileNotFoundError: ….safetensors",
        "FileNotFoundError: ….bin",
        "FileNotFoundError: ….pt",
        "Permission denied: ….safetensors",
        "Permission denied: ….bin",
        "Permission denied: ….json",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "The pod's user may not use this path: name another one in what sets it (spec.runtime.env, "
        "spec.runtime.extraArgs), make it accessible to the pod's user or group "
        "(spec.podTemplate.spec.securityContext.fsGroup), or mount an emptyDir there with spec.podTemplate.",
        "PermissionError: [Errno 13]",
    ),
    rule(
        R.WEIGHTS_UNREADABLE,
        "The weights are missing, damaged or incomplete (an interrupted copy, or git-lfs pointers instead of files): "
        "copy the model again and check spec.model.uri.",
        "SafetensorError: ",
        "Error while deserializing header",
        "PytorchStreamReader failed",
        "Cannot find any model weights with",
        "Cannot find any safetensors model weights with",
        "Weight files referenced in index but missing",
        "Could not find checkpoint files",
        "invalid load key, 'v'",
    ),
    rule(
        R.WEIGHTS_UNREADABLE,
        "The files of weights and config.json do not belong together, or some are missing: copy the model again from "
        "one revision, and check spec.model.uri and spec.model.architecture. Where the model is new, try a newer vLLM "
        "in spec.runtime.image.",
        "Following weights were not initialized from checkpoint",
        "Attempted to load weight (",
        "Tried to load weights of size",
        "Missing keys …in loaded state",
    ),
)
