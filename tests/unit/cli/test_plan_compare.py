"""`llmservice plan --compare`: GPUs and precisions as a grid."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_cli.errors import ExitCode
from llmservice_cli.plan.answers import USUAL_GPUS, usual_devices
from llmservice_planner.gpus import CATALOGUE

from tests.unit.cli_world import Command, Json, manifest

TWO = ("--gpu", "NVIDIA-L4", "--gpu", "Tesla-T4", "--max-model-len", "16k")
SHORT = ("--max-model-len", "8k")
QUANTIZED = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
LARGE = {"num_hidden_layers": 320}


class Grid:
    """The JSON of a grid; cells by (gpu, weights, KV cache's type)."""

    def __init__(self, llmservice: Command, *words: str) -> None:
        ran = llmservice("plan", "--compare", "-o", "json", *words)
        self.code, self.document = ran.code, ran.json
        self.cells: dict[tuple[str, str, str], Json] = {
            (cell["gpu"], cell["weights"], cell["kvCacheDtype"]): cell for cell in self.document["cells"]
        }

    def each(self, index: int) -> list[str]:
        """The GPUs, weights or types of the KV cache, each once."""
        return list(dict.fromkeys(key[index] for key in self.cells))

    def __getitem__(self, key: tuple[str, str, str]) -> Any:
        return self.cells[key]["verdict"]


def test_every_gpu_with_every_precision_that_it_computes_with(llmservice: Command) -> None:
    grid = Grid(llmservice, "--config", llmservice.config(), *TWO)
    assert (grid.code, len(grid.cells)) == (ExitCode.DONE, 2 * 3 * 2)
    assert grid["NVIDIA-L4", "as it is", "auto"] == "Fits"
    assert grid["Tesla-T4", "as it is", "auto"] == "DoesNotFit"
    assert grid["Tesla-T4", "int4", "auto"] == "Fits"
    plain, halved = (grid.cells["NVIDIA-L4", "as it is", kv]["kvCacheTokens"] for kv in ("auto", "fp8"))
    assert halved == pytest.approx(2 * plain, rel=0.01)
    weights = {name: grid.cells["NVIDIA-L4", name, "auto"]["weightsGiB"] for name in ("fp8", "as it is")}
    assert weights["fp8"] < weights["as it is"]
    refused = grid.cells["Tesla-T4", "int4", "fp8"]
    assert refused["verdict"] is None
    assert "no attention backend reads a KV cache in fp8 on this GPU" in refused["reason"]
    grid = Grid(llmservice, "--config", llmservice.config(), *TWO, "--dtype", "bfloat16")
    assert grid["Tesla-T4", "as it is", "auto"] is None
    assert grid["NVIDIA-L4", "as it is", "auto"] == "Fits"


@pytest.mark.parametrize(
    ("words", "config"), [(("--quantization", "fp8"), {}), (("--weights-gib", "5"), {}), ((), QUANTIZED)], ids=str
)
def test_weights_that_are_decided_stay(words: tuple[str, ...], config: Json, llmservice: Command) -> None:
    grid = Grid(llmservice, "--config", llmservice.config(**config), *TWO, *words)
    assert grid.each(1) == ["as it is"]


@pytest.mark.parametrize("label", ["NVIDIA-RTX-A6000", "NVIDIA-L4"])
def test_one_gpu_is_compared_with_the_usual_ones(label: str, llmservice: Command) -> None:
    grid = Grid(llmservice, "--config", llmservice.config(), "--gpu", label)
    assert grid.each(0) == [label, *(device.name for device in usual_devices() if device.name != label)]
    assert [name for name in USUAL_GPUS if name not in CATALOGUE] == []


@pytest.mark.parametrize(("columns", "headers"), [(160, 1), (80, 2), (40, 6)])
def test_the_grid_fits_the_terminal(
    columns: int, headers: int, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = llmservice("plan", "--compare", "--config", llmservice.config(), *TWO).out.splitlines()
    assert max(map(len, lines)) <= columns
    assert sum(line.startswith("    ") for line in lines) == headers
    assert sum(line.startswith("L4  ") for line in lines) == headers


def test_a_manifests_gpus_are_compared(llmservice: Command) -> None:
    accelerator, precision = {"products": ["NVIDIA-L4", "NVIDIA-L40S"]}, {"kvCache": "fp8_e4m3"}
    given = manifest(model={"uri": "pvc://models/llama"}, accelerator=accelerator, precision=precision)
    words = ("-f", llmservice.manifest(given), "--config", llmservice.config(), "--offline")
    grid = Grid(llmservice, *words)
    assert set(grid.each(0)) == {"NVIDIA-L4", "NVIDIA-L40S"}
    assert set(grid.each(2)) == {"fp8_e4m3", "auto", "fp8"}


def test_a_model_without_its_config_is_unknown_everywhere(llmservice: Command) -> None:
    grid = Grid(llmservice, "--parameters", "8B", "--gpu", "L4", "--gpu", "H100")
    assert grid.code == ExitCode.UNKNOWN
    assert {cell["verdict"] for cell in grid.cells.values()} == {"Unknown"}
    sizes = [grid.cells["NVIDIA-L4", weights, "auto"]["weightsGiB"] for weights in ("as it is", "fp8", "int4")]
    assert sizes[0] > 1.8 * sizes[1] > 1.8 * 1.5 * sizes[2]


def test_the_fewest_gpus_that_do_where_no_cell_fits(llmservice: Command) -> None:
    config = ("--config", llmservice.config(**LARGE))
    grid = Grid(llmservice, *config, "--gpu", "T4", "--gpu", "L4", "--gpu", "H100", *SHORT)
    assert grid.document["gpusNeeded"] == {"Tesla-T4": None, "NVIDIA-L4": 4, "NVIDIA-H100-80GB-HBM3": 1}
    for name, ranks, fits in (("Tesla-T4", 8, False), ("NVIDIA-L4", 2, False), ("NVIDIA-L4", 4, True)):
        grid = Grid(llmservice, *config, "--gpu", name, "--gpu", "H100", *SHORT, "-tp", str(ranks))
        verdicts = {cell["verdict"] for (gpu, _, _), cell in grid.cells.items() if gpu == name}
        assert ("Fits" in verdicts) is fits
    assert "gpusNeeded" not in Grid(llmservice, "--config", llmservice.config(), *TWO).document


@pytest.mark.parametrize("columns", [200, 80, 50])
def test_the_number_of_gpus_is_a_column(columns: int, llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    words = ("plan", "--compare", "--config", llmservice.config(**LARGE), "--gpu", "T4", "--gpu", "H100", *SHORT)
    lines = [line.rstrip() for line in llmservice(*words).out.splitlines()]
    assert max(map(len, lines)) <= columns
    assert any(line.endswith("GPUs needed") for line in lines)
    assert all(line.endswith(" 1") for line in lines if line.startswith("H100 "))
    assert "| GPUs needed |" in llmservice(*words, "-o", "markdown").out


@pytest.mark.parametrize("words", [("--gpu", "H100"), ("--compare", "--gpu", "H100", "--gpu", "H200")], ids=len)
def test_more_gpus_than_a_node_has_are_noted(words: tuple[str, ...], llmservice: Command) -> None:
    config = llmservice.config(num_attention_heads=32, num_key_value_heads=16)
    out = llmservice("plan", "--config", config, "-tp", "16", *SHORT, *words).out
    assert "needs a node with 16 GPUs" in " ".join(out.split())


def test_as_markdown(llmservice: Command) -> None:
    words = ("plan", "--compare", "--config", llmservice.config(), *TWO, "-o", "markdown")
    header, _, *rows = llmservice(*words).out.splitlines()
    columns = "as it is, auto KV | as it is, fp8 KV | fp8, auto KV | fp8, fp8 KV | int4, auto KV | int4, fp8 KV"
    assert header == f"|  | {columns} |"
    assert rows[0].startswith("| NVIDIA-L4 | Fits ")
    assert rows[1].startswith("| Tesla-T4 | DoesNotFit ")
