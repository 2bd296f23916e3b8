"""Our knowledge of vLLM's flags against the parser of the vLLM that is installed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmservice_operator.api.techniques import AttentionBackend, CompilationMode, CudaGraphs, SpeculativeMethod
from llmservice_runtime.flags import (
    Ambiguous,
    EngineOptions,
    GenerationDefaults,
    LoRA,
    Match,
    Speculation,
    Unknown,
    check_extra_args,
    flag_table,
    newest_version,
    quantization_method,
    render,
)
from llmservice_runtime.flags.render import COMPILATION_MODES, CUDA_GRAPHS

from scripts import add_vllm_version

# vLLM and torch warn while they are imported; that is theirs.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[2]
VERSION = newest_version()
TABLE = flag_table(VERSION)


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """vLLM's parser, which fails by an exception instead of ending the process."""
    made = add_vllm_version.vllm_parser()

    def error(message: str) -> None:
        raise ValueError(message)

    made.error = error  # type: ignore[method-assign, assignment]
    return made


@pytest.mark.usefixtures("parser")
def test_flags_and_parsers_are_what_the_installed_vllm_says() -> None:
    """What scripts/add_vllm_version.py reads is what is there already."""
    found = add_vllm_version.read()
    document = json.loads((ROOT / add_vllm_version.FLAGS).read_text())
    assert found["version"] == VERSION
    assert add_vllm_version.with_table(document, VERSION, found["flags"]) == document
    parsers = json.loads((ROOT / add_vllm_version.PARSERS).read_text())
    assert {kind: sorted(names) for kind, names in parsers.items() if kind != "version"} == found["parsers"]


TEXT = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="-_./ "), min_size=1).filter(
    # vLLM takes None for nothing; checks.py refuses it.
    lambda text: not text.startswith("-") and text != "None"
)
COUNT = st.integers(1, 1 << 20)
MAYBE = st.none() | st.booleans()
OPTIONS = st.builds(
    EngineOptions,
    model=TEXT,
    served_names=st.lists(TEXT, max_size=3).map(tuple),
    runner=st.sampled_from(["auto", "generate", "pooling"]),
    convert=st.sampled_from(["auto", "classify", "embed", "none"]),
    chat_template=st.none() | TEXT,
    trust_remote_code=st.booleans(),
    weights=st.sampled_from(["auto", "float32", "bfloat16", "float16", "fp8", "int8", "int4"]),
    dtype=st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
    quantization=st.none() | st.sampled_from(["awq", "gptq", "fp8", "compressed-tensors", "mxfp4"]),
    kv_cache=st.sampled_from(["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4"]),
    tensor_parallel_size=COUNT,
    pipeline_parallel_size=COUNT,
    data_parallel_size=COUNT,
    enable_expert_parallel=st.booleans(),
    max_num_seqs=st.none() | COUNT,
    max_num_batched_tokens=st.none() | COUNT,
    max_model_len=st.none() | st.just("auto") | COUNT,
    max_num_queued_requests=st.none() | st.integers(0, 100),
    max_num_queued_tokens=st.none() | COUNT,
    chunked_prefill=MAYBE,
    long_prefill_token_threshold=st.none() | COUNT,
    prefix_caching=MAYBE,
    prefix_caching_hash_algo=st.none() | st.sampled_from(["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]),
    scheduling_policy=st.none() | st.sampled_from(["fcfs", "priority"]),
    block_size=st.none() | COUNT,
    kv_offloading_gib=st.none() | st.floats(0.01, 1 << 20),
    kv_offloading_backend=st.none() | st.sampled_from(["native", "lmcache"]),
    attention_backend=st.sampled_from(get_args(AttentionBackend)),
    enforce_eager=st.booleans(),
    compilation_mode=st.none() | st.sampled_from(get_args(CompilationMode)),
    cuda_graphs=st.none() | st.sampled_from(get_args(CudaGraphs)),
    optimization_level=st.none() | st.integers(0, 3),
    speculation=st.none()
    | st.builds(
        Speculation,
        method=st.sampled_from(get_args(SpeculativeMethod)),
        num_speculative_tokens=COUNT,
        model=st.none() | TEXT,
        prompt_lookup_min=st.none() | COUNT,
        prompt_lookup_max=st.none() | COUNT,
        draft_tensor_parallel_size=st.none() | COUNT,
    ),
    lora=st.none()
    | st.builds(
        LoRA,
        max_loras=st.none() | COUNT,
        max_lora_rank=st.none() | st.sampled_from([1, 8, 16, 32, 64, 128, 256, 320, 512]),
        max_cpu_loras=st.none() | COUNT,
    ),
    tool_call_parser=st.none() | st.sampled_from(["hermes", "granite-20b-fc"]),
    reasoning_parser=st.none() | st.sampled_from(["qwen3", "openai_gptoss"]),
    seed=st.none() | st.integers(0, (1 << 32) - 1),
    generation_defaults=st.builds(GenerationDefaults, temperature=st.none() | st.floats(0, 2), top_k=st.none() | COUNT),
    sleep_mode=st.booleans(),
    gpu_memory_utilization=st.none() | st.floats(0.01, 1.0),
    extra_args=st.sampled_from(
        [(), ("--async-scheduling",), ("--stream-interval", "1"), ("--lora-target-modules", "a", "b")]
    ),
)


@given(options=OPTIONS)
@settings(max_examples=150)
def test_vllm_accepts_and_understands_all_that_is_rendered(
    parser: argparse.ArgumentParser, options: EngineOptions
) -> None:
    parsed = parser.parse_args(list(render(options)))
    assert parsed.model == options.model
    assert (parsed.served_model_name or []) == list(options.served_names)
    assert (parsed.runner, parsed.convert) == (options.runner, options.convert)
    assert parsed.chat_template == options.chat_template
    assert parsed.tensor_parallel_size == options.tensor_parallel_size
    assert parsed.max_num_queued_reqs == options.max_num_queued_requests
    assert parsed.enable_chunked_prefill in (None, options.chunked_prefill) or options.chunked_prefill is None
    assert parsed.quantization == quantization_method(options)
    assert parsed.kv_offloading_size == options.kv_offloading_gib
    assert parsed.enforce_eager == options.enforce_eager
    assert parsed.seed == (options.seed or 0)
    assert parsed.enable_lora == (None if options.lora is None else True)
    assert parsed.enable_auto_tool_choice == (options.tool_call_parser is not None)
    _understood(parsed, options)
    if options.max_model_len is not None:
        assert parsed.max_model_len == (-1 if options.max_model_len == "auto" else options.max_model_len)
    if options.gpu_memory_utilization is not None:
        assert parsed.gpu_memory_utilization == options.gpu_memory_utilization


def _understood(parsed: argparse.Namespace, options: EngineOptions) -> None:
    """What is JSON, or a name of vLLM's own, becomes the value that was meant."""
    from vllm.config import AttentionConfig, CompilationConfig, CompilationMode, CUDAGraphMode

    wanted = None if options.attention_backend == "auto" else options.attention_backend
    backend = AttentionConfig.validate_backend_before(parsed.attention_backend)
    assert (None if backend is None else backend.name) == wanted
    compilation = parsed.compilation_config
    if isinstance(compilation, dict):
        compilation = CompilationConfig(**compilation)
    if options.compilation_mode is not None:
        assert compilation.mode is CompilationMode[COMPILATION_MODES[options.compilation_mode]]
    if options.cuda_graphs is not None:
        assert compilation.cudagraph_mode is CUDAGraphMode[CUDA_GRAPHS[options.cuda_graphs]]
    speculation = options.speculation
    if speculation is None:
        assert parsed.speculative_config is None
    else:
        assert parsed.speculative_config["num_speculative_tokens"] == speculation.num_speculative_tokens
        assert parsed.speculative_config.get("model") == speculation.model
    given = parsed.override_generation_config
    assert (given.get("temperature"), given.get("top_k")) == (
        options.generation_defaults.temperature,
        options.generation_defaults.top_k,
    )


def _underscored(text: str) -> str:
    return "--" + text[2:].replace("-", "_") if text.startswith("--") else text


SPELLINGS: list[Callable[[str], str]] = [str, _underscored]
SPELLED = st.sampled_from(sorted(TABLE.by_spelling))


@st.composite
def tokens(draw: st.DrawFn) -> str:
    """A flag of vLLM's, perhaps shortened, spelled otherwise, or with its value glued on."""
    spelling = draw(SPELLED)
    end = draw(st.integers(2, len(spelling)))
    token = draw(st.sampled_from(SPELLINGS))(spelling[:end])
    return token + draw(st.sampled_from(["", "=1", "x", "=a.b"]))


@given(token=tokens())
def test_tokens_resolve_as_argparse_resolves_them(parser: argparse.ArgumentParser, token: str) -> None:
    ours = TABLE.resolve(token)
    normal = token if not token.startswith("--") else token.partition("=")[0].replace("_", "-") + token[
        len(token.partition("=")[0]) :
    ]  # fmt: skip
    if token.startswith("-O"):
        return  # rewritten before argparse sees it; tested by its effect
    found = parser._option_string_actions.get(normal)
    if found is None and "=" in normal:
        found = parser._option_string_actions.get(normal.partition("=")[0])
    if found is not None:
        assert isinstance(ours, Match)
        assert set(ours.flag.spellings) == set(found.option_strings)
        return
    tuples = parser._get_option_tuples(normal)
    if len(tuples) == 1:
        assert isinstance(ours, Match)
        assert set(ours.flag.spellings) == set(tuples[0][0].option_strings)
    elif len(tuples) > 1:
        assert isinstance(ours, Ambiguous)
        assert set(ours.candidates) == {found[1] for found in tuples}
    else:
        assert isinstance(ours, Unknown)


@pytest.mark.parametrize(
    "args",
    [
        ["--max-num-se", "4"], ["--max_num_seqs=4"], ["-tp=2"], ["-O3"], ["-O", "2"], ["-cc.backend=eager"], ["-qawq"],
        ["--compilation_config.backend", "eager"], ["--max-logprobs", "-1"], ["--no-async-scheduling"],
        ["--lora-target-modules", "a", "b"], ["--enforce-eagr"], ["--max-lora", "3"], ["--stream-interval", "x"],
        ["--stream-interval"], ["--lora-dtype", "x"], ["--async-scheduling=1"], ["--swap-space", "4"],
        ["--device", "cpu"], ["--stream-interval", "--async-scheduling"], ["--mamba-cache-dtype", "7"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_the_parser_refuses_is_a_problem_and_nothing_else(
    parser: argparse.ArgumentParser, args: list[str]
) -> None:
    try:
        parser.parse_args(args)
        refused = False
    except ValueError:
        refused = True
    problems = [p for p in check_extra_args(args, VERSION) if "has a field" not in p.message]
    assert bool(problems) == refused


def test_no_vllm_in_the_runtime() -> None:
    assert not any(name.startswith("llmservice_runtime") and "torch" in vars(sys.modules[name]) for name in sys.modules)
