"""What `llmservice plan` ends with, the same in every form of input and output, and as docs/cli/plan.md says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

import pytest
from llmservice_cli.errors import ExitCode

from tests.support.documents import DOCS
from tests.unit.cli_world import LLAMA_8B, Command, Json, manifest

L4 = ("--gpu", "NVIDIA-L4")
VERDICTS: dict[str, Sequence[str]] = {
    "Fits": (*L4, "--max-model-len", "8k"),
    "Tight": (*L4, "--max-model-len", "32k"),
    "DoesNotFit": (*L4, "--max-model-len", "128k"),
    "Unknown": (),
}
"""Options with which the model of 8 billion parameters is so."""
CODES = {
    # verdict: alone, with --strict, with --allow-unknown, with both
    "Fits": (0, 0, 0, 0),
    "Tight": (0, 1, 0, 1),
    "DoesNotFit": (1, 1, 1, 1),
    "Unknown": (3, 3, 0, 0),
}
SWITCHES = ((), ("--strict",), ("--allow-unknown",), ("--strict", "--allow-unknown"))
ROWS = [
    pytest.param(verdict, switches, code, id=" ".join((verdict, *switches)))
    for verdict, codes in CODES.items()
    for switches, code in zip(SWITCHES, codes, strict=True)
]
Ask = Callable[[Command, str], Sequence[str]]


def by_config(llmservice: Command, verdict: str) -> Sequence[str]:
    return ("--config", llmservice.config(), *VERDICTS[verdict])


POD_MODEL = {"uri": "pvc://models/llama"}


def by_manifest(llmservice: Command, verdict: str) -> Sequence[str]:
    return ("-f", llmservice.manifest(manifest(model=POD_MODEL)), *by_config(llmservice, verdict))


def line(words: Sequence[str]) -> str:
    named = {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    return json.dumps({"config": dict(LLAMA_8B), **named})


def by_batch(llmservice: Command, verdict: str) -> Sequence[str]:
    return ("--batch", llmservice.text("cases.jsonl", line(VERDICTS[verdict])))


def shown(ask: Ask, *words: str) -> Ask:
    return lambda llmservice, verdict: (*ask(llmservice, verdict), *words)


FORMS: dict[str, Ask] = {
    "a table": by_config,
    "JSON": shown(by_config, "-o", "json"),
    "Markdown, explained": shown(by_config, "-o", "markdown", "--explain"),
    "a manifest as YAML": shown(by_manifest, "-o", "yaml"),
    "a batch": by_batch,
}


@pytest.mark.parametrize("ask", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("verdict", "switches", "code"), ROWS)
def test_every_form_ends_alike(
    ask: Ask, verdict: str, switches: tuple[str, ...], code: int, llmservice: Command
) -> None:
    ran = llmservice("plan", "--offline", *ask(llmservice, verdict), *switches)
    assert (ran.code, verdict in ran.out) == (code, True)


FEW = {"model_type": "llama", "hidden_size": 4096}
T4_P4 = ("--gpu", "Tesla-P4", "--gpu", "Tesla-T4", "-tp", "1", "--max-model-len", "128k")
GRIDS: dict[str, tuple[Json, tuple[str, ...], int]] = {
    # The code of a grid is that of its best cell: it asks whether any can be run.
    "some cell fits": ({**LLAMA_8B}, ("--max-model-len", "8k", "-o", "json"), 0),
    "nothing fits": ({**LLAMA_8B}, T4_P4, 1),
    "nothing is known": (FEW, ("-o", "markdown"), 3),
    "the type is not known": ({**LLAMA_8B, "model_type": "glm6", "architectures": None}, ("-o", "markdown"), 3),
    "a word is not known": ({**LLAMA_8B, "layer_types": ["warp"] * 32}, ("-o", "markdown"), 3),
    "nothing has to be known": (FEW, ("--allow-unknown",), 0),
}


@pytest.mark.parametrize(("config", "words", "code"), GRIDS.values(), ids=GRIDS)
def test_a_grid_ends_with_its_best_cell(config: Json, words: tuple[str, ...], code: int, llmservice: Command) -> None:
    path = llmservice.text("config.json", json.dumps(config))
    assert llmservice("plan", "--compare", "--config", path, *words).code == code


SEVERAL = {
    "fits and fits": (["Fits", "Fits"], 0),
    "fits and unknown": (["Fits", "Unknown"], 3),
    "unknown and does not fit": (["Unknown", "DoesNotFit"], 1),
    "does not fit and bad": (["DoesNotFit", "bad"], 2),
    "unknown and bad": (["Unknown", "bad"], 2),
}


@pytest.mark.parametrize(("verdicts", "code"), SEVERAL.values(), ids=SEVERAL)
def test_of_several_lines_or_services_the_worst_counts(verdicts: list[str], code: int, llmservice: Command) -> None:
    lines = [line(VERDICTS.get(verdict, ("dtype", "banana"))) for verdict in verdicts]
    ran = llmservice("plan", "--batch", llmservice.text("cases.jsonl", "\n".join(lines)))
    assert (ran.code, len(ran.out.splitlines())) == (code, len(lines))
    batching = {"Fits": {"maxModelLen": 8192}, "DoesNotFit": {"maxModelLen": 131072}, "bad": {"maxNumSeqs": 0}}
    services = [
        manifest(
            f"chat-{index}",
            model=POD_MODEL,
            accelerator={} if verdict == "Unknown" else {"products": ["NVIDIA-L4"]},
            batching=batching.get(verdict, {}),
        )
        for index, verdict in enumerate(verdicts)
    ]
    words = ("-f", llmservice.manifest(*services), "--config", llmservice.config())
    assert llmservice("plan", "--offline", *words).code == code


def test_the_documentation_has_the_same_table() -> None:
    text = (DOCS / "cli" / "plan.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.+?) \|$", text, re.MULTILINE))
    assert {verdict: rows.get(verdict) for verdict in VERDICTS} == {
        "Fits": "0",
        "Tight": "0 and a warning; 1 with `--strict`",
        "DoesNotFit": "1",
        "Unknown": "3; 0 and a warning with `--allow-unknown`",
    }


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"]], ids=["llmservice", "plan"])
def test_help_says_what_the_codes_mean(words: list[str], llmservice: Command) -> None:
    codes = llmservice(*words).out.partition("exit codes:")[2]
    assert all(f"{code} " in codes for code in range(4))
    assert int(ExitCode.UNKNOWN) == 3
