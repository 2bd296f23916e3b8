"""Real logs of vLLM 0.32.0, and lines that it writes on hardware that no test has: what is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from llmservice_runtime.contract import TERMINATION_LIMIT, Failure, Phase
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.failures.failure_rules import RULES
from llmservice_runtime.failures.failures import End, classify
from llmservice_runtime.health.memory_events import MemoryEvents

LOGS = Path(__file__).parent / "fixtures" / "vllm_logs"
KILLED = MemoryEvents(kills=1, limit_hits=1)
ERROR = "(EngineCore pid=7) ERROR 11-21 02:37:37 [core.py:1510] "


@pytest.mark.parametrize(
    ("name", "code", "reason", "message", "remedy"),
    [
        ("bad_flag", 2, R.INVALID_FLAG, "unrecognized arguments: --no-such-flag", "spec.runtime.extraArgs"),
        ("bad_value", 2, R.INVALID_FLAG, "--max-num-seqs: invalid int value: 'many'", "spec.runtime.extraArgs"),
        ("local_missing", 1, R.MODEL_NOT_FOUND, "'/models/absent'", "spec.model.uri"),
        ("hub_missing_offline", 1, R.MODEL_DOWNLOAD_FAILED, "outgoing traffic has been disabled", "pvc://"),
        ("hub_unreachable", 1, R.MODEL_DOWNLOAD_FAILED, "Name or service not known", "HF_ENDPOINT"),
        ("max_model_len", 1, R.MAX_MODEL_LEN_TOO_LARGE, "User-specified max_model_len (999999)", "maxModelLen"),
        ("unknown_architecture", 1, R.UNSUPPORTED_ARCHITECTURE, "['NoSuchModelForCausalLM']", "spec.runtime.image"),
        ("unknown_model_type", 1, R.UNSUPPORTED_ARCHITECTURE, "model type `nosuchtype`", "spec.runtime.image"),
        ("tp_heads", 1, R.PARALLELISM_MISMATCH, "attention heads (4) must be divisible", "tensorParallelSize"),
        ("quant_missing", 1, R.QUANTIZATION_MISMATCH, "Cannot find the config file for awq", "spec.precision"),
        ("fp8_online", 1, R.PRECISION_UNSUPPORTED, "quantization method fp8", "spec.precision"),
        ("fp8_dtype", 1, R.PRECISION_UNSUPPORTED, "is not supported for quantization method", "spec.precision"),
        ("batched_lt_seqs", 1, R.INVALID_CONFIGURATION, "max_num_batched_tokens (8) is smaller", "vLLM names"),
        ("truncated_weights", 1, R.WEIGHTS_UNREADABLE, "Error while deserializing header", "copy the model again"),
        ("no_weights", 1, R.WEIGHTS_UNREADABLE, "Cannot find any model weights", "spec.model.uri"),
        ("unreadable_weights", 1, R.WEIGHTS_UNREADABLE, "model.safetensors", "readable"),
        ("kv_cache_too_small", 1, R.KV_CACHE_TOO_SMALL, "the estimated maximum model length is 524160", "maxModelLen"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_recorded_log(name: str, code: int, reason: R, message: str, remedy: str) -> None:
    tail = (LOGS / f"{name}.log").read_text().splitlines()
    failure = classify(End(code, None, Phase.LOADING), tail)
    assert failure.reason is reason
    assert message in failure.message
    assert remedy in failure.remedy
    assert failure.evidence
    assert "Traceback" not in failure.message + "".join(failure.evidence)
    assert not failure.message.startswith((" ", "Value error", "ValueError"))
    assert "input_value" not in failure.message
    assert len(failure.to_json().encode()) <= TERMINATION_LIMIT


def test_an_engine_that_dies_while_serving_is_told_in_its_own_words() -> None:
    """And not in those of the HTTP server that closes down after it."""
    tail = (LOGS / "engine_died_serving.log").read_text().splitlines()
    failure = classify(End(0, None, Phase.SERVING), tail)
    assert failure.reason is R.ENGINE_DIED
    assert failure.message.startswith("Worker failed with error 'CPU Generator does not use offset'")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory "
         "utilization (0.92, 72.8 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
         R.GPU_MEMORY_BUSY),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
         R.KV_CACHE_TOO_SMALL),
        ("ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token.",
         R.KV_CACHE_TOO_SMALL),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
         R.GPU_OUT_OF_MEMORY),
        ("torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found", R.COMPILATION_FAILED),
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: -4), shutting down executor.", R.ILLEGAL_INSTRUCTION),
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting", R.MEMORY_LIMIT_EXCEEDED),
        ("NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX.", R.CPU_FEATURE_MISSING),
        ("AttributeError: '_OpNamespace' '_C' object has no attribute 'cpu_gemm_wna16'", R.CPU_FEATURE_MISSING),
        ("CPUFp8BlockScaledMMKernel: requires AMX tile support (Sapphire Rapids or newer).", R.CPU_FEATURE_MISSING),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: x)", R.MODEL_ACCESS_DENIED),
        ("huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: x)", R.MODEL_ACCESS_DENIED),
        ("Access to model meta-llama/X is restricted. You must have access to it", R.MODEL_ACCESS_DENIED),
        ("huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. Repository Not Found for url: https://x",
         R.MODEL_NOT_FOUND),
        ("OSError: [Errno 28] No space left on device", R.STORAGE_FULL),
        ("RuntimeError: No CUDA GPUs are available", R.ACCELERATOR_MISSING),
        ("RuntimeError: Failed to infer device type, please set the environment variable", R.ACCELERATOR_MISSING),
        ("RuntimeError: Not enough allowed NUMA nodes to bind threads of 2 local CPUWorkers.", R.INVALID_CONFIGURATION),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU",
         R.PRECISION_UNSUPPORTED),
        ("ValueError: The quantization method mxfp4 is not supported for the current GPU. Minimum capability: 80.",
         R.PRECISION_UNSUPPORTED),
        ("PermissionError: [Errno 13] Permission denied: '/llmservice/source/config.json'", R.WEIGHTS_UNREADABLE),
        ("RuntimeError: Failed to load the model config. If the model is a custom model not yet available in the "
         "HuggingFace transformers library, consider setting `trust_remote_code=True` in LLM", R.REMOTE_CODE_REFUSED),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", R.ACCELERATOR_FAULT),
        ("RuntimeError: NCCL error: unhandled system error", R.ACCELERATOR_FAULT),
        ("/usr/bin/python3: No module named vllm", R.ENGINE_MISSING),
        ("KeyError: something nobody has seen", R.STARTUP_FAILED),
    ],
    ids=lambda value: str(value) if isinstance(value, R) else "",
)  # fmt: skip
def test_line(line: str, reason: R) -> None:
    tail = [
        ERROR + "Traceback (most recent call last):",
        ERROR + '    raise ValueError("User-specified max_model_len (1) is greater than the derived max_model_len")',
        ERROR + line,
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    assert classify(End(1, None, Phase.LOADING), tail).reason is reason


@pytest.mark.parametrize(
    ("arguments", "phase", "reason", "remedy"),
    [
        pytest.param(("--tokenizer-mode=banana",), Phase.LOADING, R.INVALID_FLAG, "--tokenizer-mode", id="joined"),
        pytest.param(("--tokenizer_mode", "banana"), Phase.LOADING, R.INVALID_FLAG, "--tokenizer_mode", id="apart"),
        pytest.param(("--seed=1",), Phase.LOADING, R.STARTUP_FAILED, "log", id="another flag"),
        pytest.param(("--tokenizer-mode=slow",), Phase.SERVING, R.ENGINE_DIED, "log", id="it served before"),
    ],
)
def test_a_flag_that_a_program_refuses_by_name(
    arguments: tuple[str, ...], phase: Phase, reason: R, remedy: str
) -> None:
    tail = [ERROR + "ValueError: No tokenizer registered for tokenizer_mode='banana'."]
    failure = classify(End(1, None, phase, arguments=arguments), tail)
    assert (failure.reason, failure.message) == (reason, "No tokenizer registered for tokenizer_mode='banana'.")
    assert remedy in failure.remedy


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        pytest.param(End(None, 9, Phase.SERVING, memory=KILLED), R.MEMORY_LIMIT_EXCEEDED, id="killed for memory"),
        pytest.param(End(0, None, Phase.SERVING, memory=KILLED), R.MEMORY_LIMIT_EXCEEDED, id="a worker was, exit 0"),
        pytest.param(End(None, 9, Phase.SERVING), R.ENGINE_DIED, id="killed by somebody"),
        pytest.param(End(None, 4, Phase.SMOKE), R.ILLEGAL_INSTRUCTION, id="SIGILL"),
        pytest.param(End(None, 7, Phase.LOADING), R.SHARED_MEMORY_TOO_SMALL, id="SIGBUS"),
        pytest.param(End(None, 11, Phase.SERVING), R.ENGINE_DIED, id="SIGSEGV"),
        pytest.param(End(0, None, Phase.SERVING), R.ENGINE_DIED, id="exit 0 while serving"),
        pytest.param(End(0, None, Phase.LOADING), R.STARTUP_FAILED, id="exit 0 while loading"),
    ],
)
def test_silent_end(end: End, reason: R) -> None:
    failure = classify(end, ["(APIServer pid=1) INFO 11-21 02:37:37 [x.py:1] all is well"])
    assert failure.reason is reason
    assert failure.message
    assert failure.remedy


def test_news_and_warnings_are_no_failures() -> None:
    tail = ["(W pid=1) WARNING 11-21 02:37:37 [x.py:1] CUDA out of memory is possible", "INFO: address already in use?"]
    tail[1] = "(W pid=1) INFO 11-21 02:37:37 [x.py:1] address already in use is what we would say"
    assert classify(End(1, None, Phase.LOADING), tail).reason is R.STARTUP_FAILED


def test_every_remedy_names_a_field() -> None:
    assert [rule.pattern.pattern for rule in RULES if "spec." not in rule.remedy] == []


@pytest.mark.parametrize("limit", [200, 500, TERMINATION_LIMIT])
def test_a_failure_fits_the_limit_and_comes_back(limit: int) -> None:
    long = Failure(R.STARTUP_FAILED, "é" * 5000, "do " * 2000, tuple("x" * 300 for _ in range(30)), Phase.LOADING, 1)
    text = long.to_json(limit)
    assert len(text.encode()) <= limit
    back = Failure.from_json(text)
    assert back is not None
    assert (back.reason, back.phase, back.exit_code) == (R.STARTUP_FAILED, Phase.LOADING, 1)


@pytest.mark.parametrize("text", ["", "Traceback: no JSON", "[]", '{"version":2}', '{"version":1,"reason":"New"}'])
def test_other_termination_messages_are_none_of_ours(text: str) -> None:
    assert Failure.from_json(text) is None
