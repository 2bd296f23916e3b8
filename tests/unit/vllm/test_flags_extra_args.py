"""What users may not write into extraArgs, in every spelling, and what they are told."""

from __future__ import annotations

import re

import pytest
from llmservice_planner.versions import REMOVED, check_extra_args
from llmservice_vllm.flags import Match
from llmservice_vllm.versions import UnknownVersion, flag_table

from tests.contract.manifests import SPELLINGS


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["--async-scheduling"], id="switch"),
        pytest.param(["--no-async-scheduling"], id="negated switch"),
        pytest.param(["--async_scheduling"], id="underscores"),
        pytest.param(["--stream-interval", "3"], id="value"),
        pytest.param(["--stream-interval=3"], id="equals"),
        pytest.param(["--max-logprobs", "-1"], id="negative value"),
        pytest.param(["--lora-dtype", "float16"], id="choice"),
        pytest.param(["--lora-target-modules", "a", "b", "--stream-interval", "1"], id="several values"),
        pytest.param(["--compilation-config", '{"custom_ops": []}'], id="JSON"),
        pytest.param(["--compilation-config.backend", "mode"], id="dotted"),
        pytest.param(["-cc.backend=mode"], id="dotted short"),
        pytest.param(["-ac", "{}"], id="short"),
        pytest.param(["--compilation-config", "[mode"], id="no JSON is left to vLLM"),
        pytest.param(["--hf-overrides", '{"mode": 3}'], id="a key of another flag"),
        pytest.param(["--tokenizer", "a b"], id="value with a space"),
    ],
)
def test_fine(args: list[str]) -> None:
    assert check_extra_args(args, "0.32.0") == ()


@pytest.mark.parametrize(("args", "words"), SPELLINGS, ids=[" ".join(args) for args, _ in SPELLINGS])
def test_a_flag_with_a_field_or_an_owner(args: list[str], words: str) -> None:
    """In every spelling that the API server refuses."""
    problem = check_extra_args(args, "0.32.0")[0]
    assert words in f"{problem.message} {problem.remedy}"
    assert problem.field == "spec.runtime.extraArgs"


@pytest.mark.parametrize(
    ("args", "message", "remedy"),
    [
        (["--max-num-se", "4"], "--max-num-seqs has a field", "spec.batching.maxNumSeqs"),
        (["--compilation-config", '{"x": 1, "mode": 3}'], "mode of --compilation-config", "spec.compilation.mode"),
        (['-cc={"cudagraph_mode":0}'], "cudagraph_mode of --compilation-config", "spec.compilation.cudaGraphs"),
        (["--host=::"], "all addresses of the pod already, of IPv4 and IPv6", "Remove it."),
        (["-h"], "--help belongs to the operator", "Remove it."),
        (["--enforce-eagr"], "has no flag --enforce-eagr", "--enforce-eager"),
        (["--zzz", "1"], "has no flag --zzz", "Remove it"),
        (["--max-lora", "3"], "could be any of --max-lora-cls-labels, --max-lora-rank, --max-loras", "Write the flag"),
        (["--stream-interval", "x"], "--stream-interval needs a whole number, not 'x'", "Correct"),
        (["--stream-interval"], "--stream-interval needs a value", "next item"),
        (["--stream-interval", "--async-scheduling"], "--stream-interval needs a value", "next item"),
        (["--lora-dtype", "x"], "--lora-dtype does not take 'x'", "auto, bfloat16, float16"),
        (["--async-scheduling=1"], "--async-scheduling takes no value", "Remove the value"),
        (["model"], "vLLM would take it for the model", "behind its flag"),
        (["--stream-interval", "1", "2"], "'2' is the value of no flag", "behind its flag"),
        (["--async-scheduling", "true"], "'true' is the value of no flag", "behind its flag"),
        (["--", "x"], "-- ends the flags", "Remove it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_problem(args: list[str], message: str, remedy: str) -> None:
    problem = check_extra_args(args, "0.32.0")[0]
    assert message in problem.message
    assert remedy in problem.remedy


def test_every_problem_is_told() -> None:
    assert len(check_extra_args(["--port", "1", "--zzz", "1", "--stream-interval", "x"], "v0.32.1")) == 3


def test_a_removed_flag_says_what_replaced_it() -> None:
    for flag, remedy in REMOVED.items():
        (problem,) = check_extra_args([flag, "1"], "0.32.0")
        assert problem.remedy == remedy
        for replacement in re.findall(r"--[\w-]+", remedy):
            assert isinstance(flag_table("0.32.0").resolve(replacement), Match), replacement


def test_an_unknown_version_is_only_asked_what_holds_for_all() -> None:
    assert check_extra_args(["--new-flag", "1", "--stream-interval", "x"], "0.99.0") == ()
    assert len(check_extra_args(["--port", "1", "--max-num-seqs", "1"], "0.99.0")) == 2


@pytest.mark.parametrize("version", ["0.32.0", "v0.32.0", "0.32.1", "0.32", "0.32.0+cpu", "v0.32.0-cu130"])
def test_table_of(version: str) -> None:
    assert flag_table(version).version == "0.32.0"


@pytest.mark.parametrize("version", ["0.3", "0.320.0", "0.27.0", "latest", ""])
def test_no_table_of(version: str) -> None:
    with pytest.raises(UnknownVersion):
        flag_table(version)


def test_abbreviations() -> None:
    table = flag_table("0.32.0")
    assert table.abbreviations("--max-num-seqs") == ("--max-num-se", "--max-num-seq")
    assert "--no-enable-prefix-c" in table.abbreviations("--enable-prefix-caching")
