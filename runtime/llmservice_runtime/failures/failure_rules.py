"""Classification rules for vLLM's log: the first rule that matches any line wins.

Most specific first: the API server reports a failed engine again in general terms ("Engine core initialization
failed"), so rules are ordered by meaning and not by position in the log. Where no rule matches, the module of vLLM
that raised the error decides (PLACES), and then the rules of what follows from other errors (FOLLOWING).
tests/unit/fixtures/vllm_logs holds logs; llmservice_vllm/messages.json lists what vLLM itself raises at a start.
"""

from __future__ import annotations

from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.failures.device_rules import DEVICE_RULES, DRIVER_RULES
from llmservice_runtime.failures.file_rules import FILE_RULES
from llmservice_runtime.failures.refusal_rules import PLACES as PLACES
from llmservice_runtime.failures.refusal_rules import REFUSAL_RULES
from llmservice_runtime.failures.rule import Rule, rule

_PACKAGE = (
    "Set spec.runtime.image to an image that has the package (vLLM's image with `pip install` of it on top), or do "
    "without what needs it: another checkpoint, or another value of the field that asks for it."
)

RULES: tuple[Rule, ...] = (
    *FILE_RULES,
    *DRIVER_RULES,
    *REFUSAL_RULES,
    *DEVICE_RULES,
    rule(
        R.INVALID_CONFIGURATION,
        "Set VLLM_CPU_OMP_THREADS_BIND=nobind in spec.runtime.env.",
        "Not enough allowed NUMA nodes to bind threads",
    ),
    rule(
        R.INVALID_CONFIGURATION,
        "Another process of the pod listens on vLLM's port: remove it from spec.podTemplate.",
        "ddress already in use",
    ),
    rule(
        R.MEMORY_LIMIT_EXCEEDED,
        "A worker was killed, most likely for memory: raise the memory limit in spec.runtime.resources.",
        "died unexpectedly (exit code: -9)",
    ),
    rule(
        R.ENGINE_MISSING,
        "spec.runtime.image must be a vLLM image.",
        "No module named vllm",
        "No module named 'vllm'",
    ),
    rule(R.PACKAGE_MISSING, _PACKAGE, "Please install ", "pip install ", "requires installation of "),
    # What vLLM's own validation of its configuration refuses, whatever it is.
    rule(
        R.INVALID_CONFIGURATION,
        "Change the value that vLLM names: in spec.runtime.extraArgs, or in the field that it comes from.",
        "Value error, ",
    ),
)

FOLLOWING: tuple[Rule, ...] = (
    rule(
        R.COMMUNICATION_FAILED,
        "Set NCCL_DEBUG=INFO in spec.runtime.env and read the lines before the error; NCCL_P2P_DISABLE=1 there shows "
        "whether it is the direct way between the GPUs.",
        "NCCL error",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclRemoteError",
        "Fault detected in EP all2all communication",
    ),
    rule(
        R.ENGINE_MISSING,
        "vLLM and the libraries of the image do not belong together, as where another torch was installed over vLLM's: "
        "use vLLM's own image, or build one anew on it, in spec.runtime.image.",
        "undefined symbol: ",
        "ImportError: lib…cannot open shared object file",
    ),
    rule(R.PACKAGE_MISSING, _PACKAGE, "ModuleNotFoundError: No module named "),
)
