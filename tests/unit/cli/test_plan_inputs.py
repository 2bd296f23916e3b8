"""What `llmservice plan` takes: folders, Lists, names of the hub, several GPUs; and what it proposes for misspelt
fields."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from llmservice_cli import manifests
from llmservice_cli.admission.structural import meant
from llmservice_cli.manifests import services

from tests.unit.cli_world import OTHER_KIND, Command, manifest

OF_A_FOLDER = {
    "b.yaml": "b",
    "a.yml": "a",
    "below/deep/c.json": "c",
    ".hidden/d.yaml": None,
    "below/.e.yaml": None,
    "notes.txt": None,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for place, name in OF_A_FOLDER.items():
        path = tmp_path / "manifests" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{" if name is None else json.dumps(manifest(name)))
    return tmp_path / "manifests"


def test_every_manifest_below_a_folder_is_read_but_hidden_ones(folder: Path, llmservice: Command) -> None:
    ran = llmservice("plan", "-f", str(folder), "--gpu", "H100", "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    assert [each["service"] for each in ran.json] == ["a", "b", "c"]


def test_a_file_of_a_folder_that_is_wrong_is_named(folder: Path, llmservice: Command) -> None:
    (folder / "below" / "f.yaml").write_text("kind: [")
    ran = llmservice("plan", "-f", str(folder), "--gpu", "H100")
    assert (ran.code, f"{folder}/below/f.yaml is no YAML" in ran.err) == (2, True), ran.err


EMPTY: dict[str, tuple[Mapping[str, str], str]] = {
    "nothing": ({}, "holds no file that ends with .yaml, .yml, .json"),
    "other kinds": ({"x.yaml": json.dumps(OTHER_KIND)}, "it holds no LLMService"),
}


@pytest.mark.parametrize(("files", "message"), EMPTY.values(), ids=EMPTY.keys())
def test_a_folder_without_an_llmservice_is_refused(
    files: Mapping[str, str], message: str, tmp_path: Path, llmservice: Command
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    ran = llmservice("plan", "-f", str(tmp_path))
    assert (ran.code, message in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("most", ["MOST_FILES", "MOST_FOLDERS"])
def test_the_files_of_a_folder_are_counted(
    most: str, folder: Path, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, most, 1)
    ran = llmservice("plan", "-f", str(folder))
    assert (ran.code, "Name a folder further down" in ran.err) == (2, True)


def test_a_link_to_a_folder_above_is_not_followed(folder: Path) -> None:
    (folder / "below" / "again").symlink_to(folder)
    assert len(services(str(folder)).services) == 3


def test_items_of_a_list_and_standard_input(llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    several = {"apiVersion": "v1", "kind": "List", "items": [manifest("a"), OTHER_KIND, manifest("b")]}
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(several)))
    ran = llmservice("plan", "-f", "-", "--gpu", "H100", "-o", "json")
    assert [each["service"] for each in ran.json] == ["a", "b"]
    assert "skipped Service front" in ran.err


def test_a_list_of_gpus_is_one_option_or_several(llmservice: Command) -> None:
    words = ("plan", "--config", llmservice.config(), "--compare", "-o", "json")
    one = llmservice(*words, "--gpu", "T4, L40S").json
    assert [cell["product"] for cell in one["cells"][::6]] == ["Tesla-T4", "NVIDIA-L40S"]
    assert one == llmservice(*words, "--gpu", "T4", "--gpu", "L40S").json


def test_a_model_is_one_of_the_hub_unless_there_is_such_a_folder(
    llmservice: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = llmservice("plan", "--model", "org/name", "--offline")
    assert (ran.code, "hf://org/name is not read with --offline" in ran.err) == (2, True)
    config = Path(llmservice.config())
    (tmp_path / "org" / "name").mkdir(parents=True)
    config.rename(tmp_path / "org" / "name" / "config.json")
    monkeypatch.chdir(tmp_path)
    ran = llmservice("plan", "--model", "org/name", "--offline", "--gpu", "H100", "-o", "json")
    assert (ran.code, ran.json["notes"][0]) == (0, "--model org/name is the folder here, not hf://org/name")


MISSPELT: dict[str, tuple[dict[str, Any], str]] = {
    "url": ({"model": {"uri": "hf://a/b", "url": "x"}}, "spec.model.url: is an unknown field. Did you mean uri?"),
    "snake case": ({"batching": {"max_model_len": 1}}, "spec.batching.max_model_len: {} maxModelLen?"),
    "a flag": ({"batching": {"max-num-seqs": 1}}, "spec.batching.max-num-seqs: {} maxNumSeqs?"),
    "lower case": ({"parallelism": {"tensorParallelsize": 2}}, "spec.parallelism.tensorParallelsize: {} tensorPara"),
    "another section": ({"maxModelLen": 1}, "spec.maxModelLen: {} spec.batching.maxModelLen?"),
    "a flag of another section": ({"kv-cache-dtype": "fp8"}, "spec.kv-cache-dtype: {} spec.precision.kvCache?"),
    "a flag with dashes": ({"--max-num-seqs": 1}, "spec.--max-num-seqs: {} spec.batching.maxNumSeqs?"),
    "in the wrong section": ({"model": {"uri": "hf://a/b", "quantization": "awq"}}, "{} spec.precision.quantization?"),
    "a near miss": ({"scalling": {}}, "spec.scalling: {} scaling?"),
    "nothing like it": ({"zzz": 1}, "spec.zzz: is an unknown field. Correct its name, or remove it."),
}


@pytest.mark.parametrize(("spec", "message"), MISSPELT.values(), ids=MISSPELT.keys())
@pytest.mark.parametrize("command", ["plan", "render"])
def test_a_misspelt_field_comes_with_the_right_one(
    command: str, spec: dict[str, Any], message: str, llmservice: Command
) -> None:
    ran = llmservice(command, "-f", llmservice.manifest(manifest(**spec)))
    assert ran.code == 2
    assert message.format("is an unknown field. Did you mean") in ran.err


def test_misspelt_metadata_comes_with_the_right_name(llmservice: Command) -> None:
    made = manifest()
    made["metadata"]["lables"] = {}
    assert (
        "metadata.lables: is an unknown field. Did you mean labels?"
        in llmservice("plan", "-f", llmservice.manifest(made)).err
    )


BEYOND_THE_SPEC = {
    "-tp 1024": "--tensor-parallel-size: must be less than or equal to 64, not 1024. Lower it.",
    "--block-size 7": "--block-size: 7 is not supported. Write one of 1, 8, 16, 32, 64, 128, 256.",
    "--gpu-memory-utilization 0.01": "--gpu-memory-utilization: must be greater than or equal to 0.05, not 0.01. Raise",
    "--max-lora-rank 17": "--max-lora-rank: 17 is not supported.",
}


@pytest.mark.parametrize(("words", "message"), BEYOND_THE_SPEC.items(), ids=BEYOND_THE_SPEC.keys())
def test_a_value_that_the_spec_does_not_take_is_about_the_option(words: str, message: str, llmservice: Command) -> None:
    ran = llmservice("plan", "-f", llmservice.manifest(manifest()), *words.split())
    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert "Input should be" not in ran.err


@given(st.text(max_size=10_000))
def test_any_name_has_a_suggestion_or_none(name: str) -> None:
    found = meant(name, {"uri": {}, "revision": {}})
    assert found is None or found in ("uri", "revision") or found.startswith("spec.")
