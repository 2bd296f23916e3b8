"""What is found before a long start: versions, files and their permissions, shapes, devices."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime.contract import GPU, Failure
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight import accelerators, model_files, preflight
from llmservice_runtime.preflight.accelerators import GIB, Device
from llmservice_runtime.preflight.preflight import check_version, reported
from llmservice_runtime.supervisor.vllm_process import Flags, read_flags

from tests.support.weights import safetensors

LLAMA = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 28, "max_position_embeddings": 4096}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A whole model."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(safetensors(2048))
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def reasons(found: Iterator[Any]) -> list[R]:
    return [failure.reason for failure in found]


def test_a_whole_model_is_fine(model: Path) -> None:
    assert list(model_files.check_files(model, needs_weights=True)) == []


@pytest.mark.parametrize(
    ("damage", "reason", "words"),
    [
        pytest.param(lambda m: (m / "config.json").unlink(), R.MODEL_NOT_FOUND, "a.safetensors", id="no config"),
        pytest.param(
            lambda m: os.truncate(m / "b.safetensors", 2000), R.MODEL_CORRUPT, "b.safetensors is damaged", id="cut off"
        ),
        pytest.param(
            lambda m: (m / "a.safetensors").write_bytes(b"<html>sign in first</html>"), R.MODEL_CORRUPT,
            "a.safetensors is damaged", id="another file",
        ),
        pytest.param(lambda m: (m / "b.safetensors").unlink(), R.WEIGHTS_UNREADABLE, "b.safetensors", id="half a copy"),
        pytest.param(
            lambda m: (m / "b.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid x"),
            R.WEIGHTS_UNREADABLE, "git-lfs pointer", id="git-lfs",
        ),
        pytest.param(
            lambda m: [path.unlink() for path in m.glob("*.safetensors*")], R.WEIGHTS_UNREADABLE,
            "Cannot find any model weights", id="no weights",
        ),
    ],
)  # fmt: skip
def test_damage(model: Path, damage: Any, reason: R, words: str) -> None:
    damage(model)
    failure = next(iter(model_files.check_files(model, needs_weights=True)))
    assert failure.reason is reason
    assert words in failure.message


def test_a_model_that_is_not_there_says_what_is(model: Path) -> None:
    (failure,) = model_files.check_files(model.parent / "other" / "x", needs_weights=True)
    assert failure.reason is R.MODEL_NOT_FOUND
    assert "holds: model." in failure.message


def test_dummy_weights_need_no_files(model: Path) -> None:
    for path in model.glob("*.safetensors*"):
        path.unlink()
    assert list(model_files.check_files(model, needs_weights=False)) == []


@pytest.mark.parametrize("name", ["a.safetensors", "config.json"])
def test_a_file_of_others_is_named_with_its_mode(model: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / name).chmod(0o600)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != name and access(path, mode))
    failure = next(iter(model_files.check_files(model, needs_weights=True)))
    assert failure.reason is R.WEIGHTS_UNREADABLE
    assert f"{name} has mode -rw-------" in failure.message
    assert f"user {os.getuid()}" in failure.message
    assert "chmod" in failure.remedy


@pytest.mark.parametrize(
    ("config", "args", "weights", "found"),
    [
        pytest.param({}, ["-tp", "2"], "auto", [], id="divides"),
        pytest.param({}, ["-tp", "8"], "auto", [R.PARALLELISM_MISMATCH], id="does not divide"),
        pytest.param({"text_config": {"num_attention_heads": 3}}, ["-tp=2"], "auto", [R.PARALLELISM_MISMATCH],
                     id="does not divide, multimodal"),
        pytest.param({}, ["--max-model-len", "4096"], "auto", [], id="as long as it was made for"),
        pytest.param({}, ["--max-model-len", "4097"], "auto", [R.MAX_MODEL_LEN_TOO_LARGE], id="too long"),
        pytest.param({}, ["--max-model-len", "auto"], "auto", [], id="length auto"),
        pytest.param({"rope_scaling": {"rope_type": "yarn"}}, ["--max-model-len", "9999"], "auto", [], id="stretched"),
        pytest.param({}, ["--max-model-len", "9999", "--hf-overrides", "{}"], "auto", [], id="overridden"),
        pytest.param({}, [], "int4", [R.QUANTIZATION_MISMATCH], id="int4 of a plain checkpoint"),
        pytest.param({"quantization_config": {"quant_method": "gptq"}}, [], "int4", [], id="int4 of an int4 one"),
        pytest.param({"quantization_config": {"quant_method": "gptq"}}, ["-q", "fp8"], "fp8",
                     [R.QUANTIZATION_MISMATCH], id="fp8 of an int4 checkpoint"),
        pytest.param({"quantization_config": {"quant_method": "fp8"}}, ["-q", "fp8"], "fp8", [], id="fp8 of fp8"),
        pytest.param({}, ["-q", "fp8"], "fp8", [], id="fp8 at load"),
        pytest.param({"quantization_config": {"quant_method": "fp8"}}, ["-q", "fp8_per_block"], "auto",
                     [R.QUANTIZATION_MISMATCH], id="twice"),
    ],
)  # fmt: skip
def test_config(config: dict[str, Any], args: list[str], weights: str, found: list[R]) -> None:
    assert reasons(model_files.check_config({**LLAMA, **config}, read_flags(args), weights)) == found


@pytest.mark.parametrize(
    ("found", "expected", "reason"),
    [
        pytest.param("0.32.0", "0.32.0", None, id="the same"),
        pytest.param("0.32.1+cpu", "0.32.0", None, id="another patch"),
        pytest.param("0.31.0", "0.32.0", R.VERSION_MISMATCH, id="older"),
        pytest.param("0.32.0", None, None, id="nothing expected"),
        pytest.param("dev", "0.32.0", None, id="a build of one's own"),
        pytest.param(None, "0.32.0", R.ENGINE_MISSING, id="no vLLM"),
    ],
)
def test_version(found: str | None, expected: str | None, reason: R | None) -> None:
    assert reasons(check_version(found, expected)) == ([reason] if reason else [])


def gpu(capability: tuple[int, int] | None = (9, 0), free: float = 79, total: float = 80) -> Device:
    return Device("NVIDIA Test", capability, int(free * GIB), int(total * GIB))


@pytest.mark.parametrize(
    ("devices", "flags", "method", "found"),
    [
        pytest.param([gpu()], Flags(), None, [], id="fine"),
        pytest.param([], Flags(), None, [R.ACCELERATOR_MISSING], id="none"),
        pytest.param([gpu()], Flags(tensor_parallel_size=2), None, [R.ACCELERATOR_MISSING], id="too few"),
        pytest.param([gpu()] * 8, Flags(tensor_parallel_size=4, pipeline_parallel_size=2), None, [], id="eight"),
        pytest.param([gpu((7, 5))], Flags(dtype="bfloat16"), None, [R.PRECISION_UNSUPPORTED], id="bf16 on a T4"),
        pytest.param([gpu((7, 5))], Flags(dtype="float16"), "fp8", [], id="fp8 on a T4"),
        pytest.param([gpu((7, 5))], Flags(), "mxfp4", [R.PRECISION_UNSUPPORTED], id="mxfp4 on a T4"),
        pytest.param([gpu(None)], Flags(dtype="bfloat16"), "mxfp4", [], id="AMD is left to vLLM"),
        pytest.param([gpu(free=40)], Flags(), None, [R.GPU_MEMORY_BUSY], id="somebody else's memory"),
        pytest.param([gpu(free=40)], Flags(gpu_memory_utilization=0.4), None, [], id="a share of it"),
        pytest.param([gpu(), gpu(free=1)], Flags(), None, [], id="the other one's memory"),
    ],
)
def test_devices(devices: list[Device], flags: Flags, method: str | None, found: list[R]) -> None:
    assert reasons(accelerators.check(devices, flags, method)) == found


@pytest.mark.parametrize(
    ("said", "reason", "words"),
    [
        (
            "CUDA initialization: The NVIDIA driver on your system is too old (found version 12040). Please update",
            R.DRIVER_MISMATCH,
            "supports CUDA 12.4",
        ),
        (
            "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was "
            "attempted on non supported HW",
            R.DRIVER_MISMATCH,
            "Error 804",
        ),
        ("", R.ACCELERATOR_MISSING, "sees 0 GPUs"),
    ],
)
def test_the_preflight_says_why_torch_sees_no_gpu(
    monkeypatch: pytest.MonkeyPatch, said: str, reason: R, words: str
) -> None:
    def list_devices() -> list[object]:
        if said:
            warnings.warn(said, stacklevel=1)  # as torch.cuda.is_available() does
        return []

    monkeypatch.setattr(preflight, "vllm_version", lambda: "0.32.0")
    monkeypatch.setattr("llmservice_runtime.preflight.accelerators.list_devices", list_devices)
    first = next(preflight.check(ServeOptions(accelerator="nvidia"), read_flags(("--model", "hf"))))
    assert first.reason is reason
    assert words in first.message


GPUS = [Device("NVIDIA L4", (8, 9), 22 * GIB, 22 * GIB), Device("Tesla T4", (7, 5), 14 * GIB, 14 * GIB)]


@pytest.mark.parametrize(
    ("devices", "count", "gpu"),
    [(GPUS, 2, GPU("Tesla T4", 14)), (GPUS, 1, GPU("NVIDIA L4", 22)), ([], 1, None)],
    ids=["the smallest", "of those that are used", "none"],
)
def test_the_report_names_the_gpu(devices: list[Device], count: int, gpu: GPU | None) -> None:
    assert accelerators.smallest(devices, count) == gpu
    failure = Failure(R.ENGINE_MISSING, "a", "b")
    for each in (None, failure):
        found = preflight.read_report(reported(each, gpu))
        assert (found.failure and found.failure.reason, found.gpu) == (each and each.reason, gpu)


@pytest.mark.parametrize(
    "gpu",
    [{}, [], {"name": "x" * 5000, "memoryGiB": 1}, {"name": "x", "memoryGiB": 1e30}, {"name": "x", "memoryGiB": -1}],
    ids=["empty", "a list", "a long name", "too much", "less than nothing"],
)
def test_what_is_no_gpu_is_left_out_of_a_failure(gpu: object) -> None:
    document = {"version": 1, "reason": "EngineMissing", "message": "a", "remedy": "b", "gpu": gpu}
    found = Failure.from_json(json.dumps(document))
    assert found is not None
    assert found.gpu is None
