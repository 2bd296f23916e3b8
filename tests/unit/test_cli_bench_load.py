"""The load of a bench: the same options make the same load, and one option changes only what it names."""

from dataclasses import replace

import pytest
from llmservice_cli.bench.arrivals import LoadOptions, make_load

OPTIONS = LoadOptions(requests=200, rate=10.0, seed=1, prompt_words=(8, 32), output_tokens=(8, 8, 8, 128))


def test_the_same_options_make_the_same_load() -> None:
    assert make_load(OPTIONS) == make_load(replace(OPTIONS))


def test_a_seed_is_pinned() -> None:
    """Results of different versions are compared by their seed."""
    load = make_load(OPTIONS)[:4]
    assert [round(each.arrival, 6) for each in load] == [0.0, 0.081353, 0.196644, 0.319788]
    assert [each.output_tokens for each in load] == [128, 128, 8, 8]
    assert load[0].prompt == "when of that was this with in in"


@pytest.mark.parametrize(
    ("changed", "same", "different"),
    [
        pytest.param({"seed": 2}, (), ("arrival", "prompt", "output_tokens"), id="seed"),
        pytest.param({"rate": 20.0}, ("prompt", "output_tokens"), ("arrival",), id="rate"),
        pytest.param({"output_tokens": (4, 4, 4, 64)}, ("arrival", "prompt"), ("output_tokens",), id="answers"),
        pytest.param({"prompt_words": (4, 16)}, ("arrival", "output_tokens"), ("prompt",), id="prompts"),
    ],
)
def test_an_option_changes_what_it_names(
    changed: dict[str, object], same: tuple[str, ...], different: tuple[str, ...]
) -> None:
    before, after = make_load(OPTIONS), make_load(replace(OPTIONS, **changed))  # type: ignore[arg-type]
    for name in same:
        assert [getattr(each, name) for each in before] == [getattr(each, name) for each in after], name
    for name in different:
        assert [getattr(each, name) for each in before] != [getattr(each, name) for each in after], name


def test_a_longer_load_begins_like_a_shorter_one() -> None:
    assert make_load(replace(OPTIONS, requests=50)) == make_load(OPTIONS)[:50]


def test_arrivals_come_at_the_rate_and_lengths_from_the_lists() -> None:
    load = make_load(replace(OPTIONS, requests=2000))
    assert load[0].arrival == 0.0
    assert 2000 / load[-1].arrival == pytest.approx(10.0, rel=0.1)
    assert {len(each.prompt.split()) for each in load} == {8, 32}
    long = sum(1 for each in load if each.output_tokens == 128)
    assert long / len(load) == pytest.approx(0.25, abs=0.05)
