"""Logs of vLLM, recorded from 0.32.0 or rebuilt from what users reported: what is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from llmservice_runtime.contract import TERMINATION_LIMIT, Failure, Phase
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.failures.failures import End, classify
from llmservice_runtime.failures.reasons import Ends
from llmservice_runtime.failures.rules import FOLLOWING, PLACES, RULES
from llmservice_runtime.health.memory_events import MemoryEvents
from llmservice_runtime.preflight.accelerators import driver_version

LOGS = Path(__file__).parents[1] / "fixtures" / "vllm_logs"
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
        ("batched_lt_seqs", 1, R.INVALID_CONFIGURATION, "max_num_batched_tokens (8) is smaller", "maxNumBatchedTokens"),
        ("truncated_weights", 1, R.WEIGHTS_UNREADABLE, "Error while deserializing header", "copy the model again"),
        ("no_weights", 1, R.WEIGHTS_UNREADABLE, "Cannot find any model weights", "spec.model.uri"),
        ("unreadable_weights", 1, R.WEIGHTS_UNREADABLE, "model.safetensors", "readable"),
        ("kv_cache_too_small", 1, R.KV_CACHE_TOO_SMALL, "the estimated maximum model length is 524160", "maxModelLen"),
        ("driver_too_old", 1, R.DRIVER_MISMATCH, "driver on your system is too old", "spec.runtime.image"),
        ("ptx", 1, R.DRIVER_MISMATCH, "unsupported toolchain", "newer NVIDIA driver"),
        ("no_kernel_image", 1, R.DRIVER_MISMATCH, "no kernel image is available", "built for its compute capability"),
        ("fp8_block", 1, R.PARALLELISM_MISMATCH, "block_n = 128", "expertParallel"),
        ("memory_profiling_grew", 1, R.GPU_MEMORY_BUSY, "current free memory 90.17 GiB", "a GPU of its own"),
        ("nccl_shm", 1, R.SHARED_MEMORY_TOO_SMALL, "/dev/shm/nccl-Xk2d5s", "memory limit"),
        ("no_attention_backend", 1, R.ATTENTION_UNSUPPORTED, "No valid attention backend", "spec.accelerator.products"),
        ("bnb", 1, R.PACKAGE_MISSING, "Please install bitsandbytes", "spec.runtime.image"),
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
    ("prefix", "line", "reason"),
    [
        (ERROR, "ValueError: No available memory for the cache blocks.", R.KV_CACHE_TOO_SMALL),
        ("(APIServer pid=1) ", "ValueError: No available memory for the cache blocks.", R.KV_CACHE_TOO_SMALL),
        (ERROR, "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. Repository Not Found for url: https://x",
         R.MODEL_NOT_FOUND),
        (ERROR, "KeyError: something nobody has seen", R.STARTUP_FAILED),
    ],
    ids=lambda value: str(value) if isinstance(value, R) else "",
)  # fmt: skip
def test_source_lines_of_a_traceback_are_no_messages(prefix: str, line: str, reason: R) -> None:
    tail = [
        prefix + "Traceback (most recent call last):",
        prefix + '    raise ValueError("User-specified max_model_len (1) is greater than the derived max_model_len")',
        prefix + line,
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    assert classify(End(1, None, Phase.LOADING), tail).reason is reason


@pytest.mark.parametrize(
    ("file", "exception", "reason", "remedy"),
    [
        ("config/parallel.py", "ValueError", R.INVALID_CONFIGURATION, "spec.runtime.extraArgs"),
        ("config/speculative.py", "ValueError", R.INVALID_CONFIGURATION, "spec.speculativeDecoding"),
        ("distributed/utils.py", "AssertionError", R.PARALLELISM_MISMATCH, "spec.parallelism"),
        ("model_executor/layers/quantization/fp8.py", "ValueError", R.QUANTIZATION_MISMATCH, "another checkpoint"),
        ("v1/attention/backends/x.py", "NotImplementedError", R.ATTENTION_UNSUPPORTED, "spec.attention.backend"),
        ("transformers_utils/config.py", "ValueError", R.UNSUPPORTED_ARCHITECTURE, "config.json"),
        ("v1/worker/gpu_worker.py", "AssertionError", R.STARTUP_FAILED, "another vLLM version"),
        ("nowhere.py", "ValueError", R.STARTUP_FAILED, "another vLLM version"),
    ],
)
def test_what_no_rule_knows_goes_by_the_file_that_raised_it(file: str, exception: str, reason: R, remedy: str) -> None:
    """A frame of another package decides nothing, and a server that served before ended for another cause."""
    frame = f'  File "/usr/lib/python3/dist-packages/vllm/{file}", line 7, in f'
    foreign = '  File "/usr/lib/python3/dist-packages/torch/nn/module.py", line 7, in f'
    line = ERROR + f"{exception}: words of a later version"
    failure = classify(End(1, None, Phase.LOADING), [ERROR + frame, ERROR + "    x()", line, ERROR + "Supported: a, b"])
    assert failure.reason is reason
    assert remedy in failure.remedy
    assert "enforceEager" not in failure.remedy
    assert classify(End(1, None, Phase.LOADING), [ERROR + frame, ERROR + foreign, line]).reason is R.STARTUP_FAILED
    assert classify(End(1, None, Phase.SERVING), [ERROR + frame, line]).reason is R.ENGINE_DIED


def test_what_other_workers_say_after_the_cause_is_not_the_reason() -> None:
    tail = [
        ERROR + '  File "/x/vllm/config/parallel.py", line 7, in f',
        ERROR + "ValueError: words of a later version",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ]
    assert classify(End(1, None, Phase.LOADING), tail).reason is R.INVALID_CONFIGURATION


@pytest.mark.parametrize(
    ("said", "image", "driver", "versions"),
    [
        ("The NVIDIA driver on your system is too old (found version 12040).", "12.9.1", "",
         "(Here the driver supports CUDA 12.4, the image is built for CUDA 12.9.1.)"),
        ("The NVIDIA driver on your system is too old (found version 11080).", "", "",
         "(Here the driver supports CUDA 11.8.)"),
        ("The NVIDIA driver on your system is too old (found version 12040).", "13.0", "550.54.15",
         "(Here the node's driver is 550.54.15, the driver supports CUDA 12.4, the image is built for CUDA 13.0.)"),
        ("CUDA error: the provided PTX was compiled with an unsupported toolchain.", "13.0", "550.54.15",
         "(Here the node's driver is 550.54.15, the image is built for CUDA 13.0.)"),
        ("CUDA error: no kernel image is available for execution on the device", "12.9.1", "570.86.15",
         "(Here the node's driver is 570.86.15, the image is built for CUDA 12.9.1.)"),
        ("CUDA error: the provided PTX was compiled with an unsupported toolchain.", "13.0", "",
         "(Here the image is built for CUDA 13.0.)"),
        ("CUDA error: the provided PTX was compiled with an unsupported toolchain.", "\x1b[2J" * 99, "", "toolchain."),
        ("The NVIDIA driver on your system is too old (found version 99999999).", "", "", "99999999)."),
    ],
)  # fmt: skip
def test_the_versions_that_do_not_go_together_are_said(said: str, image: str, driver: str, versions: str) -> None:
    failure = classify(End(1, None, Phase.LOADING, image_cuda=image, driver=driver), [ERROR + f"RuntimeError: {said}"])
    assert failure.reason is R.DRIVER_MISMATCH
    assert failure.message.endswith(versions)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC version:  gcc 9.4.0",
         "550.54.15"),
        (b"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (root@x)\n", "570.86.15"),
        (b"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95  Release Build\n", "580.95"),
        (b"GCC version:  gcc version 12.2.0\n", ""),
        (b"NVRM version: \xff\x1b[2J 5.\n", ""),
        (b"NVRM version: " + b"x" * 5000 + b" 550.54.15", ""),
        (None, ""),
    ],
)  # fmt: skip
def test_the_driver_of_the_node_is_read_where_the_container_has_its_file(
    tmp_path: Path, text: bytes | None, version: str
) -> None:
    file = tmp_path / "version"
    if text is not None:
        file.write_bytes(text)
    assert driver_version(file) == version


def test_only_faults_of_hardware_ask_for_the_node_to_be_drained() -> None:
    drains = {rule.reason for rule in (*RULES, *FOLLOWING) if "drain" in rule.remedy}
    assert drains == {R.ACCELERATOR_FAULT}
    assert {reason for reason in drains | {R.DRIVER_MISMATCH} if reason.row.ends is not Ends.BY_CHANGE} == set()
    assert {reason.row.ends for reason in (R.KERNEL_FAILED, R.COMMUNICATION_FAILED)} == {Ends.BY_RESTART}
    eager = {rule.reason for rule in (*RULES, *FOLLOWING) if "enforceEager: true" in rule.remedy}
    assert eager == {R.COMPILATION_FAILED}


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
    tail.append("(W pid=1) WARNING 11-21 02:37:37 [x.py:1] no GPU is watched: NVML Shared Library Not Found")
    assert classify(End(1, None, Phase.LOADING), tail).reason is R.STARTUP_FAILED


def test_every_remedy_names_a_field() -> None:
    remedies = [rule.remedy for rule in (*RULES, *FOLLOWING)] + [place.remedy for place in PLACES]
    assert [remedy for remedy in remedies if "spec." not in remedy] == []


@pytest.mark.parametrize("limit", [200, 500, TERMINATION_LIMIT])
def test_a_failure_fits_the_limit_and_comes_back(limit: int) -> None:
    long = Failure(R.STARTUP_FAILED, "é" * 5000, "do " * 2000, tuple("x" * 300 for _ in range(30)), Phase.LOADING, 1)
    text = long.to_json(limit)
    assert len(text.encode()) <= limit
    back = Failure.from_json(text)
    assert back is not None
    assert (back.reason, back.phase, back.exit_code) == (R.STARTUP_FAILED, Phase.LOADING, 1)


def test_a_reason_of_a_later_runtime_keeps_its_words() -> None:
    text = '{"version":1,"reason":"OfALaterVersion","message":"what happened","remedy":"what to do"}'
    assert Failure.from_json(text) == Failure(R.ENGINE_DIED, "what happened", "what to do")


@pytest.mark.parametrize("text", ["", "Traceback: no JSON", "[]", '{"version":2}', '{"version":1,"reason":"New"}'])
def test_other_termination_messages_are_none_of_ours(text: str) -> None:
    assert Failure.from_json(text) is None
