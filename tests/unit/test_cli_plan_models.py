"""Where `llmservice plan` reads a model: a folder here, or a hub; headers and config.json, never weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_cli.app import run
from llmservice_cli.errors import ExitCode
from llmservice_cli.plan import models

from tests.support.hub import Hub, Repo, serving
from tests.support.weights import named_tensors

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": (1000, 64),
    f"{LAYER}.self_attn.q_proj.weight": (64, 64),
    f"{LAYER}.self_attn.k_proj.weight": (32, 64),
    f"{LAYER}.self_attn.v_proj.weight": (32, 64),
    f"{LAYER}.self_attn.o_proj.weight": (64, 64),
    f"{LAYER}.mlp.gate_proj.weight": (128, 64),
    f"{LAYER}.mlp.up_proj.weight": (128, 64),
    f"{LAYER}.mlp.down_proj.weight": (64, 128),
    "model.norm.weight": (64,),
}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors": named_tensors({name: ("BF16", shape) for name, shape in SHAPES.items()}),
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repos = {"org/small": Repo(FILES), "org/gated": Repo(FILES, gated=True)}
    with serving(Hub(repos, {"hf_theToken": {"org/gated"}})) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


def folder(path: Path) -> Path:
    for name, content in FILES.items():
        (path / name).write_bytes(content)
    return path


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["plan", *words, "--gpu", "T4", "-o", "json", "--explain"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("option", ["--config", "--model"])
def test_a_folder_is_weighed_by_its_headers(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = planned(capsys, option, str(folder(tmp_path)))
    assert (code, found["verdict"]) == (ExitCode.DONE, "Fits")
    assert "real sizes of the checkpoint's tensors" in str(found["explanation"])


def test_a_folder_without_weights_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder(tmp_path) / "model.safetensors").unlink()
    _, found = planned(capsys, "--config", str(tmp_path))
    assert "parameters counted" in str(found["explanation"])


def test_a_damaged_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder(tmp_path) / "model.safetensors").write_bytes(b"\xff" * 64)
    assert run(["plan", "--config", str(tmp_path), "--gpu", "T4"]) == ExitCode.BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith(f"error: --config: {tmp_path}: ")
    assert "model.safetensors" in said


def test_a_model_of_the_hub_is_the_same_as_its_folder(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, here = planned(capsys, "--model", str(folder(tmp_path)))
    _, there = planned(capsys, "--model", "hf://org/small")
    assert there == here
    assert hub.sent["model.safetensors"] < len(FILES["model.safetensors"])


def test_a_model_that_nobody_may_read_without_a_token(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["plan", "--model", "hf://org/gated", "--gpu", "T4"]) == ExitCode.BAD_INPUT
    assert "Set HF_TOKEN (hf://)" in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", "hf_theToken")
    assert planned(capsys, "--model", "hf://org/gated")[1]["verdict"] == "Fits"


def test_no_network_is_one_line_after_a_few_tries(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(models, "PATIENCE_SECONDS", 0.0)
    assert run(["plan", "--model", "hf://org/small", "--gpu", "T4"]) == ExitCode.BAD_INPUT
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(said) == 1
    assert said[0].endswith("Check the network, proxies and HF_ENDPOINT. Or give its config.json with --config.")
