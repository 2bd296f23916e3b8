"""What is loaded beside a model's own weights: draft models, heads that guess, and room for adapters."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_operator.api.techniques import SpeculativeMethod
from llmservice_operator.planner.model.architecture import Architecture, Incomplete
from llmservice_operator.planner.plan import Adapters, Draft, Request
from llmservice_operator.planner.weights import weigh

from tests.unit.planner_models import architecture

LLAMA = architecture("llama-3.1-8b")


def asked(model: Architecture = LLAMA, **more: Any) -> Request:
    return Request(model, None, **more)


def test_a_draft_model_adds_its_own_weights() -> None:
    small = architecture("qwen2.5-0.5b")
    draft = Draft("draftModel", 5, small)
    assert weigh(asked(draft=draft)).per_gpu - weigh(asked()).per_gpu == weigh(asked(small)).per_gpu
    with pytest.raises(Incomplete, match="draft"):
        weigh(asked(draft=Draft("draftModel", 5)))


@pytest.mark.parametrize(
    ("method", "values"),
    [
        pytest.param("ngram", 0, id="ngrams need no weights"),
        pytest.param("medusa", 3 * (4096**2 + 128256 * 4096), id="medusa: a block and a head for each guess"),
        pytest.param("eagle", 218_103_808 + 2 * 4096**2, id="eagle: a layer and a joint"),
        pytest.param("eagle3", 218_103_808 + 3 * 4096**2 + 32000 * 4096, id="eagle 3: a head of its own"),
        pytest.param("mtp", 218_103_808 + 2 * 4096**2, id="mtp: a layer and a joint"),
    ],
)
def test_what_guesses_is_weighed(method: SpeculativeMethod, values: int) -> None:
    assert weigh(asked(draft=Draft(method, 3))).per_gpu - weigh(asked()).per_gpu == 2 * values


def test_room_for_adapters() -> None:
    """max_loras x rank x (inputs + outputs) of each linear, of the embedding and of the head."""
    one = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    expected = 4 * 16 * 2 * (32 * one + 2 * (128256 + 4096))
    found = weigh(asked(adapters=Adapters(4, 16))).per_gpu - weigh(asked()).per_gpu
    assert found == pytest.approx(expected, rel=1e-6)


def test_ranks_share_one_side_of_an_adapter() -> None:
    """The outputs of a matrix whose outputs they share, the inputs of the others; nothing of the vocabulary."""
    columns = 4096 + 4096 / 2 + 2 * (4096 + 1024 / 2) + 2 * (4096 + 14336 / 2)
    rows = 4096 / 2 + 4096 + 14336 / 2 + 4096
    expected = 16 * 2 * (32 * (columns + rows) + 2 * (128256 + 4096))
    two: dict[str, Any] = {"tensor_parallel_size": 2}
    found = weigh(asked(adapters=Adapters(), **two)).per_gpu - weigh(asked(**two)).per_gpu
    assert found == pytest.approx(expected, rel=1e-6)
