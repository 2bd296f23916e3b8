"""`llmservice plan --batch`: a line in, a line out."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from llmservice_cli.errors import BadInput, ExitCode
from llmservice_cli.plan import Options
from llmservice_cli.plan.batch import batch, planned
from llmservice_planner import memory
from llmservice_planner.plan import Plan, Request
from llmservice_vllm.versions import DEFAULT

from benchmarks.calibration.records import startups
from tests.unit.cli_world import LLAMA_8B, Command

NEWEST = DEFAULT
SERVED = {"id": "a", "gpu": "NVIDIA L4", "config": LLAMA_8B, "max_model_len": 8192}
# The facts of a model by the names of measured data, nulls and remarks included.
FACTS = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "head_dim": None,
    "vocab_size": 129280,
    "intermediate_size": 18432,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "total_parameters": 671026419200,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "num_shared_experts": 1,
    "sliding_window": None,
    "first_k_dense": 3,
    "mla": {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    },
    "source": "published",
    "certain": True,
}


def lines(text: str, folder: Path, **options: Any) -> tuple[ExitCode, list[dict[str, Any]]]:
    path = folder / "cases.jsonl"
    path.write_text(text, encoding="utf-8")
    out = io.StringIO()
    code = batch(str(path), out, Options(**options))
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def case(**changed: Any) -> dict[str, Any]:
    return {**SERVED, **changed}


def test_a_bad_line_has_its_error_in_its_place_and_the_run_goes_on(tmp_path: Path) -> None:
    cases = [case(id=1), case(id={"row": 3}, dtype="fp4", max_num_seqs=0), [1], case(id="last", gpu="T4")]
    first, bad, no_object, last = map(json.dumps, cases)
    code, found = lines("\n".join([first, "{not json", bad, "", no_object, last]), tmp_path)
    assert code == ExitCode.BAD_INPUT
    assert [line.get("verdict") for line in found] == ["Fits", None, None, None, "DoesNotFit"]
    assert [line["id"] for line in found] == [1, None, {"row": 3}, None, "last"]
    assert [line["error"]["field"] for line in found[1:4]] == ["line 2", "dtype", "line 5"]
    assert [error["field"] for error in found[2]["errors"]] == ["dtype", "max_num_seqs"]
    remedy = "Write one of auto, half, float16, bfloat16, float32."
    assert found[2]["error"] == {
        "field": "dtype", "message": "'fp4' is no type that vLLM computes in.", "remedy": remedy,
    }  # fmt: skip
    assert found[4]["remedies"]


RANKS: list[dict[str, Any]] = [
    *(
        {name: 2}
        for name in ("tensor_parallel_size", "tp", "num_gpus", "tp_size", "tensorParallelSize", "TP", "gpuCount")
    ),
    *({"tp": 2, "num_gpus": 2}, {"num_gpus": 4, "pp": 2}, {"tensor-parallel-size": "2"}),
    *({"gpu": "2 x NVIDIA L4"}, {"gpu": "8x L4", "tp": 2}, {"gpu": "4xL4", "pp": 2}),
]


@pytest.mark.parametrize("given", RANKS, ids=str)
def test_ranks_by_any_of_their_names(given: Mapping[str, Any]) -> None:
    ranks = planned(case(tensor_parallel_size=2, pipeline_parallel_size=given.get("pp", 1)))
    assert planned(case(**given))["weightsGiB"] == ranks["weightsGiB"]


@pytest.mark.parametrize(
    "measured",
    [
        {"gpu": "NVIDIA H200", "tp": 8, "config": FACTS, "vllm_version": "0.31.0", "quantization": "fp8"},
        {"gpu": "Tesla T4", "quantization": "awq_marlin", "vllm_version": "v0.28"},
        {"gpu": "NVIDIA A100 40GB", "dtype": "half"},
        {"gpu": "NVIDIA H100 NVL (94GB)", "quantization": "int8 w8a16", "dtype": "auto"},
        {"gpu": "NVIDIA GeForce RTX 5090 32GB", "quantization": "nvfp4 mixed", "kv_cache_dtype": "fp8"},
        {"gpu": "NVIDIA A100 40GB MIG 1g.5gb", "gpu_memory_gib": 4.75},
        {"gpu": None, "gpu_memory_gib": 79.15, "enforce_eager": True, "block_size": None, "max_num_seqs": None},
        {"gpu": "Some New GPU", "gpu_memory_gib": 100, "model": "meta-llama/Llama-3.1-8B", "note": "a remark"},
    ],
    ids=lambda one: str(one.get("gpu")),
)
def test_measured_data_is_understood_as_it_is(measured: Mapping[str, Any]) -> None:
    found = planned(case(**measured))
    assert found["verdict"] in ("Fits", "Tight", "DoesNotFit")
    assert found["kvCacheTokens"] is not None


@pytest.mark.parametrize(
    ("wrong", "field", "said"),
    [
        ({"gpu": "H1000"}, "gpu", "is no GPU of the catalogue"),
        ({"gpu": 7}, "gpu", "is no name"),
        ({"tp": 0}, "tp", "from 1 to 1,024"),
        ({"tp": 3}, "tp", "cannot share 32 attention heads"),
        ({"gpu_memory_utilization": 92}, "gpu_memory_utilization", "no share"),
        ({"config": 5}, "config", "no model's configuration"),
        ({"config": {**LLAMA_8B, "hidden_size": "wide"}}, "config.hidden_size", "hidden_size"),
        ({"max_modellen": 4096}, "max_modellen", "no such option"),
        ({"max-model-length": 4096}, "max-model-length", "no such option"),
        ({"gpu_mem": 0.9}, "gpu_mem", "two options"),
        ({"maxModelLen": 4096}, "maxModelLen", "max_model_len says something else"),
        ({"gpu": "3 x L4", "pp": 2}, "gpu", "groups of equal size"),
        ({"num_gpus": 3, "pp": 2}, "num_gpus", "groups of equal size"),
        ({"vllm_version": "banana"}, "vllm_version", "no version"),
        ({"vllm_version": "0.27.0"}, "vllm_version", "no version of vLLM that can be planned for"),
    ],
    ids=lambda one: str(one) if isinstance(one, str) else "",
)
def test_a_bad_value_is_named_by_its_key(wrong: Mapping[str, Any], field: str, said: str) -> None:
    with pytest.raises(BadInput) as bad:
        planned(case(**wrong))
    assert [(one.field, said in one.message, bool(one.remedy)) for one in bad.value.problems] == [(field, True, True)]


def test_keys_are_read_however_they_are_written() -> None:
    plain = planned({"gpu": "L4", "config": LLAMA_8B, "max_model_len": 4096, "kv_cache_dtype": "fp8"})
    written = {"GPU": "L4", "Config": LLAMA_8B, "--max-model-len": 4096, "kvCacheDtype": "fp8", "Remark": "mine"}
    assert planned(written) == plain


NO_KERNEL = "refuses it: kv_cache_dtype: kv_cache_dtype fp8: no attention"
BNB, FP8 = {"quantization": "bitsandbytes"}, {"gpu": "T4", "kv_cache_dtype": "fp8"}
NOTES: list[tuple[dict[str, Any], str]] = [
    ({"gpu": "unknown", "gpu_memory_gib": 22.03}, "gpu 'unknown' is taken as not given"),
    ({"vllm_version": "not said"}, "vllm_version 'not said' is taken as not given"),
    ({"vllm_version": ""}, "vllm_version '' is taken as not given"),
    # What vLLM refuses is planned all the same: it was measured once.
    (FP8, f"vLLM {NEWEST} {NO_KERNEL}"),
    (FP8 | {"vllm_version": "0.30.0"}, f"vLLM 0.30 {NO_KERNEL}"),
    ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "max_num_batched_tokens: 32 tokens of a step are fewer"),
    ({"max_model_len": 200_000, "kv_cache_dtype": "fp8", "gpu": "H100"}, "the model was made for 131,072 tokens"),
    ({"quantization": "torchao"}, "they are taken as 8 bit"),
    (BNB, f"vLLM {NEWEST} has no bitsandbytes of its own"),
    (BNB | {"vllm_version": "0.30.0"}, "vLLM 0.30 has no bitsandbytes of its own"),
]


@pytest.mark.parametrize(("given", "noted"), NOTES, ids=str)
def test_what_is_taken_otherwise_is_noted(given: Mapping[str, Any], noted: str) -> None:
    found = planned(case(**given))
    assert found["kvCacheTokens"] is not None
    assert [noted in note for note in found["notes"]] == [True]


def test_the_version_decides_what_is_counted() -> None:
    plans = [planned(case(vllm_version=one))["kvCacheTokens"] for one in ("0.28", "0.31.0", "0.32.0", None)]
    assert plans[0] == plans[1] != plans[2] == plans[3]


def test_with_offline_no_model_is_asked_for(tmp_path: Path) -> None:
    code, found = lines(json.dumps({"gpu": "L4", "model": "hf://a/b"}), tmp_path, offline=True)
    assert code == ExitCode.BAD_INPUT
    assert "--offline" in found[0]["error"]["message"]


def test_standard_input_is_answered_line_by_line(monkeypatch: pytest.MonkeyPatch, llmservice: Command) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"\ufeff{json.dumps(case())}\n"))  # as Windows tools begin a text
    ran = llmservice("plan", "--batch", "-", "--explain")
    assert (ran.code, ran.json["id"], ran.json["verdict"]) == (ExitCode.DONE, "a", "Fits")
    assert ran.json["explanation"]


@pytest.mark.parametrize(
    ("words", "fields"),
    [(["-", "--gpu", "L4", "-tp", "2"], ["--gpu", "--tensor-parallel-size"]), (["/no/such/cases.jsonl"], ["--batch"])],
)
def test_options_that_a_batch_cannot_use_are_refused(words: list[str], fields: list[str], llmservice: Command) -> None:
    ran = llmservice("plan", "--batch", *words)
    assert (ran.code, [line.split(":")[1].strip() for line in ran.errors]) == (ExitCode.BAD_INPUT, fields)


def test_a_planner_that_fails_costs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = memory.plan

    def fails_at_7(request: Request) -> Plan:
        if request.max_num_seqs == 7:
            raise TypeError("seven")
        return plan(request)

    monkeypatch.setattr(memory, "plan", fails_at_7)
    code, found = lines("\n".join(json.dumps(case(max_num_seqs=n)) for n in (6, 7, 8)), tmp_path)
    assert code == ExitCode.BAD_INPUT
    assert [line.get("verdict") for line in found] == ["Fits", None, "Fits"]
    assert "the planner failed: TypeError: seven" in found[1]["error"]["message"]


def test_speculation_takes_its_share() -> None:
    small = {**LLAMA_8B, "num_hidden_layers": 4}
    plain = planned(case())
    drafted = planned(case(speculative_config={"method": "draft_model", "num_speculative_tokens": 3, "config": small}))
    assert drafted["kvCacheTokens"] < plain["kvCacheTokens"]
    with pytest.raises(BadInput, match="method 'oracle' is none"):
        planned(case(speculative_config='{"method": "oracle"}'))


def test_adapters_take_the_share_that_is_asked_for() -> None:
    tokens = [planned(case(**given))["kvCacheTokens"] for given in ({}, {"enable_lora": True}, {"max_loras": 8})]
    assert tokens == sorted(set(tokens), reverse=True)
    assert planned(case(enable_lora=False, max_loras=8))["kvCacheTokens"] == tokens[0]


def test_measured_start_ups_are_read_as_the_calibration_reads_them(tmp_path: Path) -> None:
    records = list(startups())
    text = "\n".join(json.dumps({"id": None, "max_loras": None, **record.case}) for record in records)
    _, found = lines(text, tmp_path)
    assert [line["id"] for line in found] == [record.id for record in records]
    unknown = [line["verdict"] == "Unknown" for line in found]
    assert unknown == [record.request is None for record in records]
