"""`llmservice plan` from its arguments to its exit code, without a manifest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from llmservice_cli.errors import ExitCode

from tests.unit.cli_world import Command

DONE, BAD_INPUT, DOES_NOT_FIT = ExitCode.DONE, ExitCode.BAD_INPUT, ExitCode.DOES_NOT_FIT
NO_NETWORK = """
import socket, sys
def refuse(*_): raise AssertionError('the network was used')
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from llmservice_cli.__main__ import main
code = main()
for name in ('aiohttp', 'kubernetes', 'rich', 'yaml', 'httpx', 'asyncio'):
    assert name not in sys.modules, name
sys.exit(code)
"""
VERDICTS = {
    "--gpu NVIDIA-L4 --max-model-len 8K": (0, "Fits"),
    "--gpu H100 -tp 2 --max-model-len auto --kv-cache-dtype fp8": (0, "Fits"),
    "--gpu NVIDIA-L4": (1, "DoesNotFit"),
    "--gpu T4 --quantization awq --max-model-len 4k --enforce-eager": (0, "Fits"),
    "--gpu-memory-gib 22.03 --max-model-len 8K --dtype half": (0, "Fits"),
    "--gpu T4 --gpu L4 --max-model-len 8K": (0, "Fits"),
    "": (3, "Unknown"),
}


@pytest.mark.parametrize(("words", "code", "verdict"), [(words, *row) for words, row in VERDICTS.items()])
def test_the_exit_code_says_whether_it_fits(words: str, code: int, verdict: str, llmservice: Command) -> None:
    ran = llmservice("plan", "--config", llmservice.config(), "-o", "json", *words.split())
    assert (ran.code, ran.json["verdict"]) == (code, verdict)
    assert ("warning: Unknown" in ran.err) == (verdict == "Unknown")


def test_tight_is_a_warning_and_with_strict_an_error(llmservice: Command) -> None:
    words = ["plan", "--config", llmservice.config(), "--gpu", "L4", "--max-model-len"]
    longest = llmservice(*words, "auto", "-o", "json").json["maxModelLen"]
    ran = llmservice(*words, str(longest + 512))
    assert (ran.code, "warning: Tight" in ran.err) == (DONE, True)
    assert llmservice(*words, str(longest + 512), "--strict").code == DOES_NOT_FIT


UNSHARED = "--tensor-parallel-size: 3 ranks cannot share 32 attention heads and 8 key/value heads evenly. Use one of 1,"
FEWER = "32 tokens of a step are fewer than its 64 sequences, which need one each. Give at least 64, or lower --max-num"
NO_KERNEL = "--kv-cache-dtype: --kv-cache-dtype fp8: no attention backend reads a KV cache in fp8 on this GPU"
BAD_VALUES = {
    "--dtype fp4": ["--dtype: 'fp4' is no type that vLLM computes in. Write one of auto,"],
    "--max-model-len 32.5K": ["--max-model-len: '32.5K': vLLM takes no decimals with K"],
    "--gpu H1000": ["--gpu: 'H1000' is no GPU of the catalogue. Write a node's nvidia.com/gpu.product"],
    "--gpu-memory-utilization 92": ["--gpu-memory-utilization: '92' is no share of the memory."],
    "--parameters many": ["--parameters: 'many' is no number of parameters."],
    "-tp 0": ["--tensor-parallel-size: '0' is not from 1 to 1,024."],
    "-tp 3 -pp 33": [UNSHARED, "--pipeline-parallel-size: 33 stages cannot share 32 layers. Use at most 32."],
    "--gpu cpu": ["--gpu: cpu needs the GiB of its KV cache"],
    "--model hf://a/b": ["--model: --config already says which model it is. Leave one of them out."],
    "--speculative-config {": ["--speculative-config: '{' is no JSON"],
    "--dtype fp4 --max-num-seqs none --gpu Z80 --kv-cache-dtype int2": [
        "--dtype:", "--kv-cache-dtype:", "--max-num-seqs:", "--gpu:",
    ],
    "--gpu A100": ["--gpu: 'A100' may be one of several: NVIDIA-A100-SXM4-40GB (39.39 GiB), NVIDIA-A100-SXM4-80GB (7"],
    # What vLLM refuses whatever the memory:
    "--gpu T4 --kv-cache-dtype fp8 --max-model-len 4k": [NO_KERNEL],
    "--gpu T4 --quantization mxfp4": ["--quantization: --quantization mxfp4: the quantization method needs"],
    "--gpu L4 --max-num-seqs 64 --max-num-batched-tokens 32": [f"--max-num-batched-tokens: {FEWER}"],
    "--compare --gpu T4 --max-num-seqs 64 --max-num-batched-tokens 32": ["--max-num-batched-tokens: 32 tokens"],
}  # fmt: skip


@pytest.mark.parametrize(("words", "errors"), BAD_VALUES.items(), ids=BAD_VALUES)
def test_every_bad_value_is_one_line(words: str, errors: list[str], llmservice: Command) -> None:
    ran = llmservice("plan", "--config", llmservice.config(), *words.split())
    assert (ran.code, ran.out, len(ran.errors)) == (BAD_INPUT, "", len(errors))
    for line, beginning in zip(ran.errors, errors, strict=True):
        assert line.startswith(f"error: {beginning}")
        assert "spec." not in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory."),
        ("a folder", "holds no config.json"),
        ("{", "is no JSON"),
        ("[]", "is no model's configuration"),
        ('{"hidden_size": -1, "num_hidden_layers": 2}', "--config.hidden_size: "),
    ],
)
def test_a_file_that_is_no_config(content: str | None, message: str, llmservice: Command) -> None:
    path = llmservice.folder / "config.json"
    if content == "a folder":
        path.mkdir()
    elif content is not None:
        path.write_text(content, encoding="utf-8")
    ran = llmservice("plan", "--config", str(path), "--gpu", "L4")
    (error,) = ran.errors
    assert (ran.code, error.startswith("error: --config"), message in error) == (BAD_INPUT, True, True)


@pytest.mark.parametrize("words", [("--config",), ("-f",)], ids=str)
def test_a_name_that_is_too_long_for_a_file_is_refused(words: tuple[str], llmservice: Command) -> None:
    """As a config.json is that stands in place of its path."""
    ran = llmservice("plan", *words, "x" * 5000, "--gpu", "NVIDIA-L4")
    assert (ran.code, "cannot be read" in ran.err) == (2, True), ran.err


def test_with_offline_no_model_is_read(monkeypatch: pytest.MonkeyPatch, llmservice: Command) -> None:
    monkeypatch.setattr("llmservice_cli.models.from_uri", lambda uri: pytest.fail(f"{uri} was read"))
    ran = llmservice("plan", "--offline", "--model", "s3://models/llama", "--gpu", "L4")
    uri, remedy = "s3://models/llama is not read with --offline", "Give its config.json with --config, or a folder."
    assert (ran.code, ran.err) == (BAD_INPUT, f"error: --model: {uri}. {remedy}\n")


SAME_LABEL = "NVIDIA-GeForce-RTX-4060-Ti is planned with 15.57 GiB; cards with 7.6 GiB have the same label"
GPUS: dict[str, tuple[str, int, list[str]]] = {
    # words: the label, the number of GPUs, how the notes begin
    "2 x NVIDIA-L4": ("NVIDIA-L4", 2, []),
    "2x L4 | -tp | 1": ("NVIDIA-L4", 1, ["--gpu 'L4' is taken as NVIDIA-L4"]),
    "unknown | --gpu | 1x NVIDIA-L4": ("NVIDIA-L4", 1, ["--gpu 'unknown' is taken as not given"]),
    "NVIDIA-L4 | --vllm-version | unknown": ("NVIDIA-L4", 1, ["--vllm-version 'unknown' is taken as not given"]),
    "H100": ("NVIDIA-H100-80GB-HBM3", 1, ["--gpu 'H100' is taken as NVIDIA-H100-80GB-HBM3"]),
    "a100-80": ("NVIDIA-A100-SXM4-80GB", 1, ["--gpu 'a100-80' is taken as NVIDIA-A100-SXM4-80GB"]),
    "A100 | --gpu-memory-gib | 79.2": ("NVIDIA-A100-SXM4-80GB", 1, ["--gpu 'A100' is taken as NVIDIA-A100-SXM4-80"]),
    "RTX 4060 Ti 16GB": ("NVIDIA-GeForce-RTX-4060-Ti", 1, ["--gpu 'RTX 4060 Ti 16GB' is taken as", SAME_LABEL]),
    "T4 | --gpu | NVIDIA-L4 | --kv-cache-dtype | fp8": (
        "NVIDIA-L4", 1, ["--gpu 'T4' is taken as Tesla-T4", "Tesla-T4 is left out: "],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "gpu", "count", "notes"), [(words, *row) for words, row in GPUS.items()], ids=GPUS)
def test_gpus_as_people_name_and_count_them(
    words: str, gpu: str, count: int, notes: list[str], llmservice: Command
) -> None:
    words_after = ["--max-model-len", "512", "-o", "json", "--gpu", *words.split(" | ")]
    found = llmservice("plan", "--config", llmservice.config(), *words_after).json
    assert (found["gpu"], found["gpus"], len(found["notes"])) == (gpu, count, len(notes))
    assert all(note.startswith(beginning) for note, beginning in zip(found["notes"], notes, strict=True))


@pytest.mark.parametrize("compare", [[], ["--compare"]], ids=str)
def test_a_length_that_the_model_was_not_made_for_does_not_fit(compare: list[str], llmservice: Command) -> None:
    gpus = ["--gpu", "H100", "--gpu", "H200", "--max-model-len", "8192", "-o", "json"]
    ran = llmservice("plan", "--config", llmservice.config(max_position_embeddings=4096), *gpus, *compare)
    assert ran.code == DOES_NOT_FIT
    found = ran.json
    if compare:
        assert {cell["verdict"] for cell in found["cells"]} <= {"DoesNotFit", None}
        return
    assert found["reason"].startswith("The model was made for 4,096 tokens: vLLM refuses 8,192 unless")
    assert found["maxModelLen"] == 4096
    assert [(one["options"], one["verdict"]) for one in found["remedies"]] == [({"max_model_len": 4096}, "Fits")]


def test_a_length_that_neither_model_nor_gpu_allows_has_remedies_for_both(llmservice: Command) -> None:
    words = ["--gpu", "L4", "--max-model-len", "200000", "-o", "json"]
    ran = llmservice("plan", "--config", llmservice.config(), *words)
    assert ran.code == DOES_NOT_FIT
    assert "The longest request that fits has" in ran.json["reason"]
    assert "the model was made for 131,072 tokens" in ran.json["reason"]
    lengths = [one["options"]["max_model_len"] for one in ran.json["remedies"]]
    assert lengths
    assert max(lengths) <= 131072


def test_options_with_underscores_are_taken_as_vllm_takes_them(llmservice: Command) -> None:
    words = ["--gpu", "L4", "--tensor_parallel_size", "2", "--max_model_len=8k", "--enforce_eager", "-o", "json"]
    found = llmservice("plan", "--config", llmservice.config(), *words).json
    assert (found["gpus"], found["requestedMaxModelLen"], found["graphGiB"]) == (2, 8000, 0.0)


@pytest.mark.parametrize(
    ("words", "code", "verdict"), [(["--parameters", "70B"], 1, "DoesNotFit"), (["--weights-gib", "4"], 3, "Unknown")]
)
def test_weights_alone_can_only_be_too_large(words: list[str], code: int, verdict: str, llmservice: Command) -> None:
    ran = llmservice("plan", *words, "--gpu", "L4", "-o", "yaml")
    found = yaml.safe_load(ran.out)
    assert (ran.code, found["verdict"], found["kvCacheTokens"]) == (code, verdict, None)


def test_a_remedy_is_good_as_it_is_typed(llmservice: Command) -> None:
    words = ["plan", "--config", llmservice.config(), "-o", "json"]
    remedies = llmservice(*words, "--gpu", "T4").json["remedies"]
    assert remedies
    for remedy in remedies:
        options = {"gpu": "T4", **remedy["options"]}
        typed = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        ran = llmservice(*words, *typed)
        assert ran.code == DONE
        assert [ran.json[key] for key in ("verdict", "kvCacheTokens")] == [remedy["verdict"], remedy["kvCacheTokens"]]


def process(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, "-W", "error", *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, env=env, check=False)


def test_the_program_uses_no_network_and_loads_little(llmservice: Command) -> None:
    words = ["plan", "--config", llmservice.config(), "--gpu", "L4", "--max-model-len", "8k", "-o", "json"]
    done = process("-c", NO_NETWORK, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["verdict"] == "Fits"


def test_the_program_plans_from_standard_input(llmservice: Command) -> None:
    words = ["-m", "llmservice_cli", "plan", "--config", "-", "--gpu", "NVIDIA-L4", "--max-model-len", "8k"]
    done = process(*words, given=Path(llmservice.config()).read_text(encoding="utf-8"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Fits on 1 x NVIDIA-L4\n")
    assert "\x1b" not in done.stdout
