"""What people and log files write for a value of `llmservice plan`, and what is understood."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from llmservice_api.spec import LLMServiceSpec
from llmservice_cli.errors import Refused
from llmservice_cli.plan import OPTIONS, values
from llmservice_cli.plan.batch import planned
from llmservice_cli.plan.values import NotGiven, Quantized, Reader, counted, quantized
from llmservice_vllm.versions import default_version

from tests.unit.cli_world import LLAMA_8B

READ: dict[Reader, dict[Any, Any]] = {
    # Suffixes are vLLM's own (utils/argparse_utils.py, human_readable_int).
    values.length: {
        "8192": 8192,
        "32k": 32_000,
        "32K": 32_768,
        "25.6k": 25_600,
        "1m": 1_000_000,
        "1,048,576": 1_048_576,
    }
    | {4096: 4096, 4097.0: 4097, "auto": "auto", "-1": "auto", -1: "auto"},
    values.share: {"0.9": 0.9, 1: 1.0},
    values.gibibytes: {"22.03": 22.03, "80Gi": 80.0, "80 GiB": 80.0},
    values.parameters: {"8B": 8_000_000_000, "0.5b": 500_000_000, "125M": 125_000_000, "8030261248": 8_030_261_248}
    | {"8,030,261,248": 8_030_261_248, 8_030_261_248: 8_030_261_248, "8.03e9": 8_030_000_000},
    values.switch: {True: True, "false": False, "1": True},
    values.dtype: {"half": "float16", "torch.bfloat16": "bfloat16", "BF16": "bfloat16", "float": "float32"},
    values.kv_cache_dtype: {"fp8_e5m2": "fp8_e5m2"},
    values.version: {"v0.31.0": "v0.31.0", 0.32: "0.32", "nightly": None},
    counted: {"2 x NVIDIA L4": (2, "NVIDIA L4"), "1x L4": (1, "L4"), "8×H100": (8, "H100")}
    | {"NVIDIA L4 x2": (2, "NVIDIA L4"), "RTX 4090": (None, "RTX 4090"), "GTX 1080": (None, "GTX 1080")},
}


@pytest.mark.parametrize(
    ("read", "raw", "meant"), [(read, *row) for read, rows in READ.items() for row in rows.items()]
)
def test_a_value_is_understood(read: Reader, raw: object, meant: object) -> None:
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
        (values.length, "9" * 5000, "is no whole number", "or auto"),
        (values.count(1, 10**9, "8"), "8G", "is not from 1 to 1,000,000,000", "such as 8"),
        (values.count(1, 10, "3"), "1." + "9" * 5000, "is no whole number", "such as 3"),
        (values.share, 90, "is no share", "such as 0.92"),
        (values.share, "nan", "is no number", "such as 0.92"),
        (values.gibibytes, "-4", "is no amount", "22.03"),
        (values.gibibytes, {}, "is no number", "22.03"),
        (values.parameters, "eight", "is no number of parameters", "8B"),
        (values.parameters, 0, "that a model has", "8B"),
        (values.parameters, "9" * 400, "that a model has", "8B"),
        (values.parameters, "1e" + "9" * 5000, "is no number of parameters", "8B"),
        (values.switch, "perhaps", "neither true nor false", "true or false"),
        (values.dtype, "fp4", "is no type that vLLM computes in", "float16"),
        (values.dtype, None, "is no type", "one of auto"),
        (values.kv_cache_dtype, "fp8e4m3", "is no type of a KV cache", "fp8_e4m3"),
        (values.version, "banana", "is no version", default_version()),
        (values.version, "0.8.3 (V1)", "is no version of vLLM that can be planned for", default_version()),
        (values.text, "", "is no name", "not empty"),
        (quantized, "magic", "is no quantization", "one of awq"),
        (quantized, 4, "is no quantization", "awq"),
    ],
)
def test_what_means_nothing_is_refused_with_a_remedy(read: Reader, raw: object, why: str, remedy: str) -> None:
    with pytest.raises(Refused) as refused:
        read(raw)
    assert why in refused.value.message
    assert remedy in refused.value.remedy


@pytest.mark.parametrize("read", [values.version, counted])
@pytest.mark.parametrize("raw", ["unknown", "not said", "", "N/A", "(unknown)", "?"])
def test_words_for_nothing(read: Reader, raw: str) -> None:
    with pytest.raises(NotGiven):
        read(raw)


NAMES = {
    ("awq_marlin", "auto"): "awq_marlin",
    ("awq", "auto"): "awq",
    ("fp8", "auto"): "fp8, w8a8 fp8",
    ("fbgemm_fp8", "auto"): "fp8 (fbgemm)",
    ("modelopt_fp4", "auto"): "modelopt nvfp4, modelopt_fp4, modelopt_nvfp4, NVFP4 (ModelOpt)",
    ("modelopt_mixed", "auto"): "nvfp4 mixed",
    ("bitsandbytes", "auto"): "bitsandbytes (nf4), bnb-4bit",
    ("compressed-tensors", "int8"): "int8 w8a8, int8 w8a16, awq 8bit, Q8_0, 8bit",
    (None, "int4"): "W4A16, 4bit, hqq",
    ("gptq", "auto"): "GPTQ-Int4",
    ("mxfp4", "auto"): "mxfp4",
    ("gptq", "int8"): "gptq int8, gptq-8bit, int8 (gptq), GPTQ-Int8, gptq_int8, gptq_marlin 8 bit",
    ("bitsandbytes", "int8"): "bitsandbytes int8, bnb-8bit",
    ("gguf", "auto"): "Q4_K_M",
    ("inc", "auto"): "auto-round, autoround",
    ("inc", "int8"): "auto-round 8bit",
    ("torchao", "int8"): "torchao int8",
    ("nvfp4", "auto"): "fp4, nvfp4, nvfp4 w4a4, nvfp4 compressed-tensors",
    ("mxfp8", "auto"): "mxfp8",
    (None, "auto"): "none",
}


@pytest.mark.parametrize(
    ("raw", "meant"), [(raw, Quantized(*meant)) for meant, names in NAMES.items() for raw in names.split(", ")]
)
def test_names_of_quantization(raw: str, meant: Quantized) -> None:
    assert quantized(raw) == meant


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
