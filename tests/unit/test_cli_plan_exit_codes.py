"""What `llmservice plan` ends with, the same in every form of asking and answering, and as docs/cli.md says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml
from llmservice_cli.app import run
from llmservice_cli.errors import ExitCode
from llmservice_operator.api.constants import API_VERSION, KIND

from tests.support.documents import DOCS

from .cli_plan_world import LLAMA_8B, config

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
Ask = Callable[[Path, str], Sequence[str]]


def by_config(folder: Path, verdict: str) -> Sequence[str]:
    return ("--config", config(folder), *VERDICTS[verdict])


def by_manifest(folder: Path, verdict: str) -> Sequence[str]:
    written = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "chat"}}
    (folder / "llm.yaml").write_text(yaml.safe_dump({**written, "spec": {"model": {"uri": "pvc://models/llama"}}}))
    return ("-f", str(folder / "llm.yaml"), *by_config(folder, verdict))


def by_batch(folder: Path, verdict: str) -> Sequence[str]:
    words = VERDICTS[verdict]
    said = {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    (folder / "cases.jsonl").write_text(json.dumps({"config": dict(LLAMA_8B), **said}) + "\n")
    return ("--batch", str(folder / "cases.jsonl"))


def shown(ask: Ask, *words: str) -> Ask:
    return lambda folder, verdict: (*ask(folder, verdict), *words)


FORMS: dict[str, Ask] = {
    "a table": by_config,
    "JSON": shown(by_config, "-o", "json"),
    "YAML": shown(by_config, "-o", "yaml"),
    "Markdown": shown(by_config, "-o", "markdown"),
    "explained": shown(by_config, "--explain"),
    "a manifest": by_manifest,
    "a manifest as JSON": shown(by_manifest, "-o", "json"),
    "a batch": by_batch,
}


@pytest.mark.parametrize("ask", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("verdict", "switches", "code"), ROWS)
def test_every_form_ends_alike(
    ask: Ask, verdict: str, switches: tuple[str, ...], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--offline", *ask(tmp_path, verdict), *switches]) == code
    assert verdict in capsys.readouterr().out


GRIDS = {
    # GPUs and options, code of a grid over them: it asks whether any cell can be run
    "some cell fits": (("--max-model-len", "8k"), 0),
    "nothing fits": (("--gpu", "Tesla-P4", "--gpu", "Tesla-T4", "-tp", "1", "--max-model-len", "128k"), 1),
}


@pytest.mark.parametrize("output", ["table", "json", "markdown"])
@pytest.mark.parametrize(("words", "code"), GRIDS.values(), ids=GRIDS)
def test_a_grid_ends_with_its_best_cell(words: tuple[str, ...], code: int, output: str, tmp_path: Path) -> None:
    assert run(["plan", "--compare", "-o", output, "--config", config(tmp_path), *words]) == code


@pytest.mark.parametrize(("switches", "code"), [((), 3), (("--allow-unknown",), 0)])
def test_a_grid_of_which_nothing_is_known(switches: tuple[str, ...], code: int, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 4096}))
    assert run(["plan", "--compare", "--config", str(path), *switches]) == code


SEVERAL = {
    "fits and fits": (["Fits", "Fits"], 0),
    "fits and unknown": (["Fits", "Unknown"], 3),
    "unknown and does not fit": (["Unknown", "DoesNotFit"], 1),
    "does not fit and bad": (["DoesNotFit", "bad"], 2),
    "unknown and bad": (["Unknown", "bad"], 2),
}


@pytest.mark.parametrize(("lines", "code"), SEVERAL.values(), ids=SEVERAL)
def test_of_several_lines_the_worst_counts(
    lines: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = []
    for line in lines:
        words = VERDICTS.get(line, ("dtype", "banana"))
        said = {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2], strict=True)}
        written.append(json.dumps({"config": dict(LLAMA_8B), **said}))
    (tmp_path / "cases.jsonl").write_text("\n".join(written))
    assert run(["plan", "--batch", str(tmp_path / "cases.jsonl")]) == code
    assert len(capsys.readouterr().out.splitlines()) == len(lines)


@pytest.mark.parametrize(("lines", "code"), SEVERAL.values(), ids=SEVERAL)
def test_of_several_services_the_worst_counts(lines: list[str], code: int, tmp_path: Path) -> None:
    lengths = {"Fits": 8192, "DoesNotFit": 131072}
    services = []
    for index, line in enumerate(lines):
        spec = {
            "model": {"uri": "pvc://models/llama"},
            "accelerator": {} if line == "Unknown" else {"products": ["NVIDIA-L4"]},
            "batching": {"maxNumSeqs": 0} if line == "bad" else {"maxModelLen": lengths.get(line, 8192)},
        }
        metadata = {"name": f"chat-{index}"}
        services.append({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
    (tmp_path / "llm.yaml").write_text(yaml.safe_dump_all(services))
    assert run(["plan", "--offline", "-f", str(tmp_path / "llm.yaml"), "--config", config(tmp_path)]) == code


def test_the_documentation_has_the_same_table() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.+?) \|$", text, re.MULTILINE))
    assert {verdict: rows.get(verdict) for verdict in VERDICTS} == {
        "Fits": "0",
        "Tight": "0 and a warning; 1 with `--strict`",
        "DoesNotFit": "1",
        "Unknown": "3; 0 and a warning with `--allow-unknown`",
    }


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"]], ids=["llmservice", "plan"])
def test_help_says_what_the_codes_mean(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(words)
    said = capsys.readouterr().out.partition("exit codes:")[2]
    assert all(f"{code} " in said for code in range(4))
    assert int(ExitCode.UNKNOWN) == 3
