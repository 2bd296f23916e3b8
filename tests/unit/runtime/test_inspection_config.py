"""A config.json cut down to 4096 bytes says the same to the planner, whatever its author put into it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Architecture
from llmservice_planner.model.config_keys import ALIASES, Keys
from llmservice_runtime.contract import TERMINATION_LIMIT, Failure, FailureReason
from llmservice_runtime.inspection import config_json as inspected_config
from llmservice_runtime.inspection.config_json import INSPECTED_KEYS, SECTION_KEYS, expanded, modules, selected
from llmservice_runtime.inspection.inspected import Inspection

from tests.unit.planner.test_weights import MIXED as SEVERAL_QUANTIZATIONS
from tests.unit.planner.test_weights import QWEN3_8B
from tests.unit.planner_models import PUBLISHED

Json = dict[str, Any]

TENSORS = {
    **dict.fromkeys(("embedding", "head", "attention", "feedForward", "experts", "vision", "mtp", "other"), 10**12),
    "parameters": 10**12,
    "dtype": "float8_e4m3fn",
}
REVISION = "0e9e39f249a16976918f6564b8830bc894c89659"


def inspected(config: Json) -> Json:
    """What the operator gets to read of a config.json: through the message, and back."""
    text = Inspection(REVISION, selected(config), TENSORS).to_json()
    assert len(text.encode()) <= TERMINATION_LIMIT
    found = Inspection.from_json(text)
    assert found is not None
    assert found.revision == REVISION
    assert found.tensors == TENSORS
    return dict(found.config)


MIXED = {name: QWEN3_8B | {"quantization_config": section} for name, (section, *_) in SEVERAL_QUANTIZATIONS.items()}


@pytest.mark.parametrize("config", [*PUBLISHED.values(), *MIXED.values()], ids=[*PUBLISHED, *MIXED])
def test_the_planner_reads_the_same(config: Json) -> None:
    full = without_patterns(config_json.read(config))
    assert without_patterns(config_json.read(inspected(config))) == full


def without_patterns(architecture: Architecture) -> Architecture:
    """The modules that stay in 16 bit are written otherwise; what follows from them stands in the layers."""
    if architecture.quantization is None:
        return architecture
    return replace(architecture, quantization=replace(architecture.quantization, kept=(), rules=()))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys that the planner looks for on the first level."""
    found: set[str] = set()
    raw = Keys.raw

    def recorded(keys: Keys, name: str) -> Any:
        if not keys._path:
            found.update((name, *ALIASES.get(name, ())))
        return raw(keys, name)

    monkeypatch.setattr(Keys, "raw", recorded)
    return found


def test_what_the_planner_looks_for_is_inspected(asked: set[str]) -> None:
    for config in PUBLISHED.values():
        config_json.read(config)
    assert len(asked) > 60
    assert asked - INSPECTED_KEYS - set(SECTION_KEYS) == set()


@pytest.mark.parametrize("name", PUBLISHED)
def test_nothing_else_is(name: str) -> None:
    text = json.dumps(inspected(PUBLISHED[name]))
    for word in ("_name_or_path", "LABEL_", "long_factor", "auto_map", "eos_token_id", "init_config"):
        assert word not in text


@pytest.mark.parametrize(
    ("full", "short"),
    [
        pytest.param(["a"] * 20, [["a", 20]], id="one value"),
        pytest.param(["a", "b"] * 3, ["a", "b"] * 3, id="short lists are left alone"),
        pytest.param(["a"] * 9 + ["b"], [["a", 9], "b"], id="single values stay single"),
        pytest.param(list(range(30)), list(range(30)), id="nothing repeats"),
        pytest.param([1] * 5 + [True] * 5, [[1, 5], [True, 5]], id="true is not 1"),
    ],
)
def test_run_lengths(full: list[object], short: list[object]) -> None:
    assert selected({"layer_types": full}) == {"layer_types": short}
    back = expanded(json.loads(json.dumps(short)))
    assert [(type(one), one) for one in back] == [(type(one), one) for one in full]


MODULES: dict[str, tuple[list[str], int, list[str] | None]] = {
    "all layers": ([f"model.layers.{n}.mlp.gate" for n in range(8)], 8, ["model.layers.*.mlp.gate"]),
    "some layers": ([f"model.layers.{n}.mlp.gate" for n in (0, 7)], 8, [r"re:model\.layers\.([07])\.mlp\.gate"]),
    "another name of the language model": (
        [f"language_model.model.layers.{n}.mlp.gate" for n in range(8)], 8, ["*layers.*.mlp.gate"],
    ),
    "another name, some layers": (
        [f"language_model.model.layers.{n}.mlp.gate" for n in (2, 3)], 8, [r"re:.*layers\.([23])\.mlp\.gate"],
    ),
    "experts of some layers": (
        [f"model.layers.{n}.mlp.experts.{e}.up_proj" for n in (1, 2) for e in range(99)], 8,
        [r"re:model\.layers\.([12])\.mlp\.experts\.\d+\.up_proj"],
    ),
    "a vision tower": ([f"model.visual.blocks.{n}.attn.qkv" for n in range(3)], 8, ["model.visual.blocks.*.attn.qkv"]),
    "nearly all": (
        [f"model.layers.{n}.mlp.gate" for n in range(3, 61)], 61,
        [r"re:model\.layers\.([3-9]|[1-5]\d|60)\.mlp\.gate"],
    ),
    "single ones stay": (["lm_head", "re:.*self_attn.*", "model.layers.3.mlp"], 8, None),
    "numbers within a word are a name": (["layers_2.mlp", "layers_3.mlp"], 8, None),
}  # fmt: skip


@pytest.mark.parametrize("case", MODULES)
def test_modules_become_patterns(case: str) -> None:
    names, layers, patterns = MODULES[case]
    assert modules(names, layers) == (names if patterns is None else patterns)


@pytest.mark.parametrize(
    "numbers",
    [{0}, {3, 4}, set(range(1, 48, 2)), set(range(3, 61)), {0, 7, 93, 100, 104, 105, 118}, set(range(90, 126))],
    ids=str,
)
def test_a_pattern_means_the_named_layers_and_no_others(numbers: set[int]) -> None:
    names = [f"model.layers.{layer}.mlp.{kind}" for layer in sorted(numbers) for kind in ("gate", "up")]
    patterns = modules(names, 126)
    assert len(patterns) == 2
    for layer in range(126):
        matched = [p for p in patterns if re.fullmatch(p.removeprefix("re:"), f"model.layers.{layer}.mlp.gate")]
        named = [p for p in patterns if p == f"model.layers.{layer}.mlp.gate"]
        assert len(matched or named) == (layer in numbers), layer


HOSTILE: dict[str, Json] = {
    "numbers that JSON has not": {"hidden_size": float("nan"), "num_hidden_layers": float("inf")},
    "a deep object": {"rope_scaling": json.loads('{"a":' * 500 + "1" + "}" * 500)},
    "a deep list": {"layer_types": json.loads("[" * 500 + "]" * 500)},
    "objects for sections": {"text_config": {"text_config": {"text_config": {"hidden_size": 1}}}},
    "long words": {"model_type": "x" * 100_000, "hybrid_override_pattern": "M" * 100_000},
    "a long list": {"layer_types": [str(number) for number in range(100_000)]},
    "thousands of modules": {
        "quantization_config": {"quant_method": "x", "ignore": [f"module-{number}" for number in range(9000)]}
    },
    "settings of thousands of modules": {
        "text_config": {"quantization_config": {"by": {f"a.module-{number}": number for number in range(9000)}}}
    },
    "rope with anything": {"rope_parameters": {"factor": [1], "rope_type": None, "full_attention": {"factor": "x"}}},
    "an ignore list of anything": {"quantization_config": {"ignore": [1, None, {"a": "b"}, ["c"]]}},
    "long lists in all places": {
        name: [f"{name}-{number}" for number in range(200)] for name in sorted(INSPECTED_KEYS)[::8]
    },
}


def nesting(value: object) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return 1 + max(map(nesting, inner), default=0)


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_stands_there_it_stays_small_and_is_json(name: str) -> None:
    text = Inspection(None, selected({"hidden_size": 7} | HOSTILE[name]), TENSORS).to_json()
    assert len(text.encode()) <= TERMINATION_LIMIT
    document = json.loads(text, parse_constant=pytest.fail)
    assert nesting(document) < 12
    assert re.search(r"\d{30}", text) is None, "no number that other readers of JSON cannot hold"
    assert Inspection.from_json(text) is not None


def test_what_matters_least_goes_first() -> None:
    """The modules that a quantizer left alone, then the encoder; the sizes of the language model stay."""
    config = PUBLISHED["gemma_3"] | {
        "quantization_config": {"quant_method": "x", "ignore": [f"a-module-of-its-own-{n}" for n in range(300)]}
    }
    kept = inspected(config)
    assert 0 < len(kept["quantization_config"]["ignore"]) < 300
    assert kept["vision_config"]["hidden_size"] == 1152
    assert kept["text_config"] == selected(config)["text_config"]
    tight = json.loads(Inspection(None, selected(config), TENSORS).to_json(1500))
    assert "vision_config" not in tight["config"]
    assert tight["config"]["text_config"] == selected(config)["text_config"]


def test_more_than_fits_is_said() -> None:
    config = dict.fromkeys(sorted(INSPECTED_KEYS), "x" * 100)
    found = Inspection.from_json(Inspection(REVISION, selected(config)).to_json())
    assert found is not None
    assert found.revision == REVISION
    assert found.failure is not None
    assert found.failure.reason is FailureReason.INVALID_CONFIGURATION
    assert "spec.model.architecture" in found.failure.remedy


def test_a_failure_fits_as_well() -> None:
    for length in (0, *range(3850, 4100, 9), 9000):
        failure = Failure(FailureReason.MODEL_NOT_FOUND, "m" * length, "r" * length, evidence=("e" * length,))
        text = Inspection(REVISION, failure=failure).to_json()
        assert len(text.encode()) <= TERMINATION_LIMIT
        found = Inspection.from_json(text)
        assert found is not None
        assert found.failure is not None
        assert found.failure.reason is FailureReason.MODEL_NOT_FOUND


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Traceback (most recent call last):", id="a log's tail"),
        pytest.param('{"version":2,"config":{}}', id="a later version"),
        pytest.param('{"version":1,"config":{},"tensors":7}', id="no tensors"),
        pytest.param(
            Failure(FailureReason.ENGINE_DIED, "it died", "start it again").to_json(), id="a supervisor's failure"
        ),
    ],
)
def test_other_texts_are_none(text: str) -> None:
    assert Inspection.from_json(text) is None


def test_a_failure_of_a_later_version_keeps_its_words() -> None:
    found = Inspection.from_json('{"version":1,"failure":{"reason":"OfALaterVersion","message":"m","remedy":"r"}}')
    assert found is not None
    assert found.failure == Failure(FailureReason.ENGINE_DIED, "m", "r")


def test_the_configuration_of_thousands_of_modules_takes_no_time() -> None:
    """Lists of experts have tens of thousands of names; patterns are found in one pass."""
    names = [
        f"model.layers.{n}.mlp.experts.{e}.{k}_proj" for n in range(61) for e in range(256) for k in ("up", "down")
    ]
    assert modules(names, 61) == [
        "model.layers.*.mlp.experts.*.up_proj",
        "model.layers.*.mlp.experts.*.down_proj",
    ]
    assert inspected_config.shorter({}) is None


def test_no_key_is_listed_twice() -> None:
    listed = [key for text in inspected_config._ALL for key in text.split()]
    assert sorted(listed) == sorted(set(listed))
