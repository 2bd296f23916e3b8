"""Where `llmservice plan` reads a model: a folder here, or a hub; headers and config.json, never weights."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_cli.errors import ExitCode
from llmservice_cli.plan import models
from llmservice_cli.plan.reading import read
from llmservice_cli.plan.values import Refused
from llmservice_operator.planner.model import config_json

from tests.support.hub import Hub, Repo, serving
from tests.support.weights import named_tensors

from .cli_world import LLAMA_8B, Command

CONFIG = {
    **LLAMA_8B,
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def planned(llmservice: Command, *words: str) -> Any:
    ran = llmservice("plan", *words, "--gpu", "T4", "-o", "json", "--explain")
    assert ran.code == ExitCode.DONE
    return ran.json


def refused(llmservice: Command, *words: str) -> str:
    """The one error."""
    ran = llmservice("plan", *words, "--gpu", "T4")
    assert ran.code == ExitCode.BAD_INPUT
    (error,) = (line for line in ran.errors if line.startswith("error: "))
    return error


@pytest.mark.parametrize("option", ["--config", "--model"])
def test_a_folder_is_weighed_by_its_headers_else_counted(option: str, folder: Path, llmservice: Command) -> None:
    found = planned(llmservice, option, str(folder))
    assert (found["verdict"], "real sizes of the checkpoint's tensors" in str(found["explanation"])) == ("Fits", True)
    (folder / "model.safetensors").unlink()
    assert "parameters counted" in str(planned(llmservice, option, str(folder))["explanation"])


def test_a_damaged_file_is_named(folder: Path, llmservice: Command) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    error = refused(llmservice, "--config", str(folder))
    assert error.startswith(f"error: --config: {folder}: ")
    assert "model.safetensors" in error


def test_a_model_of_the_hub_is_the_same_as_its_folder(hub: Hub, folder: Path, llmservice: Command) -> None:
    assert planned(llmservice, "--model", "hf://org/small") == planned(llmservice, "--model", str(folder))
    assert hub.sent["model.safetensors"] < len(FILES["model.safetensors"])


def test_a_model_that_needs_a_token(hub: Hub, llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Set HF_TOKEN (hf://)" in refused(llmservice, "--model", "hf://org/gated")
    monkeypatch.setenv("HF_TOKEN", "hf_theToken")
    assert planned(llmservice, "--model", "hf://org/gated")["verdict"] == "Fits"


def test_no_network_is_one_line_after_a_few_tries(llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(models, "PATIENCE_SECONDS", 0.0)
    error = refused(llmservice, "--model", "hf://org/small")
    assert error.endswith("Check the network, proxies and HF_ENDPOINT. Or give its config.json with --config.")


def test_reading_a_config_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_: Any) -> None:
        while True:
            pass

    monkeypatch.setattr(config_json, "read", endless)
    before = signal.getsignal(signal.SIGPROF)
    with pytest.raises(Refused, match=r"more than 0\.05 s of processor time"):
        read(LLAMA_8B, seconds=0.05)
    assert signal.getsignal(signal.SIGPROF) is before
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0
