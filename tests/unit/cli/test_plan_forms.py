"""One plan in each form that `llmservice plan` answers in, word for word."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from llmservice_cli import terminal
from llmservice_cli.plan import flags_of, in_options
from llmservice_cli.plan.answers import Answer, document, options_of, patch
from llmservice_cli.plan.text import bar, markdown, screen, segments
from llmservice_planner.plan import Fit, Plan, Remedy

from tests.support.documents import ROOT
from tests.unit.cli import plan_world as world

KEYS_OF_THE_ISSUE = (
    *("verdict", "reason", "weightsGiB", "nonTorchGiB", "activationGiB", "graphGiB", "kvCacheGiB", "kvCacheTokens"),
    *("maxModelLen", "maxConcurrency", "errorBand", "remedies"),
)
FITS = world.answer(world.FITS)
OF_A_MANIFEST = world.answer(
    world.DOES_NOT_FIT, service="chat", namespace="team-a", notes=("--tensor-parallel-size 2 instead of 1",)
)


def drawn(answer: Answer, width: int = 80, *, explain: bool = False) -> str:
    return "\n".join(terminal.plain(row) for row in screen(answer, width, explain=explain)) + "\n"


def marked(answer: Answer) -> str:
    return "\n".join(markdown(answer)) + "\n"


def as_json(answer: Answer) -> str:
    return json.dumps(document(answer, explain=True), indent=2) + "\n"


GOLDEN: dict[str, Callable[[], str]] = {
    "fits.txt": lambda: drawn(FITS, explain=True),
    "narrow.txt": lambda: drawn(FITS, 40),
    "does-not-fit.txt": lambda: drawn(OF_A_MANIFEST),
    "nothing-left.txt": lambda: drawn(world.answer(world.NOTHING_LEFT)),
    "unknown.txt": lambda: drawn(world.answer(world.UNKNOWN)),
    "fits.json": lambda: as_json(FITS),
    "does-not-fit.json": lambda: as_json(OF_A_MANIFEST),
    "fits.md": lambda: marked(FITS),
    "does-not-fit.md": lambda: marked(OF_A_MANIFEST),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_word_for_word(name: str) -> None:
    assert GOLDEN[name]() == (world.FIXTURES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("plan", [world.FITS, world.DOES_NOT_FIT, world.NOTHING_LEFT, world.UNKNOWN])
def test_every_plan_has_the_keys_that_scripts_read(plan: Plan) -> None:
    found = document(world.answer(plan))
    assert [key for key in KEYS_OF_THE_ISSUE if key not in found] == []
    if plan is world.UNKNOWN:
        assert {found[key] for key in KEYS_OF_THE_ISSUE if key.endswith("GiB")} == {None}
        assert found["missing"] == ["a GPU and its memory", "vocab_size"]


EAGER = (("compilation.enforceEager", True), ("precision.weights", "int4"))
REMEDIES: list[tuple[Remedy, object, str]] = [
    (world.SHORTER, {"spec": {"batching": {"maxModelLen": 26624}}}, "--max-model-len 26624"),
    (
        world.FP8,
        {"spec": {"precision": {"weights": "fp8", "kvCache": "fp8"}}},
        "--quantization fp8 --kv-cache-dtype fp8",
    ),
    (world.L40S, {"spec": {"accelerator": {"products": ["NVIDIA-L40S"]}}}, "--gpu NVIDIA-L40S"),
    (world.INT4, {}, ""),
    (
        replace(world.SHORTER, patch=EAGER),
        {"spec": {"compilation": {"enforceEager": True}, "precision": {"weights": "int4"}}},
        "--enforce-eager --quantization 'int4 w4a16'",
    ),
]


@pytest.mark.parametrize(("remedy", "merged", "typed"), REMEDIES)
def test_a_remedy_is_a_patch_and_options(remedy: Remedy, merged: object, typed: str) -> None:
    assert (patch(remedy), flags_of(options_of(remedy))) == (merged, typed)


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        ("set spec.batching.maxModelLen to 29696, and then", "set --max-model-len 29696, and then"),
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


def bar_of(plan: Plan, width: int) -> str:
    assert plan.memory_gib is not None
    return bar(segments(plan), width, plan.memory_gib)


@pytest.mark.parametrize("width", [1, 5, 77])
@pytest.mark.parametrize(
    "plan", [world.FITS, world.NOTHING_LEFT, replace(world.FITS, graph_gib=0.0, kv_cache_gib=None)]
)
def test_a_bar_has_its_width(plan: Plan, width: int) -> None:
    assert len(bar_of(plan, width)) == width


def test_a_bar_shows_small_parts_and_where_the_memory_ends() -> None:
    fits, over = bar_of(world.FITS, 40), bar_of(world.NOTHING_LEFT, 40)
    assert (set(fits), fits.count("W")) == (set("WNAGK."), 27)
    assert (over.index("|"), over.count("|")) == (35, 1)


@pytest.mark.parametrize("text", ["a|b", "<script>", "`code`", "*bold*", "[link](x)", "back\\slash"])
def test_names_are_escaped_in_markdown(text: str) -> None:
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
    rows = list(screen(FITS, 80))
    terminal.show(rows)
    assert "\x1b[" in capsys.readouterr().out
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as other:
            other.setenv(name, value)
            terminal.show(rows)
        assert capsys.readouterr().out == drawn(FITS)


def test_the_page_shows_the_keys_as_they_are() -> None:
    page = (ROOT / "docs" / "cli" / "plan.md").read_text(encoding="utf-8")
    shown = json.loads(page.split("-o json\n")[-1].split("```")[0])
    assert list(shown) == ["version", *document(FITS)]
