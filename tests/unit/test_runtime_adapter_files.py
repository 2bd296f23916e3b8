"""What is told of an adapter's folder before vLLM sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime.adapters.adapter_files import problem

from tests.unit.adapter_folder import HIDDEN, write_adapter

BASE = {"hidden_size": HIDDEN, "num_hidden_layers": 2}


def cut(folder: Path) -> None:
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def overwrite(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def remove(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()

    return change


def nothing(folder: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("written", "change", "said"),
    [
        pytest.param({}, nothing, None, id="good"),
        pytest.param({"rank": 16}, nothing, None, id="as great as allowed"),
        pytest.param({"rank": 32}, nothing, "spec.lora.maxLoraRank", id="rank too great"),
        pytest.param({"rank_pattern": {"q_proj": 64}}, nothing, "rank 64 exceeds 16", id="of one module"),
        pytest.param({"r": None}, nothing, "r is missing", id="no rank"),
        pytest.param({"target_modules": []}, nothing, "target_modules", id="no targets"),
        pytest.param({"target_modules": "all-linear"}, nothing, None, id="all targets"),
        pytest.param({"peft_type": "PREFIX_TUNING"}, nothing, "LoRA adapters only", id="no LoRA"),
        pytest.param({"hidden": 2 * HIDDEN}, nothing, "hidden size is 64", id="of a wider model"),
        pytest.param({"hidden": HIDDEN // 2}, nothing, "hidden size is 64", id="of a narrower model"),
        pytest.param({"layer": 2}, nothing, "the base model has 2 layers", id="of a deeper model"),
        pytest.param({}, remove("adapter_config.json"), "no adapter_config.json", id="no config"),
        pytest.param({}, overwrite("adapter_config.json", b"{"), "no adapter_config.json", id="broken config"),
        pytest.param({}, remove("adapter_model.safetensors"), "incomplete", id="no weights"),
        pytest.param({}, cut, "incomplete", id="weights cut short"),
        pytest.param(
            {}, overwrite("adapter_model.safetensors", b"version https://git"), "incomplete", id="LFS pointer"
        ),
    ],
)
def test_a_folder(tmp_path: Path, written: dict[str, Any], change: Callable[[Path], None], said: str | None) -> None:
    folder = write_adapter(tmp_path / "a", **written)
    change(folder)
    found = problem(folder, max_rank=16, base=BASE)
    assert found is None if said is None else said in (found or "")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "spec.adapters" in (problem(tmp_path / "absent", max_rank=16, base=BASE) or "")


def test_a_base_model_that_says_nothing_forbids_nothing(tmp_path: Path) -> None:
    assert problem(write_adapter(tmp_path / "a", hidden=7, layer=9), max_rank=16, base={}) is None


def test_sizes_of_a_model_that_sees_are_those_of_its_text_part(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    assert problem(folder, max_rank=16, base={"hidden_size": 1, "text_config": BASE}) is None
