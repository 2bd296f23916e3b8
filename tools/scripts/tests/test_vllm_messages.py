"""What vLLM raises at a start is listed, each with its reason, and the commonest with a remedy of their own."""

from __future__ import annotations

import textwrap

import pytest
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.failures.failures import _LOOK_AT_LOG
from llmservice_vllm.extract import installed
from llmservice_vllm.extract_messages import Message, collect, load, merged, texts

from scripts.vllm_messages import PAGE, failure_of, page_text

LISTED = load()
# What users meet most: each has a remedy of its own, which names the field that mends it.
COMMONEST = {
    "To serve at least one request with the model's max seq len": "spec.batching.maxModelLen",
    "No available memory for the cache blocks": "spec.accelerator.gpuMemoryUtilization",
    "Free memory on device": "a GPU of its own",
    "Error in memory profiling": "a GPU of its own",
    "User-specified max_model_len": "spec.batching.maxModelLen",
    "max_num_batched_tokens (…) is smaller than max_model_len": "spec.batching.maxNumBatchedTokens",
    "max_num_seqs (…) exceeds available Mamba cache blocks": "spec.batching.maxNumSeqs",
    "Total number of attention heads": "spec.parallelism.tensorParallelSize",
    "World size (…) is larger than the number of available GPUs": "spec.parallelism.tensorParallelSize",
    "Weight input_size_per_partition = … is not divisible by weight quantization": "expertParallel",
    "Pipeline parallelism is not supported for this model": "spec.parallelism.pipelineParallelSize",
    "Model architectures … are not supported for now": "spec.runtime.image",
    "Quantization method specified in the model config": "spec.precision.quantization",
    "Unknown quantization method": "another checkpoint",
    "The quantization method … is not supported for the current GPU": "spec.accelerator.products",
    "Bfloat16 is only supported on GPUs": "spec.precision.dtype: float16",
    "No valid attention backend found": "spec.precision.kvCache",
    "Selected backend … is not valid": "spec.attention.backend",
    "Cannot find any model weights with": "copy the model again",
    "Following weights were not initialized from checkpoint": "one revision",
    "Target and draft model should have the same vocabulary size": "spec.speculativeDecoding.model.uri",
    "This model does not support `--runner generate`": "spec.model.runner",
    "Model … is not supported for LoRA": "spec.lora",
    "Sleep mode is not supported": "spec.runtime.sleepMode",
    "Tensor parallel size … is greater than the number of experts": "spec.parallelism.tensorParallelSize",
    "No FP8 MoE backend supports the deployment configuration": "spec.accelerator.products",
    "No NvFp4 MoE backend supports the deployment configuration": "spec.accelerator.products",
    "No MXFP4 MoE backend supports the deployment configuration": "spec.accelerator.products",
    "No Unquantized MoE backend supports the deployment configuration": "spec.accelerator.products",
    "The Quark OCP MX shared expert cannot be tensor-parallelized": "spec.parallelism.expertParallel",
    "DeepSeek V4 MegaMoE currently requires expert parallel": "spec.parallelism.expertParallel",
    "Failed to find a kernel that can implement": "spec.accelerator.products",
    "MTP speculative decoding layer … weights missing": "spec.speculativeDecoding",
}


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == page_text(LISTED), "run `make crds`"


@pytest.mark.vllm
def test_the_file_is_complete_for_the_installed_version() -> None:
    folder, version = installed()
    series = version.rpartition(".")[0]
    found = {one.key for one in collect(folder / "vllm", series)}
    listed = {one.key for one in LISTED if series in one.versions}
    assert (found - listed, listed - found) == (set(), set()), "run `python -m llmservice_vllm.extract`"


@pytest.mark.parametrize(("start", "remedy"), COMMONEST.items())
def test_the_commonest_have_a_remedy_of_their_own(start: str, remedy: str) -> None:
    found = [message for message in LISTED if message.text.startswith(start)]
    assert found
    assert [message for message in found if remedy not in failure_of(message).remedy] == []


def test_no_remedy_is_to_compile_less_and_what_names_a_flag_has_one() -> None:
    remedies = {message: failure_of(message).remedy for message in LISTED}
    assert [message for message, remedy in remedies.items() if "enforceEager" in remedy] == []
    unmended = [message for message, remedy in remedies.items() if remedy == _LOOK_AT_LOG]
    assert {failure_of(message).reason for message in unmended} == {R.STARTUP_FAILED}
    assert [
        m for m in unmended if m.file.startswith("config/") and m.exception in ("ValueError", "AssertionError")
    ] == []


def test_what_is_collected_of_a_module() -> None:
    module = """
        raise ValueError("plain and long enough")
        raise errors.NotImplementedError(f"a {value} put in" " and joined")
        raise RuntimeError("the %s and %.2f" % (a, b) + " rest of it")
        raise TypeError("named {} put in".format(a))
        assert x, "an assertion's text"
        msg = f"assigned {once}"
        raise ValueError(f"{msg} in one place only")
        raise ValueError("short")
        raise ValueError(unknown)
        raise SystemExit("no exception of ours")
        raise VLLMValidationError("an answer to a request")
        assert x
    """
    assert set(texts(textwrap.dedent(module))) == {
        ("ValueError", "plain and long enough"),
        ("NotImplementedError", "a … put in and joined"),
        ("RuntimeError", "the … and … rest of it"),
        ("TypeError", "named … put in"),
        ("AssertionError", "an assertion's text"),
        ("ValueError", "assigned … in one place only"),
    }


@pytest.mark.parametrize(
    ("file", "function", "is_listed"),
    [
        ("model_executor/models/qwen3_moe.py", "__init__", True),
        ("model_executor/models/qwen3_moe.py", "forward", True),  # The first step measures memory.
        ("model_executor/models/qwen3_vl.py", "_parse_and_validate_image_input", False),
        ("model_executor/layers/fused_moe/oracle/fp8.py", "select_fp8_moe_backend", True),
        ("models/kimi_k3/nvidia/mla.py", "__init__", True),
        ("reasoning/basic_parsers.py", "__init__", True),
        ("reasoning/basic_parsers.py", "extract_reasoning", False),
        ("entrypoints/openai/chat_completion/serving.py", "create_chat_completion", False),
        ("entrypoints/openai/cli_args.py", "validate_parsed_serve_args", True),
        ("benchmarks/serve.py", "__init__", False),
        ("third_party/fmha_sm100/api.py", "__init__", False),
    ],
)
def test_what_a_start_can_reach_is_listed(file: str, function: str, is_listed: bool) -> None:
    module = f'def {function}():\n    raise ValueError("a message of it")'
    assert list(texts(module, file)) == [("ValueError", "a message of it")] * is_listed


def test_equal_messages_are_one_row_of_the_page() -> None:
    files = [f"model_executor/models/{name}.py" for name in ("a", "b", "c", "d", "e")]
    text = "Tensor parallel size … is greater than the number of experts …."
    page = page_text([Message(file, text, "ValueError", ("0.9",)) for file in files])
    assert page.count("greater than the number of experts") == 1
    assert "`models/a.py` and 4 more" in page


def test_a_version_that_is_read_anew_replaces_what_was_known_of_it() -> None:
    def of(text: str, *versions: str) -> Message:
        return Message("config/a.py", text, "ValueError", versions)

    known = [of("gone with it", "0.9"), of("in both of them", "0.9", "0.10"), of("the other's", "0.10")]
    assert merged(known, [of("in both of them", "0.9"), of("new in it", "0.9")], "0.9") == [
        of("in both of them", "0.9", "0.10"),
        of("new in it", "0.9"),
        of("the other's", "0.10"),
    ]
