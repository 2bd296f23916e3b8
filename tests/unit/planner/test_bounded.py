"""What a repository or a spec says decides neither how long planning takes nor whether it ends."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from random import Random
from typing import Any, get_args

import pytest
from annotated_types import Le
from hypothesis import example, given
from hypothesis import strategies as some
from llmservice_api.model import Architecture as Facts
from llmservice_operator.service.config_reader import CPU_SECONDS
from llmservice_planner import memory
from llmservice_planner.model import config_json, reading, spec_facts
from llmservice_planner.model.architecture import Architecture, Incomplete, InvalidModel
from llmservice_planner.model.config_keys import ALIASES, LARGEST, MOST_LAYERS
from llmservice_planner.model.reading import LARGEST_ANSWER, ReadingFailed
from llmservice_planner.plan import Draft, Request
from llmservice_runtime.inspection.config_json import INSPECTED_KEYS, SECTION_KEYS

from tests.support import cpu
from tests.unit.hostile import json_value, seeds
from tests.unit.planner_models import CONFIGS, PUBLISHED, gpu

Json = dict[str, Any]

REAL = list(PUBLISHED.values())
BASE = CONFIGS["llama-3.1-8b"]
H100 = gpu("H100")
HUGE: list[Any] = [2**31, 2**40, 2**48, 2**63, 10**60, -(2**63), 1e18, 1e300, -1.0, 0, float("inf"), float("nan")]
WORDS = [
    *("", "auto", "re:(.|.)*!", "re:(", "*" * 40, "layers." + "9" * 400, "\u00b2", "\ud800", "bfloat16", "awq", "M*-E")
]
RUNS: list[Any] = [[["x", 10**9]], [[1, 10**6]], [["full_attention", 1024]], [[[], 2]], [[["a", 2], 3]], [[0, 0]]]


def deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


KEYS = sorted({*INSPECTED_KEYS, *SECTION_KEYS, *ALIASES, "vision_config", "audio_config"})
INNER = ["quant_method", "bits", "group_size", "ignore", "config_groups", "weights", "factor", "rope_type", "num_bits"]


def value(random: Random) -> Any:
    return json_value(random, leaves=[*HUGE, *WORDS, *RUNS], names=[*KEYS, *INNER])


def values_of_a_model(seed: int) -> Json:
    random = Random(seed)
    return {random.choice(KEYS): value(random) for _ in range(random.randrange(7))}


def mutated(seed: int) -> Json:
    """A real config.json with some of its values, at any depth, replaced."""
    random = Random(seed)
    config: Json = copy.deepcopy(random.choice(REAL))
    for _ in range(random.randint(1, 4)):
        place: Json = config
        while inner := [name for name, value in place.items() if isinstance(value, dict)]:
            if random.random() < 0.5:
                break
            place = place[random.choice(inner)]
        place[random.choice([*place, *KEYS])] = value(random)
    return config


def check(text: str) -> None:
    """It is read within its limits, or refused, and what was read can be planned with."""
    answer = cpu.within(CPU_SECONDS, lambda: reading.read(text))
    assert len(answer) <= LARGEST_ANSWER
    found = reading.architecture(answer)
    assert isinstance(found, Architecture | Incomplete | InvalidModel)
    assert not isinstance(found, ReadingFailed), found.what
    if isinstance(found, Architecture):
        assert len(found.layers) <= MOST_LAYERS
        assert len(found.distinct_layers) <= config_json.MOST_DISTINCT
        memory.plan(Request(found, H100, max_model_len="auto"))


@given(document=seeds.map(lambda seed: value(Random(seed))))
def test_any_json(document: Any) -> None:
    check(json.dumps(document))


@given(more=seeds.map(values_of_a_model))
def test_any_values_of_a_model(more: Json) -> None:
    check(json.dumps(BASE | more))


@given(document=seeds.map(mutated))
def test_real_configurations_that_somebody_changed(document: Json) -> None:
    check(json.dumps(document))


@given(text=some.text(max_size=200))
@example(text="[" * 4096)
@example(text='{"a":' * 2000)
@example(text="1" * 5000)
@example(text='{"num_hidden_layers": ' + "9" * 4299 + "}")
@example(text=json.dumps(BASE | {"rope_scaling": deep(400)}))
@example(text='"\\ud800"')
def test_any_text(text: str) -> None:
    check(text)


ONE_EACH: Json = {"num_hidden_layers": MOST_LAYERS, "hidden_size": 64}
ONE_EACH |= {"num_attention_heads": 1, "num_key_value_heads": 1}
WIDTHS = [index % config_json.MOST_DISTINCT + 1 for index in range(MOST_LAYERS)]
_WIDEST = {"num_attention_heads": 2**16, "hidden_size": 2**16}
_MOST_KINDS = {
    **ONE_EACH,
    "intermediate_size": [width // 2 + 1 for width in WIDTHS],
    "layer_types": ["full_attention", "sliding_attention"] * (MOST_LAYERS // 2),
    "sliding_window": 128,
}
WORST: dict[str, tuple[Json, Json]] = {
    "most layers": ({"num_hidden_layers": MOST_LAYERS}, {}),
    "most kinds of layers": ({**ONE_EACH, "intermediate_size": WIDTHS}, {}),
    "most kinds in most stages": (_MOST_KINDS, {"pipeline_parallel_size": 64}),
    "most heads": (_WIDEST, {"tensor_parallel_size": 7}),
    "longest": ({"max_position_embeddings": LARGEST}, {}),
    "most predicted tokens": ({"num_nextn_predict_layers": 64}, {"draft": Draft("mtp", 1024)}),
    "most experts": ({"num_experts": 2**16, "moe_intermediate_size": 8}, {}),
    "largest batches": ({}, {"max_num_seqs": 65_536, "max_num_batched_tokens": 134_217_728}),
    "smallest blocks": ({}, {"block_size": 1, "kv_cache_memory_bytes": 2**63 - 1}),
}


def least(work: Callable[[], object]) -> float:
    """Processor time of the fastest of three."""
    found = []
    for _ in range(3):
        before = time.process_time()
        work()
        found.append(time.process_time() - before)
    return min(found)


def seconds(document: Json, **asked: Any) -> float:
    model = reading.architecture(reading.read(json.dumps(document)))
    assert isinstance(model, Architecture), model
    return least(lambda: memory.plan(Request(model, H100, **{"max_model_len": "auto"} | asked)))


@pytest.mark.parametrize(("more", "asked"), WORST.values(), ids=WORST)
def test_the_worst_that_is_accepted_is_planned_like_anything_else(more: Json, asked: Json) -> None:
    assert seconds(BASE | more, **asked) < 50 * seconds(BASE)


def largest_facts() -> Json:
    """spec.model.architecture with each number at its maximum: it is read by the event loop itself."""
    found: Json = {}
    for name, field in Facts.model_fields.items():
        bounds = [
            bound.le
            for part in (field, *get_args(field.annotation))
            for bound in getattr(part, "metadata", ())
            if isinstance(bound, Le)
        ]
        if bounds:
            found[field.alias or name] = bounds[0]
    return found


def test_the_largest_facts_of_a_spec_are_read_and_planned_like_any_others() -> None:
    largest = largest_facts()
    assert len(largest) > 20

    def planned(text: str) -> None:
        model = reading.architecture(reading.read(text))
        if isinstance(model, Architecture):
            memory.plan(Request(model, H100, max_model_len="auto"))

    def cost(facts: Json) -> float:
        text = json.dumps(spec_facts.from_spec(Facts.model_validate(facts)))
        return least(lambda: planned(text))

    usual = {"numHiddenLayers": 32, "hiddenSize": 4096, "numAttentionHeads": 32, "vocabSize": 128256}
    few = {name: largest[name] for name in ("numHiddenLayers", "slidingLayers", "slidingWindow", "vocabSize")}
    for facts in (largest, usual | few, usual | {name: largest[name] for name in largest if "xpert" in name}):
        assert cost({"intermediateSize": 14336} | facts) < 50 * cost({"intermediateSize": 14336} | usual)


TOO_MUCH: list[tuple[str, Json]] = [
    ("num_hidden_layers", {"num_hidden_layers": 10**9}),
    ("num_nextn_predict_layers", {"num_nextn_predict_layers": 10**12}),
    ("different", {**ONE_EACH, "intermediate_size": list(range(1, MOST_LAYERS + 1))}),
    ("hidden_size", {"hidden_size": LARGEST + 1}),
    ("parameters", {"hidden_size": LARGEST, "num_attention_heads": 2**16}),
    ("parameters", {"altup_num_inputs": 2**39}),
    ("parameters", {"vision_config": {"hidden_size": 2**39, "num_hidden_layers": 2}}),
    ("total_parameters", {"total_parameters": 2**60}),
    ("parameters", {"rope_scaling": {"type": "linear", "factor": 2.0**39}}),
]


@pytest.mark.parametrize(("words", "more"), TOO_MUCH)
def test_what_no_model_has_is_refused(words: str, more: Json) -> None:
    found = reading.architecture(reading.read(json.dumps(BASE | more)))
    assert isinstance(found, InvalidModel)
    assert words in str(found)
