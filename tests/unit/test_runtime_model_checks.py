"""What is reported of models by their configurations: in the preflight, or before their weights are fetched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight import model_checks
from llmservice_runtime.preflight.preflight import check
from llmservice_runtime.supervisor.vllm_process import Flags

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
