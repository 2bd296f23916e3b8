"""`llmservice plan --compare`: GPUs and precisions as a grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from llmservice_cli.app import run
from llmservice_cli.errors import ExitCode
from llmservice_cli.plan.answers import USUAL_GPUS, usual_devices
from llmservice_operator.planner.gpus import CATALOGUE

from .cli_plan_world import config

TWO = ("--gpu", "NVIDIA-L4", "--gpu", "Tesla-T4", "--max-model-len", "16k")
QUANTIZED = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}


def cells(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[tuple[str, str, str], dict[str, Any]]]:
    code = run(["plan", "--compare", "-o", "json", *words])
    found = json.loads(capsys.readouterr().out)["cells"]
    return code, {(cell["gpu"], cell["weights"], cell["kvCacheDtype"]): cell for cell in found}


def test_every_gpu_with_every_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = cells(capsys, "--config", config(tmp_path), *TWO)
    assert code == ExitCode.DONE
    assert len(found) == 2 * 3 * 2
    assert found["NVIDIA-L4", "as it is", "auto"]["verdict"] == "Fits"
    assert found["Tesla-T4", "as it is", "auto"]["verdict"] == "DoesNotFit"
    assert found["Tesla-T4", "int4", "auto"]["verdict"] == "Fits"
    plain, halved = (found["NVIDIA-L4", "as it is", kv]["kvCacheTokens"] for kv in ("auto", "fp8"))
    assert halved == pytest.approx(2 * plain, rel=0.01)
    assert found["NVIDIA-L4", "fp8", "auto"]["weightsGiB"] < found["NVIDIA-L4", "as it is", "auto"]["weightsGiB"]


def test_what_a_gpu_does_not_compute_is_not_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = cells(capsys, "--config", config(tmp_path), *TWO)
    refused = found["Tesla-T4", "int4", "fp8"]
    assert refused["verdict"] is None
    assert "no attention backend reads a KV cache in fp8 on this GPU" in refused["reason"]
    _, found = cells(capsys, "--config", config(tmp_path), *TWO, "--dtype", "bfloat16")
    assert found["Tesla-T4", "as it is", "auto"]["verdict"] is None
    assert found["NVIDIA-L4", "as it is", "auto"]["verdict"] == "Fits"


@pytest.mark.parametrize("words", [("--quantization", "fp8"), ("--weights-gib", "5")])
def test_weights_that_are_decided_stay(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = cells(capsys, "--config", config(tmp_path), *TWO, *words)
    assert {weights for _, weights, _ in found} == {"as it is"}
    _, found = cells(capsys, "--config", config(tmp_path, **QUANTIZED), *TWO)
    assert {weights for _, weights, _ in found} == {"as it is"}


def test_one_gpu_is_compared_with_the_usual_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = cells(capsys, "--config", config(tmp_path), "--gpu", "NVIDIA-RTX-A6000")
    gpus = list(dict.fromkeys(gpu for gpu, _, _ in found))
    usual = [device.name for device in usual_devices()]
    assert gpus == ["NVIDIA-RTX-A6000", *usual]
    _, found = cells(capsys, "--config", config(tmp_path), "--gpu", "L4")
    gpus = list(dict.fromkeys(gpu for gpu, _, _ in found))
    assert gpus == ["NVIDIA-L4", *(name for name in usual if name != "NVIDIA-L4")]


def test_the_usual_gpus_are_labels_of_the_catalogue() -> None:
    assert [name for name in USUAL_GPUS if name not in CATALOGUE] == []


def test_nothing_fits_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--config", config(tmp_path, num_hidden_layers=320), "--gpu", "T4", "--gpu", "L4")
    assert cells(capsys, *words)[0] == ExitCode.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("columns", "headers"), [(160, 1), (80, 2), (40, 6)], ids=["one grid", "one a cache type", "one a column"]
)
def test_the_grid_fits_the_terminal(
    columns: int,
    headers: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run(["plan", "--compare", "--config", config(tmp_path), *TWO]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert sum(line.startswith("    ") for line in lines) == headers
    assert sum(line.startswith("L4  ") for line in lines) == headers


def test_a_manifests_gpus_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = {
        "apiVersion": "llmservice.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"uri": "pvc://models/llama"},
            "accelerator": {"products": ["NVIDIA-L4", "NVIDIA-L40S"]},
            "precision": {"kvCache": "fp8_e4m3"},
        },
    }
    path = tmp_path / "llmservice.json"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    _, found = cells(capsys, "-f", str(path), "--config", config(tmp_path), "--offline")
    assert {gpu for gpu, _, _ in found} == {"NVIDIA-L4", "NVIDIA-L40S"}
    assert {kv for _, _, kv in found} == {"fp8_e4m3", "auto", "fp8"}


def test_a_model_without_its_config_is_unknown_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = cells(capsys, "--parameters", "8B", "--gpu", "L4", "--gpu", "H100")
    assert code == ExitCode.UNKNOWN
    assert {cell["verdict"] for cell in found.values()} == {"Unknown"}
    sizes = [found["NVIDIA-L4", weights, "auto"]["weightsGiB"] for weights in ("as it is", "fp8", "int4")]
    assert sizes[0] > 1.8 * sizes[1] > 1.8 * 1.5 * sizes[2]


def grid(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    run(["plan", "--compare", "-o", "json", *words])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


LARGE = {"num_hidden_layers": 320}
SHORT = ("--max-model-len", "8k")


def test_the_fewest_gpus_that_do_where_no_cell_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, **LARGE)
    found = grid(capsys, "--config", path, "--gpu", "T4", "--gpu", "L4", "--gpu", "H100", *SHORT)["gpusNeeded"]
    assert found == {"Tesla-T4": None, "NVIDIA-L4": 4, "NVIDIA-H100-80GB-HBM3": 1}
    for name, ranks, does in (("Tesla-T4", 8, False), ("NVIDIA-L4", 2, False), ("NVIDIA-L4", 4, True)):
        words = ("--config", path, "--gpu", name, "--gpu", "H100", *SHORT, "-tp", str(ranks))
        _, several = cells(capsys, *words)
        verdicts = {cell["verdict"] for (gpu, _, _), cell in several.items() if gpu == name}
        assert ("Fits" in verdicts) is does


def test_no_number_where_every_product_has_a_cell_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "gpusNeeded" not in grid(capsys, "--config", config(tmp_path), *TWO)


@pytest.mark.parametrize("columns", [200, 80, 50])
def test_the_number_is_a_column(
    columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    words = ("--config", config(tmp_path, **LARGE), "--gpu", "T4", "--gpu", "H100", *SHORT)
    run(["plan", "--compare", *words])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= columns
    assert any(line.endswith("GPUs needed") for line in lines)
    assert all(line.endswith(" 1") for line in lines if line.startswith("H100 "))
    run(["plan", "--compare", *words, "-o", "markdown"])
    assert "| GPUs needed |" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--gpu", "H100"), ("--compare", "--gpu", "H100", "--gpu", "H200")], ids=len)
def test_more_gpus_than_a_node_has_are_noted(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, num_attention_heads=32, num_key_value_heads=16)
    run(["plan", "--config", path, "-tp", "16", *SHORT, *words])
    assert "needs a node with 16 GPUs" in " ".join(capsys.readouterr().out.split())


def test_as_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--compare", "--config", config(tmp_path), *TWO, "-o", "markdown"]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "|  | as it is, auto KV | as it is, fp8 KV | fp8, auto KV | fp8, fp8 KV | int4, auto KV | int4, fp8 KV |"
    )
    assert lines[2].startswith("| NVIDIA-L4 | Fits ")
    assert lines[3].startswith("| Tesla-T4 | DoesNotFit ")
