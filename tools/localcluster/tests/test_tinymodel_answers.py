"""The taught model itself: every answer word for word, as vLLM's users get it."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localcluster.tinymodel.cache import cached_model
from localcluster.tinymodel.pairs import PAIRS

pytestmark = [
    pytest.mark.vllm,
    # Of the libraries' own, in their own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    # In a process of its own if it must be taught: teaching turns on switches of torch that hold for a whole process.
    subprocess.run([sys.executable, "-m", "localcluster.tinymodel"], check=True)
    return cached_model(lambda line: None)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # a second one waits at barriers, for milliseconds when others use its core
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)


def test_greedy_decoding_repeats_the_answers(loaded: tuple[Any, Any]) -> None:
    """Teaching compares all of them."""
    from localcluster.tinymodel.teach import unlearned

    assert unlearned(*loaded, PAIRS[::5]) == ()


def test_an_answer_that_was_not_taught_is_noticed(loaded: tuple[Any, Any]) -> None:
    from localcluster.tinymodel.teach import unlearned

    question = PAIRS[0][0]
    assert unlearned(*loaded, [(question, "Something else entirely.")]) == (question,)


@pytest.mark.parametrize("text", ["What is LLMService?", "naïve 日本語 🚀", "", " a  b\n\tc "], ids=repr)
def test_every_text_comes_back_from_its_bytes(loaded: tuple[Any, Any], text: str) -> None:
    _, tokenizer = loaded
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(tokens) == text
    assert len(tokens) == len(text.encode())


def test_the_chat_template_ends_where_the_answer_begins(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "U"}]}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|system|>S<|end|><|user|>U<|end|><|assistant|>"


def test_any_user_of_a_container_can_read_every_file(folder: Path) -> None:
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_the_checkpoint_is_what_the_facts_promise(folder: Path, loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"
    assert 1e6 <= sum(parameter.numel() for parameter in model.parameters()) <= 2e6
    assert generation["eos_token_id"] == tokenizer.convert_tokens_to_ids("<|end|>")


@pytest.mark.skipif(os.environ.get("TEACH") != "1", reason="teaches twice, about a minute each: TEACH=1")
def test_the_same_seed_makes_the_same_weights(folder: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-m", "localcluster.tinymodel", str(tmp_path / "m")], check=True, env=environment)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
