"""What is reported of models by their configurations: in the preflight, or before their weights are fetched.

With a context extension (YaRN): from the model's config.json to vLLM's flags, or a refusal that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight import model_checks
from llmservice_runtime.preflight.model_checks import Extension, InvalidExtension, extension_arguments
from llmservice_runtime.preflight.preflight import check
from llmservice_runtime.supervisor.vllm_process import Flags, read_flags

from tests.support.fetching import CONFIG, Fetcher, model_files
from tests.support.hub import Hub, Repo, serving
from tests.support.weights import safetensors

BPE = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<s>"}]}
SWAPPED = {**BPE, "model": {"type": "BPE", "vocab": {"a": 1, "b": 0}}}
UNIGRAM = {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0], ["<s>", 0.0]]}}


def folder(path: Path, config: dict[str, Any], tokenizer: dict[str, Any] | None = None) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (path / "model.safetensors").write_bytes(safetensors(2000))
    if tokenizer is not None:
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


Side = tuple[dict[str, Any], dict[str, Any] | None]
DRAFTS: dict[str, tuple[str, Side, Side, str | None]] = {
    "the same": ("draft_model", ({"vocab_size": 3}, BPE), ({"vocab_size": 3}, BPE), None),
    "the same, told in another way": ("draft_model", ({}, BPE), ({}, UNIGRAM), None),
    "a tokenizer that says nothing": ("draft_model", ({}, BPE), ({}, None), None),
    "another size": ("draft_model", ({"vocab_size": 3}, BPE), ({"vocab_size": 4}, BPE), "4 tokens"),
    "another order": ("draft_model", ({}, BPE), ({}, SWAPPED), "differ in 2 tokens: 'a' has number 1"),
    "a multimodal model's": ("draft_model", ({"text_config": {"vocab_size": 3}}, BPE), ({"vocab_size": 4}, BPE), "4"),
    "a head of this model": ("eagle", ({"hidden_size": 64}, BPE), ({"hidden_size": 64, "vocab_size": 9}, None), None),
    "a head of another": ("medusa", ({"hidden_size": 64}, BPE), ({"hidden_size": 32}, None), "32 values"),
    "a head that says what it reads": (
        "eagle3", ({"hidden_size": 64}, BPE), ({"hidden_size": 32, "target_hidden_size": 64}, None), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DRAFTS)
def test_drafts(tmp_path: Path, case: str) -> None:
    method, ours, theirs, words = DRAFTS[case]
    model, draft = folder(tmp_path / "model", *ours), folder(tmp_path / "draft", *theirs)
    found = list(model_checks.check_draft(model, draft, method))
    assert [failure.reason for failure in found] == ([R.DRAFT_MODEL_MISMATCH] if words else [])
    if words:
        assert words in found[0].message
        assert "spec.speculativeDecoding.model.uri" in found[0].remedy


def preflight(flags: Flags, **options: Any) -> list[R]:
    return [failure.reason for failure in check(ServeOptions(accelerator="cpu", **options), flags)]


@pytest.mark.vllm
def test_the_preflight_looks_at_both_mounted_models(tmp_path: Path) -> None:
    model, draft = folder(tmp_path / "model", {}, BPE), folder(tmp_path / "draft", {}, SWAPPED)
    assert preflight(Flags(model=str(model))) == []
    assert preflight(Flags(model=str(model), draft_model=str(draft))) == [R.DRAFT_MODEL_MISMATCH]
    assert preflight(Flags(model=str(model), draft_model=str(tmp_path / "none"))) == [R.MODEL_NOT_FOUND]
    assert preflight(Flags(model=str(model), max_model_len=4096), context_extension="yarn:4") == []
    assert preflight(Flags(model=str(model), max_model_len=4097), context_extension="yarn:4") == [
        R.CONTEXT_EXTENSION_INVALID
    ]


@pytest.mark.vllm
def test_the_preflight_leaves_alone_what_is_still_to_be_fetched(tmp_path: Path) -> None:
    absent = str(tmp_path / "model")
    assert preflight(Flags(model=absent)) == [R.MODEL_NOT_FOUND]
    assert preflight(Flags(model=absent), fetch=("model=hf://org/tiny",)) == []


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    repos = {
        "org/model": Repo({**model_files(), "tokenizer.json": json.dumps(BPE).encode()}),
        "org/draft": Repo({**model_files(), "tokenizer.json": json.dumps(SWAPPED).encode()}),
        "org/alibi": Repo(model_files(alibi=True)),
    }
    with serving(Hub(repos)) as running:
        yield running


@pytest.mark.parametrize(
    ("wanted", "options", "args", "reason"),
    [
        pytest.param(["model=hf://org/model"], [], ["--tensor-parallel-size=3"], R.PARALLELISM_MISMATCH, id="heads"),
        pytest.param(["model=hf://org/model"], [], ["--max-model-len=2000"], R.MAX_MODEL_LEN_TOO_LARGE, id="length"),
        pytest.param(["model=hf://org/alibi"], ["--context-extension=yarn:4"], [], R.CONTEXT_EXTENSION_INVALID,
                     id="context extension"),
        pytest.param(["model=hf://org/model", "draft=hf://org/draft"], [], ['--speculative-config={"model": "x"}'],
                     R.DRAFT_MODEL_MISMATCH, id="draft"),
    ],
)  # fmt: skip
def test_no_weights_are_fetched_for_what_cannot_work(
    hub: Hub, tmp_path: Path, wanted: list[str], options: list[str], args: list[str], reason: R
) -> None:
    hub.asked.clear()
    fetcher = Fetcher(tmp_path, {"HF_ENDPOINT": hub.url})
    ended = fetcher.run(*wanted, options=tuple(options), args=tuple(args))
    assert ended.code == 1
    assert ended.failure is not None, ended.words
    assert ended.failure.reason is reason
    assert hub.contents() == []


LLAMA = {"model_type": "llama", "max_position_embeddings": 1024, "rope_theta": 10000.0}


def extended(config: dict[str, Any], text: str = "yarn:4", *args: str) -> tuple[str, ...]:
    return extension_arguments(config, Extension.parse(text), read_flags(args))


ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 10000.0}
STRETCHED: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a plain model": (LLAMA, "yarn:4", {"max_position_embeddings": 4096, "rope_parameters": ROPE}),
    "another original length": (
        LLAMA, "yarn:2:512",
        {"max_position_embeddings": 1024,
         "rope_parameters": {**ROPE, "factor": 2.0, "original_max_position_embeddings": 512}},
    ),
    "the parameters of newer files": (
        {**LLAMA, "rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "yarn:4",
        {"max_position_embeddings": 4096, "rope_parameters": {**ROPE, "rope_theta": 5e5}},
    ),
    "a multimodal model": (
        {"text_config": {**LLAMA, "rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}}, "yarn:4",
        {"text_config": {"max_position_embeddings": 4096, "rope_parameters": {**ROPE, "mrope_section": [1, 2]}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STRETCHED)
def test_what_vllm_is_told(case: str) -> None:
    config, text, overrides = STRETCHED[case]
    flag, overridden, length_flag, length = extended(config, text)
    assert (flag, length_flag) == ("--hf-overrides", "--max-model-len")
    assert json.loads(overridden) == overrides
    assert int(length) == overrides.get("text_config", overrides)["max_position_embeddings"]


@pytest.mark.parametrize("length", ["4096", "2k", "auto"])
def test_a_length_that_is_given_stays(length: str) -> None:
    assert "--max-model-len" not in extended(LLAMA, "yarn:4", "--max-model-len", length)


REFUSED: dict[str, tuple[dict[str, Any], str, tuple[str, ...], str]] = {
    "ALiBi": ({"model_type": "falcon", "alibi": True, "max_position_embeddings": 2048}, "yarn:4", (), "alibi"),
    "ALiBi, another way": ({"model_type": "x", "attn_config": {"alibi": True}}, "yarn:4", (), "alibi"),
    "learned positions": ({"model_type": "gpt2", "n_positions": 1024}, "yarn:4", (), "gpt2"),
    "stretched already": (
        {**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8}}, "yarn:4", (), "llama3 already",
    ),
    "of several kinds": (
        {**LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1}, "sliding_attention": {"rope_theta": 2}}},
        "yarn:4", (), "several kinds",
    ),
    "an unknown length": ({"model_type": "llama"}, "yarn:4", (), "does not say for how many tokens"),
    "beyond the factor": (LLAMA, "yarn:4", ("--max-model-len", "4097"), "to 4096"),
    "two overrides": (LLAMA, "yarn:4", ("--hf-overrides", "{}"), "--hf-overrides"),
    "no factor": (LLAMA, "yarn", (), "METHOD:FACTOR"),
    "a factor that stretches nothing": (LLAMA, "yarn:1", (), "not served"),
    "another method": (LLAMA, "ntk:4", (), "not served"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    config, text, args, words = REFUSED[case]
    with pytest.raises(InvalidExtension) as caught:
        extended(config, text, *args)
    assert words in caught.value.failure.message
    assert "spec.contextExtension" in caught.value.failure.remedy


def test_the_remedy_names_the_factor_that_would_do() -> None:
    with pytest.raises(InvalidExtension) as caught:
        extended(LLAMA, "yarn:2", "--max-model-len", "5000")
    assert "factor to 5" in caught.value.failure.remedy
    assert "at most 2048" in caught.value.failure.remedy


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_vllm_takes_it(tmp_path: Any) -> None:
    """Its own configuration of a real model folder: the length that it derives is the one that is promised."""
    from vllm.config import ModelConfig

    config = {
        **LLAMA, "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 32,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    overrides = json.loads(extended(config)[1])
    made = ModelConfig(str(tmp_path), hf_overrides=overrides, skip_tokenizer_init=True, dtype="float32")
    assert made.max_model_len == 4096
    assert made.hf_config.rope_parameters["rope_type"] == "yarn"
    assert made.hf_config.rope_parameters["original_max_position_embeddings"] == 1024
