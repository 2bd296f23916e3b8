"""Every row of the matrix that a CPU can check, against the vLLM that is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations as pairs
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from llmservice_api.matrix import DIMENSIONS, ROWS, Check, Incompatibility
from llmservice_planner.checks import Combination, matches, verdicts

from tests.unit import vllm_models
from tests.unit.api.vllm_arguments import Values, engine_arguments, kept

# vLLM and torch warn while they are imported; that is theirs.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


ENGINE, IGNORED = ([row for row in ROWS if row.check is check] for check in (Check.ENGINE, Check.IGNORED))


def combinations(row: Incompatibility) -> Iterator[Values]:
    """Every combination of values that a row refuses."""
    yield from (dict(zip(row.when, values, strict=True)) for values in product(*map(sorted, row.when.values())))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    vllm_models.write(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Without network, and the same in an empty home as in one where vLLM has run before.

    vLLM looks at each model's class in a process of its own, so that CUDA is not initialized, and remembers in its
    cache what it saw: nine processes that import vLLM, two minutes of a fresh machine. Here it looks in this one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("VLLM_CACHE_ROOT", str(tmp_path_factory.mktemp("vllm")))
        patch.setattr("vllm.model_executor.models.registry._run_in_subprocess", lambda look: look())
        yield


def configuration(values: Values, models: Path) -> Any:
    """What vLLM makes of a combination; ValueError where it refuses."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    return EngineArgs(**engine_arguments(values, models)).create_engine_config(UsageContext.OPENAI_API_SERVER)


@pytest.mark.parametrize("row", ENGINE, ids=[row.name for row in ENGINE])
def test_vllm_refuses_the_row_and_takes_its_remedy(row: Incompatibility, models: Path) -> None:
    for values in combinations(row):
        with pytest.raises(ValueError):
            configuration(values, models)
        remedied = {**values, **row.fix}
        assert not matches(row, remedied)
        configuration(remedied, models)


@pytest.mark.parametrize("row", IGNORED, ids=[row.name for row in IGNORED])
def test_vllm_ignores_what_the_row_refuses(row: Incompatibility, models: Path) -> None:
    for values in combinations(row):
        config = configuration(values, models)
        assert not kept(row.blame, values[row.blame], config)


# What arguments can express on a CPU without a quantized checkpoint, and without a second model of another shape.
EXPRESSIBLE: dict[str, tuple[str, ...]] = {
    name: dimension.values
    for name, dimension in DIMENSIONS.items()
    if name not in ("accelerator", "capability", "weights", "method", "draftModel", "draftParallel", "promptLookup")
    and set(dimension.values) != {"given", "absent"}
} | {
    "contextLength": ("within",),
    # Of these long lists some of each kind; the rest would take a minute more and say nothing else.
    "kvCache": ("auto", "fp8", "fp8_e5m2", "nvfp4", "turboquant_k8v4"),
    "blockSize": ("1", "16", "256"),
}
# Dimensions that come down to the same argument, or the same model, are not combined side by side.
_ONE_OF = (
    {"sequenceTokens", "promptTokens", "draftTokens"},
    {"chunkedPrefill", "draftTokens"},
    {"mla", "experts", "positions"},
)


def missing_rows(combinations: Iterable[dict[str, str]], models: Path) -> dict[str, str]:
    """What vLLM refuses and the matrix does not, with vLLM's error. The default model is dense, without MLA."""
    missing = {}
    for values in ({"experts": "dense", "mla": "no", **combined} for combined in combinations):
        if verdicts(Combination({"accelerator": "cpu", **values})):
            continue
        try:
            configuration(values, models)
        except (ValueError, NotImplementedError, AssertionError) as error:
            missing[str(values)] = str(error)
    return missing


def test_what_vllm_refuses_of_any_one_the_matrix_refuses(models: Path) -> None:
    every = ({name: value} for name, values in EXPRESSIBLE.items() for value in values)
    assert missing_rows(every, models) == {}


@pytest.mark.full
def test_what_vllm_refuses_of_any_two_the_matrix_refuses(models: Path) -> None:
    every = (
        {one: first, other: second}
        for (one, ones), (other, others) in pairs(EXPRESSIBLE.items(), 2)
        if not any({one, other} <= some for some in _ONE_OF)
        for first, second in product(ones, others)
    )
    assert missing_rows(every, models) == {}
