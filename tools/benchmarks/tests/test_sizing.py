"""The table of sizes: fresh, of models whose parameters are counted as published, right where the answer is known."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from benchmarks.pages import stale
from benchmarks.sizing.page import BEGIN, END, PAGE, TOP, generated, with_rows
from benchmarks.sizing.plans import Model, Size, models, sizes

ROOT = Path(__file__).parents[3]
MODELS = models()
all_sizes = cache(lambda: tuple(sizes()))


def test_fresh() -> None:
    assert stale(ROOT, generated(ROOT)) == [], "run `python -m benchmarks.sizing`"


def test_a_changed_page_is_stale(tmp_path: Path) -> None:
    files = generated(ROOT)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert stale(tmp_path, files) == []
    (tmp_path / PAGE).write_text(files[PAGE].replace("±9%", "±8%", 1))
    assert stale(tmp_path, files) == [PAGE]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_counts_the_published_parameters(model: Model) -> None:
    assert model.architecture.counted_parameters / 1e9 == pytest.approx(model.billions, rel=0.015)


def test_models_are_many_in_order_and_have_a_source() -> None:
    sizes_of = [round(model.billions) for model in MODELS]
    assert len(MODELS) >= 30
    assert sizes_of == sorted(sizes_of)
    assert all(model.source for model in MODELS)
    assert set(TOP) <= {model.name for model in MODELS}


KNOWN = {
    ("Qwen/Qwen2.5-7B-Instruct", "bf16", "NVIDIA-L4"): 1,
    ("meta-llama/Llama-3.3-70B-Instruct", "bf16", "NVIDIA-A100-SXM4-80GB"): 2,
    ("meta-llama/Llama-3.3-70B-Instruct", "bf16", "NVIDIA-H100-80GB-HBM3"): 2,
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "bf16", "NVIDIA-A100-SXM4-80GB"): 2,
    ("openai/gpt-oss-120b", "mxfp4", "NVIDIA-H100-80GB-HBM3"): 1,
    ("Qwen/Qwen3-235B-A22B", "fp8", "NVIDIA-H100-80GB-HBM3"): 4,
    ("meta-llama/Llama-3.1-405B-Instruct", "fp8", "NVIDIA-H100-80GB-HBM3"): 8,
    ("meta-llama/Llama-3.1-405B-Instruct", "bf16", "NVIDIA-H100-80GB-HBM3"): None,
    ("deepseek-ai/DeepSeek-R1-0528", "fp8", "NVIDIA-H100-80GB-HBM3"): None,
    ("deepseek-ai/DeepSeek-R1-0528", "fp8", "NVIDIA-H200"): 8,
}
"""What people serve these models on, and what they cannot."""


@pytest.mark.parametrize(("model", "precision", "product"), KNOWN)
def test_known_answers(model: str, precision: str, product: str) -> None:
    found = {(size.model.name, size.precision, size.device.name): size.gpus for size in all_sizes()}
    assert found[model, precision, product] == KNOWN[model, precision, product]


def test_a_figure_is_of_what_surely_fits() -> None:
    planned = [(size.plan, size.short) for size in all_sizes() if size.plan is not None and size.short is not None]
    assert planned
    for plan, short in planned:
        assert (plan.max_model_len or 0) >= 8192
        assert (short.max_concurrency or 0) > (plan.max_concurrency or 0) >= 1


def test_fewer_gpus_never_surely_fit() -> None:
    assert [size for size in all_sizes() if size.maybe and size.gpus and size.maybe >= size.gpus] == []


def of(model: str) -> list[Size]:
    return [size for size in all_sizes() if size.model.name == model]


def test_rows_replace_only_what_is_between_the_markers() -> None:
    text = with_rows(f"before\n{BEGIN}\nold\n{END}\nafter\n", of(TOP[0]))
    assert text.startswith(f"before\n{BEGIN}\n\n| model |")
    assert text.endswith(f"|\n\n{END}\nafter\n")
    assert "old" not in text


@pytest.mark.parametrize("text", ["", f"{BEGIN}\n", f"{END}\n", f"{END}\n{BEGIN}\n"])
def test_a_page_without_the_markers_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="has no line"):
        with_rows(text, [])
