"""What is reported of an adapter's folder before vLLM sees it, whatever is in it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_runtime import adapter_list, contract
from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.contract import MAX_ADAPTERS
from llmservice_runtime.preflight import adapter_files
from llmservice_runtime.preflight.adapter_files import problem

from tests.unit.hostile import texts
from tests.unit.runtime.adapter_folder import HIDDEN, write_adapter

BASE = {"hidden_size": HIDDEN, "num_hidden_layers": 2}
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LORA_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
TENSOR = {"dtype": "F32", "shape": [8, 64], "data_offsets": [0, 2048]}


def of(folder: Path, base: dict[str, Any] = BASE, **more: Any) -> str:
    """The problem of an adapter; empty where there is none."""
    return problem(folder, max_rank=16, base=base, **more) or ""


def with_header(folder: Path, text: str | bytes, size: int = 2048) -> None:
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    (folder / WEIGHTS).write_bytes(len(data).to_bytes(8, "little") + data + bytes(size))


WRITTEN: dict[str, tuple[dict[str, Any], str]] = {
    "good": ({}, ""),
    "the largest rank": ({"rank": 16}, ""),
    "all targets": ({"target_modules": "all-linear"}, ""),
    "a rank too large": ({"rank": 32}, "spec.lora.maxLoraRank"),
    "a rank too large for one module": ({"rank_pattern": {"q_proj": 64}}, "rank 64 exceeds 16"),
    "a rank too large in the weights only": ({"rank": 32, "r": 8}, "rank 32 exceeds"),
    "no rank": ({"r": None}, "r is missing"),
    "a rank that is true": ({"r": True}, "r is not an integer"),
    "a rank below one": ({"r": -1}, "r is not an integer from 1"),
    "no alpha": ({"lora_alpha": None}, "lora_alpha is missing"),
    "no targets": ({"target_modules": []}, "it names no target_modules"),
    "targets that are a number": ({"target_modules": 5}, "target_modules is not a list"),
    "targets that are lists": ({"target_modules": [["q_proj"]]}, "target_modules is not text"),
    "ranks that are a list": ({"rank_pattern": [8]}, "rank_pattern is not an object"),
    "a module's rank that is none": ({"rank_pattern": {"q": [8]}}, "rank_pattern.q is not an integer"),
    "a repeated group": ({"rank_pattern": {"(a+)+b": 8}}, "may take very long"),
    "optional parts": ({"alpha_pattern": {"a?" * 40: 8}}, "may take very long"),
    "alternatives": ({"alpha_pattern": {"(a|a)" * 40: 8}}, "may take very long"),
    "no LoRA": ({"peft_type": "PREFIX_TUNING"}, "LoRA adapters only"),
    "a kind that is a list": ({"peft_type": ["LORA"]}, "peft_type is not text"),
    "of a wider model": ({"hidden": 2 * HIDDEN}, "hidden size is 64"),
    "of a narrower model": ({"hidden": HIDDEN // 2}, "hidden size is 64"),
    "of a deeper model": ({"layer": 2}, "the base model has 2 layers"),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_a_config_and_its_weights(tmp_path: Path, case: str) -> None:
    written, said = WRITTEN[case]
    found = of(write_adapter(tmp_path / "a", **written))
    assert said in found if said else not found


Change = Callable[[Path], object]
DAMAGES: dict[str, tuple[str, Change, str]] = {
    "config: cut short": (CONFIG, lambda file: file.write_text("{"), "not JSON"),
    "config: a mebibyte": (CONFIG, lambda file: file.write_text('"' + "x" * (1 << 20) + '"'), "longer than"),
    "config: many parts": (CONFIG, lambda file: file.write_text("[" + "0," * 200_000 + "0]"), "more than 100000 parts"),
    "config: missing": (CONFIG, Path.unlink, "no adapter_config.json that can be read"),
    "weights: missing": (WEIGHTS, Path.unlink, "copy it again"),
    "weights: cut short": (WEIGHTS, lambda file: file.write_bytes(file.read_bytes()[:-1]), "copy it again"),
    "weights: an LFS pointer": (WEIGHTS, lambda file: file.write_bytes(b"version https://git"), "copy it again"),
    "header: no shape": (WEIGHTS, lambda file: with_header(file.parent, f'{{"{LORA_A}":{{}}}}'), "is not a list"),
    "header: 25 MiB": (WEIGHTS, lambda file: with_header(file.parent, b" " * (25 << 20)), "its header has 26214400"),
}  # fmt: skip
NO_FILES: dict[str, Change] = {
    "a folder": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a device": lambda file: file.symlink_to("/dev/zero"),
    "a link to nothing": lambda file: file.symlink_to("nowhere"),
    "a link to itself": lambda file: file.symlink_to(file.name),
    "a link to a name that is too long": lambda file: file.symlink_to("x" * 300),
}
DAMAGES |= {
    f"{name}: {kind}": (name, lambda file, make=make: (file.unlink(), make(file)), name)  # type: ignore[misc]
    for name in (CONFIG, WEIGHTS)
    for kind, make in NO_FILES.items()
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_file(tmp_path: Path, case: str) -> None:
    name, damage, said = DAMAGES[case]
    folder = write_adapter(tmp_path / "a")
    damage(folder / name)
    found: list[str] = []
    check = threading.Thread(target=lambda: found.append(of(folder)), daemon=True)
    check.start()
    check.join(20)
    assert found, "it blocks on the FIFO"
    assert said in found[0]


@pytest.mark.parametrize("path", ["absent", "file", "x" * 300, "a/" * 3000, "a\0b"])
def test_a_folder_that_cannot_be(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    found = of(tmp_path / path)
    assert "Check its uri in spec.adapters" in found or "cannot be read" in found


def test_files_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(adapter_files, "_resolved", refuse)
    assert "Permission denied" in of(write_adapter(tmp_path / "a"))


def test_only_a_text_part_and_known_sizes_are_compared(tmp_path: Path) -> None:
    assert not of(write_adapter(tmp_path / "a"), {"hidden_size": 1, "text_config": BASE})
    assert not of(write_adapter(tmp_path / "b", hidden=7, layer=9), {})


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_links_stay_in_the_volume_of_the_adapter(tmp_path: Path, name: str) -> None:
    """As in a hub's cache: to another folder of the volume, but not to another volume."""
    volume, other = tmp_path / "volume", tmp_path / "other"
    for each in (volume / "blobs", other):
        each.mkdir(parents=True)
    folder = write_adapter(volume / "snapshots" / "a")

    def mount(path: Path) -> Path:
        return next((place for place in (volume, other) if path.is_relative_to(place)), Path("/"))

    (folder / name).rename(volume / "blobs" / "x")
    (folder / name).symlink_to(Path("..") / ".." / "blobs" / "x")
    assert not of(folder, mount=mount)
    (volume / "blobs" / "x").rename(other / "x")
    (folder / name).unlink()
    (folder / name).symlink_to(other / "x")
    assert "leaves the volume" in of(folder, mount=mount)


def test_links_of_the_fetch_container_lead_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links and cache are two volumes of a pod."""
    links, cache, other = tmp_path / "artifacts", tmp_path / "models", tmp_path / "other"
    monkeypatch.setattr(contract, "ARTIFACTS_DIR", str(links))
    monkeypatch.setattr(contract, "MODELS_DIR", str(cache))

    def mount(path: Path) -> Path:
        return next((place for place in (links, cache, other) if path.is_relative_to(place)), Path("/"))

    for place, is_fine in ((cache, True), (other, False)):
        blobs, folder = write_adapter(place / "blobs"), links / place.name
        folder.mkdir(parents=True)
        for file in blobs.iterdir():
            (folder / file.name).symlink_to(file)
        assert (of(folder, mount=mount) == "") is is_fine


def test_mounts_are_those_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert adapter_files.mount_of(Path("/proc/self/status")) == Path("/proc")
    listed = tmp_path / "mountinfo"
    listed.write_text("1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 /x /the\\040volume rw - ext4 b rw\n")
    monkeypatch.setattr(adapter_files, "_MOUNTS", listed)
    assert adapter_files.mount_of(Path("/the volume/a/b")) == Path("/the volume")
    assert adapter_files.mount_of(Path("/the/volume")) == Path("/")


CONFIGS = texts({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q"], "rank_pattern": {"q": 8}})
HEADERS = texts({"__metadata__": {"format": "pt"}, LORA_A: TENSOR})
LISTS = texts([{"name": "a", "uri": "pvc://c/a", "path": "/a"}, {"name": "b", "uri": "hf://a/b"}])


@given(CONFIGS, HEADERS, LISTS, st.integers(0, 4096))
def test_whatever_is_written_the_answer_is_a_text_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, config: str, header: str, adapters: str, size: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(config, encoding="utf-8", errors="surrogatepass")
    with_header(folder, header, size)
    found = of(folder)
    assert not found or found.endswith(".")
    try:
        listed = adapter_list.from_json(adapters)
    except Refused:
        return
    assert len(listed) <= MAX_ADAPTERS
    assert all(isinstance(adapter.path, str | None) for adapter in listed)
