"""What people and log files write for a value of `llmservice plan`, and what is understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
from llmservice_cli.plan import values
from llmservice_cli.plan.batch import planned
from llmservice_cli.plan.options import OPTIONS
from llmservice_cli.plan.quantizations import Quantized, quantized
from llmservice_cli.plan.questions import counted
from llmservice_cli.plan.values import NotGiven, Refused
from llmservice_runtime.flags import newest_version

from .cli_plan_world import LLAMA_8B

WHOLE = values.count(1, 10**9, "8")


@pytest.mark.parametrize(
    ("read", "raw", "meant"),
    [
        # vLLM's own suffixes (utils/argparse_utils.py, human_readable_int)
        (values.length, "8192", 8192),
        (values.length, "32k", 32_000),
        (values.length, "32K", 32_768),
        (values.length, "25.6k", 25_600),
        (values.length, "1m", 1_000_000),
        (values.length, "1,048,576", 1_048_576),
        (values.length, 4096, 4096),
        (values.length, 4096.0, 4096),
        (values.length, "auto", "auto"),
        (values.length, "-1", "auto"),
        (values.length, -1, "auto"),
        (values.share, "0.9", 0.9),
        (values.share, 1, 1.0),
        (values.gibibytes, "22.03", 22.03),
        (values.gibibytes, "80Gi", 80.0),
        (values.gibibytes, "80 GiB", 80.0),
        (values.parameters, "8B", 8_000_000_000),
        (values.parameters, "671B", 671_000_000_000),
        (values.parameters, "0.5b", 500_000_000),
        (values.parameters, "125M", 125_000_000),
        (values.parameters, "8030261248", 8_030_261_248),
        (values.parameters, "8,030,261,248", 8_030_261_248),
        (values.parameters, 8_030_261_248, 8_030_261_248),
        (values.parameters, "8.03e9", 8_030_000_000),
        (values.switch, True, True),
        (values.switch, "false", False),
        (values.switch, 1, True),
        (values.dtype, "half", "float16"),
        (values.dtype, "torch.bfloat16", "bfloat16"),
        (values.dtype, "BF16", "bfloat16"),
        (values.dtype, "float", "float32"),
        (values.kv_cache_dtype, "fp8_e5m2", "fp8_e5m2"),
        (values.version, "v0.31.0", "v0.31.0"),
        (values.version, 0.32, "0.32"),
        (values.version, "nightly", None),
        (counted, "2 x NVIDIA L4", (2, "NVIDIA L4")),
        (counted, "1x L4", (1, "L4")),
        (counted, "8×H100", (8, "H100")),
        (counted, "NVIDIA L4 x2", (2, "NVIDIA L4")),
        (counted, "RTX 4090", (None, "RTX 4090")),
        (counted, "GTX 1080", (None, "GTX 1080")),
    ],
)
def test_a_value_is_understood(read: Callable[[object], object], raw: object, meant: object) -> None:
    assert read(raw) == meant


@pytest.mark.parametrize(
    ("read", "raw", "why", "remedy"),
    [
        (values.length, "32.5K", "vLLM takes no decimals with K", "Write 32.5k"),
        (values.length, "long", "is no whole number", "or auto"),
        (values.length, 0, "is no length", "32K is 32,768"),
        (values.length, True, "is no whole number", "32K"),
        (values.length, 1e30, "is no length", "134,217,728"),
        (values.length, [8192], "is no whole number", "or auto"),
        (WHOLE, "8G", "is not from 1 to 1,000,000,000", "such as 8"),
        (values.share, 90, "is no share", "such as 0.92"),
        (values.share, "nan", "is no number", "such as 0.92"),
        (values.gibibytes, "-4", "is no amount", "22.03"),
        (values.gibibytes, {}, "is no number", "22.03"),
        (values.parameters, "eight", "is no number of parameters", "8B"),
        (values.parameters, 0, "that a model has", "8B"),
        (values.parameters, "9" * 400, "that a model has", "8B"),
        (values.switch, "perhaps", "neither true nor false", "true or false"),
        (values.dtype, "fp4", "is no type that vLLM computes in", "float16"),
        (values.dtype, None, "is no type", "one of auto"),
        (values.kv_cache_dtype, "fp8e4m3", "is no type of a KV cache", "fp8_e4m3"),
        (values.version, "banana", "is no version", newest_version()),
        (values.version, "0.8.3 (V1)", "is no version of vLLM that can be planned for", newest_version()),
        (values.text, "", "is no name", "not empty"),
        (quantized, "magic", "is no quantization", "one of awq"),
        (quantized, 4, "is no quantization", "awq"),
    ],
)
def test_what_stands_for_nothing_is_refused_with_a_remedy(
    read: Callable[[object], object], raw: object, why: str, remedy: str
) -> None:
    with pytest.raises(Refused) as refused:
        read(raw)
    assert why in refused.value.message
    assert remedy in refused.value.remedy


@pytest.mark.parametrize("read", [values.version, counted])
@pytest.mark.parametrize("raw", ["unknown", "not said", "", "N/A", "(unknown)", "?"])
def test_words_for_nothing(read: Callable[[object], object], raw: str) -> None:
    with pytest.raises(NotGiven):
        read(raw)


@pytest.mark.parametrize(
    ("raw", "method", "weights"),
    [
        ("awq_marlin", "awq_marlin", "auto"),
        ("awq", "awq", "auto"),
        ("fp8", "fp8", "auto"),
        ("fp8 (fbgemm)", "fbgemm_fp8", "auto"),
        ("modelopt nvfp4", "modelopt_fp4", "auto"),
        ("nvfp4 mixed", "modelopt_mixed", "auto"),
        ("bitsandbytes (nf4)", "bitsandbytes", "auto"),
        ("bnb-4bit", "bitsandbytes", "auto"),
        ("int8 w8a8", "compressed-tensors", "int8"),
        ("int8 w8a16", "compressed-tensors", "int8"),
        ("W4A16", None, "int4"),
        ("GPTQ-Int4", "gptq", "auto"),
        ("mxfp4", "mxfp4", "auto"),
        ("gptq int8", "gptq", "int8"),
        ("gptq-8bit", "gptq", "int8"),
        ("int8 (gptq)", "gptq", "int8"),
        ("GPTQ-Int8", "gptq", "int8"),
        ("gptq_int8", "gptq", "int8"),
        ("gptq_marlin 8 bit", "gptq", "int8"),
        ("awq 8bit", "compressed-tensors", "int8"),
        ("bitsandbytes int8", "bitsandbytes", "int8"),
        ("bnb-8bit", "bitsandbytes", "int8"),
        ("Q8_0", "compressed-tensors", "int8"),
        ("8bit", "compressed-tensors", "int8"),
        ("w8a8 fp8", "fp8", "auto"),
        ("4bit", None, "int4"),
        ("Q4_K_M", "gguf", "auto"),
        ("auto-round", "inc", "auto"),
        ("autoround", "inc", "auto"),
        ("auto-round 8bit", "inc", "int8"),
        ("hqq", None, "int4"),
        ("torchao int8", "torchao", "int8"),
        ("fp4", "nvfp4", "auto"),
        ("nvfp4", "nvfp4", "auto"),
        ("nvfp4 w4a4", "nvfp4", "auto"),
        ("nvfp4 compressed-tensors", "nvfp4", "auto"),
        ("modelopt_fp4", "modelopt_fp4", "auto"),
        ("modelopt_nvfp4", "modelopt_fp4", "auto"),
        ("NVFP4 (ModelOpt)", "modelopt_fp4", "auto"),
        ("mxfp8", "mxfp8", "auto"),
        ("none", None, "auto"),
    ],
)
def test_names_of_quantization(raw: str, method: str | None, weights: str) -> None:
    assert quantized(raw) == Quantized(method, weights)


@pytest.mark.parametrize(
    ("raw", "gib"),
    [
        # 6.98e9 values of linears in the bits of the name, and 1.05e9 of embedding and head in 16
        *((raw, 8.6) for raw in ("gptq int8", "awq 8bit", "bitsandbytes int8", "Q8_0", "8bit", "int8 w8a16", "fp8")),
        *((raw, 5.4) for raw in ("gptq", "awq", "4bit", "hqq", "autoround", "bitsandbytes")),
    ],
)
def test_weights_have_the_bits_that_the_name_says(raw: str, gib: float) -> None:
    found = planned({"gpu": "H100", "config": LLAMA_8B, "quantization": raw})
    assert found["weightsGiB"] == pytest.approx(gib, abs=0.25)


@pytest.mark.parametrize(
    ("layers", "hidden", "inner", "heads", "gib"),
    [(36, 4096, 12288, 32, 5.98), (40, 5120, 17408, 40, 9.97)],
    ids=["Qwen3-8B", "Qwen3-14B"],
)
def test_nvfp4_is_of_all_linears_unless_modelopt_made_it(
    layers: int, hidden: int, inner: int, heads: int, gib: float
) -> None:
    # as vLLM reported for RedHatAI's checkpoints, which llm-compressor made
    shape = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner, "head_dim": 128}
    rest = {"num_attention_heads": heads, "num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": False}
    case = {"gpu": "H100", "config": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **shape, **rest}}
    assert planned({**case, "quantization": "nvfp4"})["weightsGiB"] == pytest.approx(gib, rel=0.02)
    assert planned({**case, "quantization": "modelopt nvfp4"})["weightsGiB"] > 1.2 * gib


def test_options_name_fields_that_the_spec_has() -> None:
    from llmservice_operator.api.spec import LLMServiceSpec

    missing = []
    for option in OPTIONS.values():
        model = LLMServiceSpec
        for part in option.spec.split(".") if option.spec else ():
            field = next((one for one in model.model_fields.values() if one.alias == part), None)
            if field is None:
                missing.append(option.spec)
                break
            model = next(
                (one for one in (field.annotation, *get_args(field.annotation)) if hasattr(one, "model_fields")), model
            )
    assert missing == []


@pytest.mark.parametrize("text", ["9" * 5000, "1." + "9" * 5000, "1e" + "9" * 5000])
def test_numbers_of_thousands_of_digits_are_refused(text: str) -> None:
    for read in (values.count(1, 10, "3"), values.length, values.parameters):
        with pytest.raises(Refused):
            read(text)
