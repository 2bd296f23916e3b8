"""One plan in each form that `llmservice plan` answers in, word for word."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from llmservice_cli import terminal
from llmservice_cli.plan import bar
from llmservice_cli.plan.answers import Answer
from llmservice_cli.plan.document import document, flags_of, options_of, patch
from llmservice_cli.plan.markdown import markdown
from llmservice_cli.plan.options import in_options
from llmservice_cli.plan.screen import screen
from llmservice_operator.planner.plan import Fit, Plan, Remedy

from tests.support.documents import ROOT

from . import cli_plan_world as world

KEYS_OF_THE_ISSUE = (
    *("verdict", "reason", "weightsGiB", "nonTorchGiB", "activationGiB", "graphGiB", "kvCacheGiB", "kvCacheTokens"),
    *("maxModelLen", "maxConcurrency", "errorBand", "remedies"),
)
OF_A_MANIFEST = world.answer(
    world.DOES_NOT_FIT, service="chat", namespace="team-a", notes=("--tensor-parallel-size 2 instead of 1",)
)


def drawn(answer: Answer, width: int = 80, *, explain: bool = False) -> str:
    return "\n".join(terminal.plain(row) for row in screen(answer, width, explain=explain)) + "\n"


def marked(answer: Answer) -> str:
    return "\n".join(markdown(answer)) + "\n"


def as_json(answer: Answer) -> str:
    return json.dumps(document(answer, explain=True), indent=2) + "\n"


@pytest.mark.parametrize(
    ("golden", "text"),
    [
        ("fits.txt", lambda: drawn(world.answer(world.FITS), explain=True)),
        ("narrow.txt", lambda: drawn(world.answer(world.FITS), 40)),
        ("does-not-fit.txt", lambda: drawn(OF_A_MANIFEST)),
        ("nothing-left.txt", lambda: drawn(world.answer(world.NOTHING_LEFT))),
        ("unknown.txt", lambda: drawn(world.answer(world.UNKNOWN))),
        ("fits.json", lambda: as_json(world.answer(world.FITS))),
        ("does-not-fit.json", lambda: as_json(OF_A_MANIFEST)),
        ("fits.md", lambda: marked(world.answer(world.FITS))),
        ("does-not-fit.md", lambda: marked(OF_A_MANIFEST)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_word_for_word(golden: str, text: Callable[[], str]) -> None:
    path = world.FIXTURES / golden
    assert text() == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("plan", [world.FITS, world.DOES_NOT_FIT, world.NOTHING_LEFT, world.UNKNOWN])
def test_every_plan_has_the_keys_that_scripts_read(plan: Plan) -> None:
    found = document(world.answer(plan))
    assert [key for key in KEYS_OF_THE_ISSUE if key not in found] == []


def test_what_is_not_known_is_null() -> None:
    found = document(world.answer(world.UNKNOWN))
    assert {found[key] for key in KEYS_OF_THE_ISSUE if key.endswith("GiB")} == {None}
    assert found["missing"] == ["a GPU and its memory", "vocab_size"]


@pytest.mark.parametrize(
    ("remedy", "merged", "typed"),
    [
        (world.SHORTER, {"spec": {"batching": {"maxModelLen": 26624}}}, "--max-model-len 26624"),
        (
            world.FP8,
            {"spec": {"precision": {"weights": "fp8", "kvCache": "fp8"}}},
            "--quantization fp8 --kv-cache-dtype fp8",
        ),
        (world.L40S, {"spec": {"accelerator": {"products": ["NVIDIA-L40S"]}}}, "--gpu NVIDIA-L40S"),
        (world.INT4, {}, ""),
        (
            replace(world.SHORTER, patch=(("compilation.enforceEager", True), ("precision.weights", "int4"))),
            {"spec": {"compilation": {"enforceEager": True}, "precision": {"weights": "int4"}}},
            "--enforce-eager --quantization 'int4 w4a16'",
        ),
    ],
)
def test_a_remedy_is_a_patch_and_options(remedy: Remedy, merged: object, typed: str) -> None:
    assert patch(remedy) == merged
    assert flags_of(options_of(remedy)) == typed


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        ("set spec.batching.maxModelLen to 29696", "set --max-model-len 29696"),
        (
            "set spec.precision.weights to fp8, and set spec.precision.kvCache to fp8",
            "set --quantization fp8, and set --kv-cache-dtype fp8",
        ),
        (
            "set spec.batching.maxNumSeqs to 64 and spec.batching.maxNumBatchedTokens to 1024",
            "set --max-num-seqs 64 and --max-num-batched-tokens 1024",
        ),
        ("set spec.accelerator.gpuMemoryUtilization to 0.95.", "set --gpu-memory-utilization 0.95."),
        ("set spec.compilation.enforceEager to true", "set --enforce-eager"),
        ("take NVIDIA-L40S (spec.accelerator.products)", "take NVIDIA-L40S (--gpu)"),
        ("set spec.runtime.env", "set spec.runtime.env"),
    ],
)
def test_remedies_are_worded_as_options(words: str, typed: str) -> None:
    assert in_options(words) == typed


@pytest.mark.parametrize("width", [1, 5, 20, 77, 200])
@pytest.mark.parametrize(
    "plan", [world.FITS, world.NOTHING_LEFT, replace(world.FITS, graph_gib=0.0, kv_cache_gib=None)]
)
def test_a_bar_is_as_wide_as_it_is_told(plan: Plan, width: int) -> None:
    parts = bar.segments(plan)
    assert plan.memory_gib is not None
    assert len(bar.text(parts, width, plan.memory_gib)) == width


def test_a_bar_shows_the_little_and_where_the_memory_ends() -> None:
    assert world.FITS.memory_gib is not None
    fits = bar.text(bar.segments(world.FITS), 40, world.FITS.memory_gib)
    assert set(fits) == set("WNAGK.")
    assert fits.count("W") == 27
    assert world.NOTHING_LEFT.memory_gib is not None
    over = bar.text(bar.segments(world.NOTHING_LEFT), 40, world.NOTHING_LEFT.memory_gib)
    assert over.index("|") == 35
    assert over.count("|") == 1


@pytest.mark.parametrize(
    "text",
    ["a|b", "<script>", "`code`", "*bold*", "[link](x)", "back\\slash"],
)
def test_markdown_says_names_as_they_are(text: str) -> None:
    lines = list(markdown(world.answer(replace(world.FITS, verdict=Fit.TIGHT, gpu=text))))
    assert text not in lines[0]
    assert lines[0].replace("\\", "") == f"### Tight on 1 x {text}".replace("\\", "")


def test_a_terminal_gets_colours_unless_it_wants_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    rows = list(screen(world.answer(world.FITS), 80))
    terminal.show(rows)
    coloured = capsys.readouterr().out
    assert "\x1b[" in coloured
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as other:
            other.setenv(name, value)
            terminal.show(rows)
        plain = capsys.readouterr().out
        assert plain == drawn(world.answer(world.FITS))


def test_the_page_shows_the_keys_as_they_are() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    shown = json.loads(page.split("-o json\n")[-1].split("```")[0])
    assert list(shown) == list(document(world.answer(world.FITS)))
