"""Which GPUs vLLM takes for a checkpoint by its own quantization: the planner's table against vLLM's own refusal."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from llmservice_api.dtypes import KVCache
from llmservice_planner import splits
from llmservice_planner.kv_blocks import COMPRESSED_BLOCK, PLAIN_ROWS
from llmservice_planner.model import config_json
from llmservice_planner.plan import Request
from llmservice_planner.served import device_refusal, least_capability, method_of
from llmservice_vllm.quantization import KERNELS_DECIDE, MINIMUM_CAPABILITY

from tests.unit import vllm_models
from tests.unit.planner import test_deepseek_v4 as deepseek_v4
from tests.unit.planner import test_served as checkpoints
from tests.unit.planner_models import CONFIGS, gpu

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CAPABILITIES = ((6, 0), (7, 0), (7, 5), (8, 0), (9, 0))
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "awq": checkpoints.AWQ,
    "gptq": checkpoints.GPTQ | {"desc_act": False, "sym": True},
    "fp8": checkpoints.FP8,
    "mxfp4": checkpoints.MXFP4,
    "modelopt NVFP4": checkpoints.NVFP4 | {"kv_cache_quant_algo": None, "group_size": 16, "ignore": []},
    "modelopt FP8": {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None, "ignore": []},
}
# The scheme is chosen layer by layer, and asked by itself.
SCHEMES = {
    "int4 in groups": (checkpoints.INT4, "compressed_tensors_wNa16.CompressedTensorsWNA16"),
    "MXFP4": (checkpoints.CT_MXFP4, "compressed_tensors_w4a4_mxfp4.CompressedTensorsW4A4Mxfp4"),
    "fp8 weights": (
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}}},
        "compressed_tensors_w8a16_fp8.CompressedTensorsW8A16Fp8",
    ),
    "int8": (
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}}},
        "compressed_tensors_w8a8_int8.CompressedTensorsW8A8Int8",
    ),
}
_PACKAGE = "vllm.model_executor.layers.quantization.compressed_tensors.schemes"


@pytest.fixture(scope="module", autouse=True)
def _offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


def own(quantization: dict[str, Any]) -> Any:
    found = config_json.read(vllm_models.CONFIGS["llama"] | {"quantization_config": quantization}).quantization
    assert found is not None
    return found


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """vLLM's own view of a checkpoint."""
    from vllm.config import ModelConfig

    config = vllm_models.CONFIGS["llama"] | {"quantization_config": CHECKPOINTS[request.param]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return CHECKPOINTS[request.param], ModelConfig(model=str(tmp_path), skip_tokenizer_init=True, dtype="bfloat16")


@pytest.mark.parametrize("model", CHECKPOINTS, indirect=True)
def test_vllm_refuses_the_same_gpus(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import LoadConfig, VllmConfig
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    quantization, config = model
    for capability in CAPABILITIES:
        seen = DeviceCapability(*capability)
        monkeypatch.setattr(current_platform, "get_device_capability", lambda *_, seen=seen, **__: seen)
        if capability < least_capability(own(quantization)):
            with pytest.raises(ValueError, match="Minimum capability"):
                VllmConfig._get_quantization_config(config, LoadConfig())
        else:
            VllmConfig._get_quantization_config(config, LoadConfig())


@pytest.mark.parametrize(("quantization", "scheme"), SCHEMES.values(), ids=SCHEMES)
def test_schemes_of_compressed_tensors(quantization: dict[str, Any], scheme: str) -> None:
    module, name = scheme.split(".")
    least = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name).get_min_capability()
    assert divmod(least, 10) == least_capability(own(quantization))


def test_the_table_is_vllms() -> None:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, get_quantization_config

    asked = {name: least for name, least in MINIMUM_CAPABILITY.items() if name in QUANTIZATION_METHODS}
    assert len(asked) > 20
    for name, least in asked.items():
        if name not in KERNELS_DECIDE:
            assert get_quantization_config(name).get_min_capability() == least, name


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_method_of_a_checkpoint_is_in_the_table(name: str) -> None:
    assert method_of(own(CHECKPOINTS[name])) in MINIMUM_CAPABILITY


BLOCK = 128
WIDTHS = (512, 640, 768, 1408, 2048, 29568)


def refuses(check: Any, *arguments: Any) -> bool:
    try:
        check(*arguments)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("width", WIDTHS)
def test_vllm_refuses_the_same_numbers_of_ranks(width: int, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import distributed
    from vllm.distributed.utils import verify_group_size_divides_partition
    from vllm.model_executor.layers.fused_moe.oracle.fp8 import refine_fp8_moe_block_shape
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    monkeypatch.setattr(distributed, "get_tensor_model_parallel_world_size", lambda: ranks)
    share, hidden = width // ranks, 2048
    shape = SimpleNamespace(intermediate_size_per_partition=share, tp_size=ranks, hidden_dim=hidden)
    is_refined = refine_fp8_moe_block_shape(shape, [BLOCK, BLOCK]) is not None
    of_experts = not is_refined and refuses(fp8_utils.validate_fp8_block_shape_moe, share, [BLOCK, BLOCK])
    layer = SimpleNamespace(tp_size=ranks)
    of_rows = refuses(fp8_utils.validate_fp8_block_shape, layer, width, hidden, share, [hidden], [BLOCK, BLOCK])
    of_groups = refuses(verify_group_size_divides_partition, share, BLOCK)

    dense = checkpoints.QWEN2_72B | {"hidden_size": hidden, "intermediate_size": width, "head_dim": BLOCK}
    experts = checkpoints.MOE | {"hidden_size": hidden, "moe_intermediate_size": width, "num_key_value_heads": 8}
    for model, quantization, expected in (
        (dense, checkpoints.BLOCKS, of_rows),
        (dense, checkpoints.INT4, of_groups),
        (experts, checkpoints.BLOCKS, of_experts),
    ):
        made = config_json.read(model | {"quantization_config": quantization})
        found = splits.misfit(Request(made, None, tensor_parallel_size=ranks))
        assert (found is not None) == expected, (found, quantization)


H200 = gpu("NVIDIA-H200")
DEEPSEEK_V4 = Request(config_json.read(CONFIGS["deepseek-v4-flash"]), H200, tensor_parallel_size=4)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)])
def test_gpus_that_deepseek_v4_has_kernels_for(capability: tuple[int, int]) -> None:
    """vLLM chooses between two backends by the GPU (deepseek_v4/nvidia/model.py, _select_dsv4_attn_cls)."""
    from vllm.models.deepseek_v4.nvidia.flashinfer_sparse import DeepseekV4FlashInferMLASparseBackend
    from vllm.models.deepseek_v4.sparse_mla import DeepseekV4SparseMLABackend
    from vllm.platforms.interface import DeviceCapability

    chosen = DeepseekV4FlashInferMLASparseBackend if capability[0] == 12 else DeepseekV4SparseMLABackend
    known = chosen.supports_compute_capability(DeviceCapability(*capability))
    refused = device_refusal(replace(DEEPSEEK_V4, device=replace(H200, capability=capability)))
    assert known == (refused is None), refused
    assert chosen.get_supported_kernel_block_sizes() == [COMPRESSED_BLOCK]


@pytest.mark.parametrize("stored", get_args(KVCache))
def test_types_of_deepseek_v4s_cache(stored: Any) -> None:
    from vllm.models.deepseek_v4.attention import _resolve_dsv4_kv_cache_dtype

    refused = device_refusal(replace(DEEPSEEK_V4, kv_cache_dtype=stored))
    assert refuses(_resolve_dsv4_kv_cache_dtype, True, stored, None) == (refused is not None), refused


def is_whole(block: int, stored: str) -> bool:
    import torch
    from vllm.models.deepseek_v4.nvidia.flashinfer_sparse import _packed_block_span

    dtype = torch.float8_e4m3fn if stored == "fp8" else torch.bfloat16
    pool = torch.empty(0, dtype=dtype, device="meta").as_strided((0, 64, 512), (block // dtype.itemsize, 512, 1))
    try:
        _packed_block_span(pool)
    except NotImplementedError:
        return False
    return True


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("layers", [42, 43])
@pytest.mark.parametrize("stored", ["bfloat16", "fp8"])
def test_blocks_of_plain_rows(stored: Any, layers: int, stages: int) -> None:
    """Each worker has the blocks of its own pipeline stage."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_layout import KVCacheLayout

    from tests.unit.planner import vllm_caches as caches

    model = config_json.read(CONFIGS["deepseek-v4-flash"] | {"num_hidden_layers": layers})
    blackwell = replace(H200, capability=(10, 0))
    asked = replace(DEEPSEEK_V4, architecture=model, device=blackwell, kv_cache_dtype=stored)
    asked = replace(asked, attention_backend=PLAIN_ROWS, pipeline_parallel_size=stages)
    setting = caches.Setting(
        block_size=256, layout=KVCacheLayout.BLHNC, kv_dtype=stored, stages=stages, batched_tokens=8192
    )
    workers = kv_cache_utils.get_kv_cache_configs(
        caches.config(setting), caches.specs([layer.attention for layer in model.layers], setting), [2**36] * stages
    )
    blocks = [worker.kv_cache_tensors[0].block_stride for worker in workers]
    refused = device_refusal(asked)
    assert all(is_whole(block, stored) for block in blocks) == (refused is None), (blocks, refused)


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 0)])
def test_backends_of_deepseek_v4(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that vLLM has for other models are refused, or left out of account."""
    from vllm.models.deepseek_v4.nvidia import model
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    monkeypatch.setattr(model.current_platform, "get_device_capability", lambda: DeviceCapability(*capability))
    for backend in AttentionBackendEnum:
        config = SimpleNamespace(attention_config=SimpleNamespace(backend=backend))
        asked = replace(DEEPSEEK_V4, device=replace(H200, capability=capability), attention_backend=backend.name)
        is_refused = "refuses the attention backend" in (device_refusal(asked) or "")
        assert is_refused == refuses(model._select_dsv4_attn_cls, config), backend


@pytest.mark.parametrize("name", ["the publisher's", "saved by transformers"])
def test_files_of_deepseek_v4_that_vllm_reads(name: str, tmp_path: Path) -> None:
    """Each layer's class asks for these (deepseek_v4/attention.py, nvidia/model.py)."""
    from vllm.transformers_utils.config import get_config

    # Beside these keys transformers refuses the words of this one, before a class sees them.
    file = {key: value for key, value in deepseek_v4.FILES[name].items() if key != "mlp_layer_types"}
    (tmp_path / "config.json").write_text(json.dumps(file))
    made = get_config(tmp_path, trust_remote_code=False)
    is_read = all(hasattr(made, key) for key in ("compress_ratios", "num_hash_layers", "qk_rope_head_dim"))
    asked = replace(DEEPSEEK_V4, architecture=config_json.read(deepseek_v4.FILES[name]))
    assert is_read == (device_refusal(asked) is None)
