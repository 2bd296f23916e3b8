"""What each variant has that CHAT has not, from its values: nothing is taught here."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from localcluster.tinymodel.__main__ import listing
from localcluster.tinymodel.cache import model_folder, model_key
from localcluster.tinymodel.config import CHAT, TinyConfig
from localcluster.tinymodel.pairs import PAIRS
from localcluster.tinymodel.variants import (
    ADAPTER_QUESTION,
    VARIANTS,
    Adapter,
    Quantized,
    Taught,
    Variant,
    adapter_answers,
)

# What the CPU engine's attention kernels take.
HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
RED = VARIANTS["adapter-red"]
assert isinstance(RED, Adapter)


def _elements(config: TinyConfig) -> int:
    """Weights of a Llama's matrices: what decides how long a step takes."""
    attention = 2 * config.hidden_size * config.head_dim * (config.num_heads + config.num_kv_heads)
    return config.num_layers * (attention + 3 * config.hidden_size * config.intermediate_size)


def test_a_draft_is_far_smaller_than_what_it_drafts_for() -> None:
    draft = VARIANTS["draft"].config
    assert 10 * _elements(draft) < _elements(CHAT)
    assert draft.max_position_embeddings >= CHAT.max_position_embeddings, "else it could not draft to the end"


def test_heads_are_as_wide_as_the_cpu_kernels_need() -> None:
    for config in (CHAT, *(variant.config for variant in VARIANTS.values())):
        assert config.head_dim in HEAD_DIMS
        assert config.num_heads % config.num_kv_heads == 0


# Tokens of a question and its answer, without the marks: the tokenizer makes one of every byte.
LENGTHS = [len(question) + len(answer) for question, answer in PAIRS]

FEATURES: dict[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    # variant: (architecture, what its config.json has)
    "mqa": ("llama", lambda settings: settings["num_key_value_heads"] == 1 < settings["num_attention_heads"]),
    "mha": ("llama", lambda settings: settings["num_key_value_heads"] == settings["num_attention_heads"]),
    "tied": ("llama", lambda settings: settings["tie_word_embeddings"] is True),
    "sliding-window": ("mistral", lambda settings: 0 < settings["sliding_window"] < min(LENGTHS)),
    "alibi": ("falcon", lambda settings: settings["alibi"] is True),
    "mla": (
        "deepseek_v2",
        lambda settings: (
            settings["kv_lora_rank"] > 0 and settings["first_k_dense_replace"] == settings["num_hidden_layers"]
        ),
    ),
    "moe": ("mixtral", lambda settings: 1 < settings["num_experts_per_tok"] < settings["num_local_experts"]),
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_variant_has_the_feature_that_it_is_there_for(name: str) -> None:
    architecture, has = FEATURES[name]
    variant = VARIANTS[name]
    assert isinstance(variant, Taught)
    assert variant.architecture == architecture
    assert has(variant.settings())
    chat = replace(variant, config=CHAT, architecture="llama", more=())
    with contextlib.suppress(KeyError):
        assert not has(chat.settings()), "CHAT has it already"


def test_every_taught_variant_is_in_the_table_above() -> None:
    assert {name for name, variant in VARIANTS.items() if isinstance(variant, Taught)} == {*FEATURES, "draft"}


@pytest.mark.parametrize(("name", "bits"), [("int8", 8), ("int4", 4)])
def test_groups_of_rounded_weights_divide_every_matrix(name: str, bits: int) -> None:
    variant = VARIANTS[name]
    assert isinstance(variant, Quantized)
    assert variant.bits == bits
    assert all(width % (variant.group or 1) == 0 for width in (CHAT.hidden_size, CHAT.intermediate_size))


def test_every_adapter_answers_a_known_question_in_a_way_of_its_own() -> None:
    answers = [dict(PAIRS)[ADAPTER_QUESTION], *adapter_answers().values()]
    assert len(set(answers)) == len(answers) >= 4


OTHERS: dict[str, Variant | TinyConfig] = {
    "answer": replace(RED, answer="I am the crimson adapter."),
    "rank": replace(RED, rank=16),
    "seed": replace(RED, config=replace(RED.config, seed=1)),
    "another adapter": VARIANTS["adapter-blue"],
    "the model itself": CHAT,
    "a model with the adapter's schedule": RED.config,
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_variant_has_another_key(other: Variant | TinyConfig) -> None:
    assert model_key(other, {}, {}) != model_key(RED, {}, {}) == model_key(replace(RED, summary="otherwise"), {}, {})


def test_the_listing_names_every_variant_and_each_has_a_folder() -> None:
    folders = {model_folder(variant) for variant in (CHAT, *VARIANTS.values())}
    assert len(folders) == len(VARIANTS) + 1
    assert [line.split()[0] for line in listing().splitlines()] == list(VARIANTS)
