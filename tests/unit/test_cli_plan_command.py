"""`llmservice plan` from its arguments to its exit code, without a manifest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from llmservice_cli.app import run
from llmservice_cli.errors import ExitCode

from .cli_plan_world import config

FOLDER = "a folder, and nothing in it"
NO_NETWORK = """
import socket, sys
def refuse(*_): raise AssertionError('the network was asked')
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from llmservice_cli.__main__ import main
code = main()
for name in ('aiohttp', 'kubernetes', 'rich', 'pydantic', 'yaml', 'httpx', 'asyncio'):
    assert name not in sys.modules, name
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("words", "code", "verdict"),
    [
        (["--gpu", "NVIDIA-L4", "--max-model-len", "8K"], 0, "Fits"),
        (["--gpu", "H100", "-tp", "2", "--max-model-len", "auto", "--kv-cache-dtype", "fp8"], 0, "Fits"),
        (["--gpu", "NVIDIA-L4"], 1, "DoesNotFit"),
        (["--gpu", "T4", "--quantization", "awq", "--max-model-len", "4k", "--enforce-eager"], 0, "Fits"),
        (["--gpu-memory-gib", "22.03", "--max-model-len", "8K", "--dtype", "half"], 0, "Fits"),
        (["--gpu", "T4", "--gpu", "L4", "--max-model-len", "8K"], 0, "Fits"),
        ([], 3, "Unknown"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_exit_code_says_whether_it_fits(
    words: list[str], code: int, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--config", config(tmp_path), "-o", "json", *words]) == code
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] == verdict
    assert ("warning: Unknown" in said.err) == (verdict == "Unknown")


def test_tight_is_a_warning_and_with_strict_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path)
    run(["plan", "--config", path, "--gpu", "L4", "--max-model-len", "auto", "-o", "json"])
    longest = json.loads(capsys.readouterr().out)["maxModelLen"]
    words = ["plan", "--config", path, "--gpu", "L4", "--max-model-len", str(longest + 512)]
    assert run(words) == ExitCode.DONE
    assert "warning: Tight" in capsys.readouterr().err
    assert run([*words, "--strict"]) == ExitCode.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dtype", "fp4"], ["error: --dtype: 'fp4' is no type that vLLM computes in. Write one of auto,"]),
        (["--max-model-len", "32.5K"], ["error: --max-model-len: '32.5K': vLLM takes no decimals with K"]),
        (
            ["--gpu", "H1000"],
            ["error: --gpu: 'H1000' is no GPU of the catalogue. Write a node's nvidia.com/gpu.product"],
        ),
        (["--gpu-memory-utilization", "92"], ["error: --gpu-memory-utilization: '92' is no share of the memory."]),
        (["--parameters", "many"], ["error: --parameters: 'many' is no number of parameters."]),
        (["-tp", "0"], ["error: --tensor-parallel-size: '0' is not from 1 to 1,024."]),
        (
            ["-tp", "3", "-pp", "33"],
            [
                "error: --tensor-parallel-size: 3 ranks cannot share 32 attention heads and 8 key/value heads evenly. "
                "Use one of 1, 2, 4, 8, 16, 32.",
                "error: --pipeline-parallel-size: 33 stages cannot share 32 layers. Use at most 32.",
            ],
        ),
        (["--gpu", "cpu"], ["error: --gpu: cpu needs the GiB of its KV cache"]),
        (["--model", "hf://a/b"], ["error: --model: --config already says which model it is. Leave one of them out."]),
        (["--speculative-config", "{"], ["error: --speculative-config: '{' is no JSON"]),
        (
            ["--dtype", "fp4", "--max-num-seqs", "none", "--gpu", "Z80", "--kv-cache-dtype", "int2"],
            ["error: --dtype:", "error: --kv-cache-dtype:", "error: --max-num-seqs:", "error: --gpu:"],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_bad_value_is_one_line(
    words: list[str], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--config", config(tmp_path), *words]) == ExitCode.BAD_INPUT
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert len(lines) == len(said)
    for line, beginning in zip(lines, said, strict=True):
        assert line.startswith(beginning)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory."),
        (FOLDER, "holds no config.json"),
        ("{", "is no JSON"),
        ("[]", "is no model's configuration"),
        ('{"hidden_size": -1, "num_hidden_layers": 2}', "--config.hidden_size: "),
    ],
)
def test_a_config_that_is_none(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    if content == FOLDER:
        path.mkdir()
    elif content is not None:
        path.write_text(content, encoding="utf-8")
    assert run(["plan", "--config", str(path), "--gpu", "L4"]) == ExitCode.BAD_INPUT
    told = capsys.readouterr().err
    assert told.startswith("error: --config")
    assert said in told
    assert len(told.splitlines()) == 1


def test_offline_asks_nobody_for_the_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("llmservice_cli.plan.models.from_uri", lambda uri: pytest.fail(f"{uri} was read"))
    assert run(["plan", "--offline", "--model", "s3://models/llama", "--gpu", "L4"]) == ExitCode.BAD_INPUT
    said = (
        "error: --model: s3://models/llama is not read with --offline. Give its config.json with --config, or a folder."
    )
    assert capsys.readouterr().err.splitlines() == [said]


@pytest.mark.parametrize(
    ("words", "gpus", "noted"),
    [
        (["--gpu", "2 x NVIDIA-L4"], 2, []),
        (["--gpu", "2x L4", "-tp", "1"], 1, ["--gpu 'L4' is taken as NVIDIA-L4"]),
        (["--gpu", "unknown", "--gpu", "1x NVIDIA-L4"], 1, ["--gpu 'unknown' is taken as not given"]),
        (["--gpu", "NVIDIA-L4", "--vllm-version", "unknown"], 1, ["--vllm-version 'unknown' is taken as not given"]),
    ],
    ids=str,
)
def test_gpus_as_people_count_them(
    words: list[str], gpus: int, noted: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--config", config(tmp_path), "--max-model-len", "8k", "-o", "json", *words]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["gpus"], found["notes"]) == (gpus, noted)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--gpu", "T4", "--kv-cache-dtype", "fp8"],
            "error: --kv-cache-dtype: --kv-cache-dtype fp8: no attention backend reads a KV cache in fp8 on this GPU",
        ),
        (["--gpu", "T4", "-q", "mxfp4"], "error: --quantization: --quantization mxfp4: the quantization method needs"),
        (
            ["--gpu", "L4", "--max-num-seqs", "64", "--max-num-batched-tokens", "32"],
            "error: --max-num-batched-tokens: 32 tokens of a step are fewer than its 64 sequences, which need one "
            "each. Give at least 64, or lower --max-num-seqs.",
        ),
    ],
    ids=str,
)
def test_what_vllm_refuses_is_bad_input(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "--config", config(tmp_path), "--max-model-len", "4k", *words]
    assert run(words) == ExitCode.BAD_INPUT
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(said)
    assert "spec." not in told.err


def test_a_grid_has_limits_that_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--compare", "--gpu", "T4", "--kv-cache-dtype", "fp8", "--max-num-seqs", "64"]
    assert run(["plan", "--config", config(tmp_path), *words, "--max-num-batched-tokens", "32"]) == ExitCode.BAD_INPUT
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": 32 tokens")[0] for line in told] == ["error: --max-num-batched-tokens"]


def test_a_gpu_that_does_not_serve_it_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--gpu", "T4", "--gpu", "L4", "--kv-cache-dtype", "fp8", "--max-model-len", "8k", "-o", "json"]
    assert run(["plan", "--config", config(tmp_path), *words]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["gpu"], found["notes"][-1].partition(":")[0]) == ("NVIDIA-L4", "Tesla-T4 is left out")


NICKNAMES = {
    "H100": ("NVIDIA-H100-80GB-HBM3", ["--gpu 'H100' is taken as NVIDIA-H100-80GB-HBM3"]),
    "a100-80": ("NVIDIA-A100-SXM4-80GB", ["--gpu 'a100-80' is taken as NVIDIA-A100-SXM4-80GB"]),
    "NVIDIA-L4": ("NVIDIA-L4", []),
    "RTX 4060 Ti 16GB": (
        "NVIDIA-GeForce-RTX-4060-Ti",
        [
            "--gpu 'RTX 4060 Ti 16GB' is taken as NVIDIA-GeForce-RTX-4060-Ti",
            "NVIDIA-GeForce-RTX-4060-Ti is planned with 15.57 GiB; cards with 7.6 GiB have the same label "
            "(--gpu-memory-gib)",
        ],
    ),
}


@pytest.mark.parametrize(("name", "meant"), NICKNAMES.items(), ids=NICKNAMES)
def test_a_gpu_as_people_call_it_is_its_label(
    name: str, meant: tuple[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["plan", "--config", config(tmp_path), "--gpu", name, "--max-model-len", "512", "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["gpu"], found["notes"]) == meant


def test_a_name_of_several_gpus_is_asked_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--config", config(tmp_path), "--gpu", "A100"]
    assert run(words) == ExitCode.BAD_INPUT
    said = capsys.readouterr().err
    assert "'A100' may be one of several: NVIDIA-A100-SXM4-40GB (39.39 GiB), NVIDIA-A100-SXM4-80GB (79.15" in said
    assert run([*words, "--gpu-memory-gib", "79.2", "--max-model-len", "512", "-o", "json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["gpu"] == "NVIDIA-A100-SXM4-80GB"


@pytest.mark.parametrize("compare", [[], ["--compare"]], ids=str)
def test_a_length_that_the_model_was_not_made_for_does_not_fit(
    compare: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, max_position_embeddings=4096)
    words = ["plan", "--config", path, "--gpu", "H100", "--gpu", "H200", "--max-model-len", "8192", "-o", "json"]
    assert run([*words, *compare]) == ExitCode.DOES_NOT_FIT
    found = json.loads(capsys.readouterr().out)
    if compare:
        assert {cell["verdict"] for cell in found["cells"]} <= {"DoesNotFit", None}
        return
    assert found["reason"].startswith("The model was made for 4,096 tokens: vLLM refuses 8,192 unless")
    assert found["maxModelLen"] == 4096
    assert [(one["options"], one["verdict"]) for one in found["remedies"]] == [({"max_model_len": 4096}, "Fits")]


def test_a_length_that_neither_model_nor_gpu_has_is_helped_in_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "--config", config(tmp_path), "--gpu", "L4", "--max-model-len", "200000", "-o", "json"]
    assert run(words) == ExitCode.DOES_NOT_FIT
    found = json.loads(capsys.readouterr().out)
    assert "The longest request that fits has" in found["reason"]
    assert "the model was made for 131,072 tokens" in found["reason"]
    assert all(one["options"]["max_model_len"] <= 131072 for one in found["remedies"])
    assert found["remedies"]


def test_options_with_underscores_are_taken_as_vllm_takes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--gpu", "L4", "--tensor_parallel_size", "2", "--max_model_len=8k", "--enforce_eager", "-o", "json"]
    assert run(["plan", "--config", config(tmp_path), *words]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["gpus"], found["requestedMaxModelLen"], found["graphGiB"]) == (2, 8000, 0.0)


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--parameters", "70B", "--gpu", "L4"], 1), (["--weights-gib", "4", "--gpu", "L4"], 3)],
)
def test_weights_alone_can_only_be_too_large(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *words, "-o", "yaml"]) == code
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["verdict"] == ("DoesNotFit" if code == 1 else "Unknown")
    assert found["kvCacheTokens"] is None


def test_a_remedy_is_good_as_it_is_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--config", config(tmp_path), "--gpu", "T4", "-o", "json"]
    assert run(words) == ExitCode.DOES_NOT_FIT
    remedies = json.loads(capsys.readouterr().out)["remedies"]
    assert remedies
    for remedy in remedies:
        changed = [
            word for name, value in remedy["options"].items() for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        words_then = words[:3] + (changed if "gpu" in remedy["options"] else ["--gpu", "T4", *changed])
        assert run([*words_then, "-o", "json"]) == ExitCode.DONE
        found = json.loads(capsys.readouterr().out)
        assert (found["verdict"], found["kvCacheTokens"]) == (remedy["verdict"], remedy["kvCacheTokens"])


def test_the_program_asks_nobody_and_loads_little(tmp_path: Path) -> None:
    words = ["plan", "--config", config(tmp_path), "--gpu", "L4", "--max-model-len", "8k", "-o", "json"]
    env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", NO_NETWORK, *words], capture_output=True, text=True, env=env, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert json.loads(done.stdout)["verdict"] == "Fits"


def test_the_program_plans_from_standard_input(tmp_path: Path) -> None:
    text = Path(config(tmp_path)).read_text(encoding="utf-8")
    words = ["plan", "--config", "-", "--gpu", "NVIDIA-L4", "--max-model-len", "8k"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "llmservice_cli", *words],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Fits on 1 x NVIDIA-L4\n")
    assert "\x1b" not in done.stdout
