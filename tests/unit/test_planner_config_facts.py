"""Facts under the names of config.json, without a model_type: counted to the published number of parameters."""

import contextlib
from itertools import pairwise
from typing import Any

import pytest
from llmservice_operator.planner.model import config_json
from llmservice_operator.planner.model.architecture import Incomplete, InvalidModel, Kind

PLAIN: dict[str, Any] = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
LATENT: dict[str, Any] = {
    "num_hidden_layers": 27,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 102400,
    "intermediate_size": 10944,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "num_shared_experts": 2,
    "mla": {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
    "first_k_dense": 1,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("facts", "parameters"),
    [
        pytest.param(PLAIN, 8_030_261_248, id="llama 3 8b"),
        pytest.param(LATENT, 15_706_484_224, id="deepseek v2 lite"),
        pytest.param(
            {
                "num_hidden_layers": 60,
                "hidden_size": 8192,
                "num_attention_heads": 128,
                "num_key_value_heads": 8,
                "head_dim": 64,
                "vocab_size": 65024,
                "intermediate_size": 32768,
                "total_parameters": 41_835_000_000,
            },
            pytest.approx(41_835_000_000, rel=1e-5),
            id="falcon 40b: the total tells that its mlp has two matrices and that nothing is tied",
        ),
    ],
)
def test_parameters_of_facts(facts: dict[str, Any], parameters: int) -> None:
    assert config_json.read(facts).counted_parameters == parameters


def test_latent_attention_is_read_from_its_section() -> None:
    attention = config_json.read(LATENT).layers[5].attention
    assert (attention.kind, attention.latent_dim, attention.rope_dim) == (Kind.LATENT, 512, 64)


def test_sliding_layers_are_counted_and_spread() -> None:
    made = config_json.read({**PLAIN, "num_hidden_layers": 62, "sliding_window": 1024, "sliding_layers": 52})
    full = [index for index, layer in enumerate(made.layers) if layer.attention.kind is Kind.FULL]
    assert len(full) == 10
    assert max(b - a for a, b in pairwise(full)) <= 7


def test_global_layers_have_heads_of_their_own() -> None:
    more = {"num_global_key_value_heads": 4, "global_head_dim": 512, "attention_k_eq_v": True}
    made = config_json.read({**PLAIN, **more, "sliding_window": 1024, "sliding_layers": 24})
    shapes = {(one.attention.kind, one.attention.kv_heads, one.attention.key_dim) for one in made.layers}
    assert shapes == {(Kind.SLIDING, 8, 128), (Kind.FULL, 4, 512)}


def test_linear_attention_keeps_a_state() -> None:
    section = {"num_value_heads": 48, "num_key_heads": 16, "key_head_dim": 128, "value_head_dim": 128, "conv_kernel": 4}
    made = config_json.read(
        {**PLAIN, "attention_layers": 8, "linear_attention_layers": 24, "linear_attention": section}
    )
    state = next(layer.attention for layer in made.layers if layer.attention.kind is Kind.STATE)
    assert state.conv_values == (2 * 16 * 128 + 48 * 128) * 3
    assert state.recurrent_values == 48 * 128 * 128
    assert sum(layer.attention.kind is Kind.FULL for layer in made.layers) == 8


NONSENSE = [-1, "many", [], {}, 2**70, 1.5, [[1, 2, 3]], True]


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key in sorted(PLAIN) for value in NONSENSE if (key, value) != ("tie_word_embeddings", True)],
)
def test_nonsense_is_named_and_never_a_traceback(key: str, value: object) -> None:
    with contextlib.suppress(Incomplete), pytest.raises(InvalidModel, match=key):
        config_json.read({**PLAIN, key: value})
