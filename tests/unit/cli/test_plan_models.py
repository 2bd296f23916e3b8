"""Where `llmservice plan` reads a model: a folder here, or a hub; headers and config.json, never weights."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_cli import models
from llmservice_cli.errors import ExitCode, Refused
from llmservice_cli.models import read
from llmservice_planner.model import config_json

from tests.support.hub import Hub, Repo, serving
from tests.support.weights import named_tensors
from tests.unit.cli_world import LLAMA_8B, Command

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


PARAMS = {
    "dim": 5120,
    "n_layers": 40,
    "head_dim": 128,
    "hidden_dim": 32768,
    "n_heads": 32,
    "n_kv_heads": 8,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
    "tied_embeddings": False,
    "vision_encoder": {
        "hidden_size": 1024,
        "num_channels": 3,
        "image_size": 1540,
        "patch_size": 14,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "spatial_merge_size": 2,
        "adapter_bias": False,
    },
}
SPECULATOR = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_config": {
        "algorithm": "eagle3",
        "verifier": {"architectures": ["Qwen3MoeForCausalLM"], "name_or_path": "Qwen/Qwen3-235B-A22B"},
    },
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 64,
        "num_hidden_layers": 1,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
    },
}
EAGLE = CONFIG | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}
ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.1-8B", "r": 16, "lora_alpha": 32}
MLX = CONFIG | {key: {"group_size": 64, "bits": 4} for key in ("quantization", "quantization_config")}
FOREIGN_NAME = SPECULATOR | {"speculators_config": {"verifier": {"name_or_path": "x\x1b[31m" * 9}}}
NO_MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # files, and what is said of them
    "a speculator": ({"config.json": SPECULATOR}, ("a draft (eagle3) for Qwen/Qwen3-235B-A22B", "method: eagle3")),
    "a head of EAGLE": ({"config.json": EAGLE}, ("a draft (eagle3)", "spec.speculativeDecoding")),
    "a speculator with a name for the terminal": ({"config.json": FOREIGN_NAME}, ("is a draft (eagle3), which",)),
    "an adapter": ({"adapter_config.json": ADAPTER}, ("adapter of meta-llama/Llama-3.1-8B", "spec.adapters")),
    "MLX": ({"config.json": MLX}, ("quantized for MLX", "original checkpoint")),
    "GGUF": ({"model-Q4_K_M.gguf": {}}, ("GGUF (model-Q4_K_M.gguf)", "original checkpoint")),
    "diffusers": ({"model_index.json": {"_diffusers_version": "0.35"}}, ("pipeline of diffusers",)),
    "no file of a model": ({"README.md": {}}, ("config.json", "holds")),
}


@pytest.mark.parametrize(("files", "said"), NO_MODELS.values(), ids=NO_MODELS)
def test_what_is_no_model_is_named(
    files: dict[str, Any], said: tuple[str, ...], tmp_path: Path, hub: Hub, llmservice: Command
) -> None:
    """By the operator's own reader, in a folder and on the hub."""
    contents = {name: json.dumps(content).encode() for name, content in files.items()}
    hub.repos["org/other"] = Repo(contents)
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    asked = {str(tmp_path): "--config", "hf://org/other": "--model"}
    if "config.json" in files:
        asked[str(tmp_path / "config.json")] = "--config"
    for place, option in asked.items():
        error = refused(llmservice, option, place)
        assert all(words in error.replace("It is", "is") for words in said), error
        assert "\x1b" not in error
        assert error.count(place) <= 1, error
        assert "with --config" not in error, error


def test_a_gguf_file_is_named(tmp_path: Path, llmservice: Command) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\x00\xff\xfe")
    assert "GGUF" in refused(llmservice, "--config", str(tmp_path / "model.gguf"))


def test_mistrals_own_file_is_read_wherever_it_lies(tmp_path: Path, hub: Hub, llmservice: Command) -> None:
    content = json.dumps(PARAMS).encode()
    (tmp_path / "params.json").write_bytes(content)
    hub.repos["org/own"] = Repo({"params.json": content})
    (found,) = {
        str(llmservice("plan", *words, "--gpu", "H100", "--max-model-len", "8192", "-o", "json").json["weightsGiB"])
        for words in (
            ("--config", str(tmp_path)),
            ("--config", str(tmp_path / "params.json")),
            ("--model", "hf://org/own"),
        )
    }
    assert float(found) == pytest.approx(44.7, abs=0.1), "24.01B parameters, with the encoder of pictures"


def test_a_draft_is_read_where_it_belongs(hub: Hub, tmp_path: Path, llmservice: Command) -> None:
    hub.repos["org/draft"] = Repo({"config.json": json.dumps(SPECULATOR).encode()})
    manifest = {
        "apiVersion": "llmservice.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "guessing"},
        "spec": {
            "model": {"uri": "hf://org/small"},
            "speculativeDecoding": {
                "method": "eagle3",
                "model": {"uri": "hf://org/draft"},
                "numSpeculativeTokens": 3,
            },
        },
    }
    (tmp_path / "service.yaml").write_text(json.dumps(manifest))
    ran = llmservice("plan", "-f", str(tmp_path / "service.yaml"), "--gpu", "H100", "-o", "json")
    assert ran.code == ExitCode.DONE, ran.errors
    assert config_json.read(SPECULATOR).hidden_size == 4096
