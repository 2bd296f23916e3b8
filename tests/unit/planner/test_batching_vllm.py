"""The scheduler's limits where none are set: what vLLM takes, what the planner counts with, what the status reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from llmservice_api.service import LLMService
from llmservice_operator.manifests.pod_template import effective, pod_template
from llmservice_operator.manifests.revision import RevisionChoices
from llmservice_planner import gpus
from llmservice_planner.batching import Batching, batching
from llmservice_planner.model import config_json
from llmservice_planner.plan import Request
from llmservice_planner.requests import request_of

from tests.unit import vllm_models
from tests.unit.decide_world import an_llmservice
from tests.unit.operator.test_build_deployment import SETTINGS

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

LENGTH = vllm_models.LENGTH
PRODUCTS = ("Tesla-T4", "NVIDIA-L4", "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "NVIDIA-B200")
CPU: dict[str, dict[str, Any]] = {
    "one rank": {},
    "two tensor-parallel ranks": {"parallelism": {"tensorParallelSize": 2}},
    "two stages": {"parallelism": {"pipelineParallelSize": 2}},
    "both": {"parallelism": {"tensorParallelSize": 2, "pipelineParallelSize": 2}},
    "few sequences": {"batching": {"maxNumSeqs": 4}},
    "few tokens": {"batching": {"maxNumBatchedTokens": 128, "maxNumSeqs": 8}},
    "short requests": {"batching": {"maxModelLen": 64, "maxNumSeqs": 4}},
    "whole prompts": {"batching": {"chunkedPrefill": False}},
    "whole prompts, long ones": {"batching": {"chunkedPrefill": False, "maxModelLen": 256, "maxNumSeqs": 1}},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    vllm_models.write(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


def on_a_cpu(**sections: Any) -> LLMService:
    facts = {"architecture": {"maxPositionEmbeddings": LENGTH}}
    spec = {"model": {"uri": "hf://a/b", **facts}, "accelerator": {"type": "cpu"}, **sections}
    return LLMService.from_object(an_llmservice(spec))


def vllms(llm: LLMService, models: Path) -> Batching:
    """Of the engine that it starts with the options of a service."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    parallelism, asked = llm.spec.parallelism, llm.spec.batching
    arguments = EngineArgs(
        model=str(models / "llama"),
        skip_tokenizer_init=True,
        tensor_parallel_size=parallelism.tensor_parallel_size,
        pipeline_parallel_size=parallelism.pipeline_parallel_size,
        max_model_len=asked.max_model_len,
        max_num_seqs=asked.max_num_seqs,
        max_num_batched_tokens=asked.max_num_batched_tokens,
        enable_chunked_prefill=asked.chunked_prefill,
    )
    made = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER).scheduler_config
    return Batching(made.max_num_seqs, made.max_num_batched_tokens)


@pytest.mark.parametrize("sections", CPU.values(), ids=CPU)
def test_on_cpus(sections: dict[str, Any], models: Path) -> None:
    llm = on_a_cpu(**sections)
    model = config_json.read(vllm_models.CONFIGS["llama"])
    asked = request_of(
        llm.spec, architecture=model, tensors=None, device=None, vllm_version="0.32.0", cpu_kv_cache_gib=4
    )
    expected = vllms(llm, models)
    assert batching(asked) == expected
    reported = effective(llm, pod_template(llm, SETTINGS))["batching"]
    assert (reported["maxNumSeqs"], reported["maxNumBatchedTokens"]) == (expected.sequences, expected.tokens)


@pytest.mark.parametrize("product", PRODUCTS)
def test_on_gpus(product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.engine import arg_utils
    from vllm.usage.usage_lib import UsageContext

    gpu = gpus.find(product)
    assert gpu is not None
    platform = SimpleNamespace(
        get_device_total_memory=lambda: round(gpu.memory_gib * 2**30),
        get_device_name=lambda: product.replace("-", " "),
        is_tpu=lambda: False,
        is_cpu=lambda: False,
    )
    monkeypatch.setattr(arg_utils, "current_platform", platform)
    tokens, sequences = arg_utils.EngineArgs.get_batch_defaults(world_size=2)
    server = UsageContext.OPENAI_API_SERVER
    expected = Batching(sequences[server], tokens[server])
    assert batching(Request(None, gpus.device(product), tensor_parallel_size=2)) == expected
    llm = LLMService.from_object(an_llmservice({"model": {"uri": "hf://a/b"}, "accelerator": {"products": [product]}}))
    for chosen in (RevisionChoices(), RevisionChoices(gpu=product)):
        reported = effective(llm, pod_template(llm, SETTINGS, chosen), chosen)["batching"]
        assert (reported["maxNumSeqs"], reported["maxNumBatchedTokens"]) == (expected.sequences, expected.tokens)
