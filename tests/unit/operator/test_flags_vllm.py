"""Our knowledge of vLLM's flags against the parser of the vLLM that is installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_api.crd import schema
from llmservice_api.service import LLMService
from llmservice_api.spec import LLMServiceSpec
from llmservice_operator.manifests.server import constant, vllm_arguments
from llmservice_planner.quantity import gibibytes
from llmservice_planner.versions import check_extra_args
from llmservice_vllm import extract
from llmservice_vllm.extract import WORDS, Sources, installed
from llmservice_vllm.flags import Ambiguous, Match, Unknown
from llmservice_vllm.modules import ENGINE_MODULES, ENTRY, WORKERS
from llmservice_vllm.versions import default_version, flag_table, section, series, words

from tests.support import flag_forms
from tests.unit.api.test_parse import objects_of
from tests.unit.decide_world import an_llmservice

# vLLM and torch warn while they are imported; that is theirs.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]
Json = dict[str, Any]
VERSION = default_version()
TABLE = flag_table(VERSION)


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """vLLM's parser, which fails by an exception instead of ending the process."""
    return flag_forms.raising(extract.server_parser(Sources(installed()[0] / "vllm")))


def test_the_file_of_the_installed_version_is_what_extract_writes(parser: argparse.ArgumentParser) -> None:
    sources, known = Sources(installed()[0] / "vllm"), series(VERSION)
    assert known is not None
    assert section(known, "flags") == extract.flags(parser)
    assert {name: set(section(known, name)) for name in WORDS} == {name: look(sources) for name, look in WORDS.items()}
    assert sources.lacks(ENTRY, *ENGINE_MODULES, *WORKERS.values()) == []


def test_the_installed_version_takes_the_forms_that_the_record_says_it_takes(parser: argparse.ArgumentParser) -> None:
    said = dict(zip(flag_forms.rendered(VERSION), flag_forms.refusals(parser, flag_forms.forms(VERSION)), strict=True))
    taken = flag_forms.recorded(VERSION)
    assert said.keys() == taken.keys(), f"run: python -m tests.support.flag_forms {VERSION}"
    assert {form: why for form, why in said.items() if (why is None) is not taken[form]} == {}


@pytest.mark.parametrize(
    "form",
    [
        "--attention-backend X", "--block-size 0", "--compilation-config {\"cudagraph_mode\":\"X\"}",
        "--compilation-config {\"mode\":\"X\"}", "--convert x", "--dtype x", "--gpu-memory-utilization 2",
        "--kv-cache-dtype x", "--kv-offloading-backend x", "--max-lora-rank 7", "--max-num-seqs 0",
        "--no-max-num-seqs", "--optimization-level 9", "--pipeline-parallel-size 0", "--prefix-caching-hash-algo x",
        "--quantization fp_quant", "--quantization x", "--reasoning-parser x", "--runner x", "--scheduling-policy x",
        "--speculative-config {\"method\":\"x\"}", "--speculative-config {\"x\":1}", "--tool-call-parser x",
    ],
)  # fmt: skip
def test_what_no_version_takes_is_no_form_that_is_taken(parser: argparse.ArgumentParser, form: str) -> None:
    (why,) = flag_forms.refusals(parser, [form.split()])
    assert why is not None


TYPED_SECTIONS = objects_of(schema()["properties"]["spec"] | {"required": ["model"]})
KEPT = {"podTemplate", "adapters", "endpoint", "drain", "scaling", "rollout"}


@st.composite
def typed_specs(draw: st.DrawFn) -> Json:
    """Any spec that the schema takes, with models in folders, and flags of the user's that vLLM has."""
    spec: Json = {name: part for name, part in draw(TYPED_SECTIONS).items() if name not in KEPT}
    spec["model"] |= {"uri": "file:///m"}
    if "model" in spec.get("speculativeDecoding", {}):
        spec["speculativeDecoding"]["model"] = {"uri": "file:///d"}
    if spec.get("precision", {}).get("kvCache") not in words(VERSION, "kvCacheDtypes"):  # a later version's
        spec.get("precision", {}).pop("kvCache", None)
    if spec.get("attention", {}).get("backend") not in words(VERSION, "attentionBackends"):
        spec.pop("attention", None)
    if "generation" in spec:
        spec["generation"] |= {"toolCallParser": "granite-20b-fc", "reasoningParser": "openai_gptoss"}
    extra = draw(st.sampled_from(["", "--async-scheduling", "--stream-interval 1", "--lora-target-modules a b"]))
    return spec | {"runtime": {"extraArgs": extra.split()}}


@given(sections=typed_specs())
def test_vllm_accepts_and_understands_all_that_is_rendered(parser: argparse.ArgumentParser, sections: Json) -> None:
    llm = LLMService.from_object(an_llmservice(sections))
    spec, asked = llm.spec, llm.spec.batching
    parsed = parser.parse_args(list(vllm_arguments(llm, VERSION)))
    assert parsed.model == "/m"
    assert parsed.served_model_name == list(llm.served_model_names)
    assert (parsed.runner, parsed.convert) == (spec.model.runner, spec.model.convert)
    assert (parsed.chat_template is None) == (spec.model.chat_template is None)
    assert parsed.tensor_parallel_size == spec.parallelism.tensor_parallel_size
    assert parsed.max_num_queued_reqs == asked.max_num_queued_requests
    assert parsed.enable_chunked_prefill in (None, asked.chunked_prefill) or asked.chunked_prefill is None
    assert parsed.quantization == spec.precision.method
    size = asked.kv_offloading_size
    assert parsed.kv_offloading_size == (None if size is None else gibibytes(size))
    assert parsed.enforce_eager == spec.compilation.enforce_eager
    assert parsed.seed == (spec.generation.seed or 0)
    assert parsed.enable_lora == (None if spec.lora is None else True)
    assert parsed.enable_auto_tool_choice == (spec.generation.tool_call_parser is not None)
    _understood(parsed, spec)
    if asked.max_model_len is not None:
        assert parsed.max_model_len == (-1 if asked.max_model_len == "auto" else asked.max_model_len)
    if spec.accelerator.gpu_memory_utilization is not None:
        assert parsed.gpu_memory_utilization == spec.accelerator.gpu_memory_utilization


def _understood(parsed: argparse.Namespace, spec: LLMServiceSpec) -> None:
    """What is JSON, or a name of vLLM's own, becomes the value that was meant."""
    from vllm.config import AttentionConfig, CompilationConfig, CompilationMode, CUDAGraphMode

    wanted = None if spec.attention.backend == "auto" else spec.attention.backend
    backend = AttentionConfig.validate_backend_before(parsed.attention_backend)
    assert (None if backend is None else backend.name) == wanted
    compilation = parsed.compilation_config
    if isinstance(compilation, dict):
        compilation = CompilationConfig(**compilation)
    if spec.compilation.mode is not None:
        assert compilation.mode is CompilationMode[constant(spec.compilation.mode)]
    if spec.compilation.cuda_graphs is not None:
        assert compilation.cudagraph_mode is CUDAGraphMode[constant(spec.compilation.cuda_graphs)]
    speculation = spec.speculative_decoding
    if speculation is None:
        assert parsed.speculative_config is None
    else:
        assert parsed.speculative_config["num_speculative_tokens"] == speculation.num_speculative_tokens
        assert parsed.speculative_config.get("model") == (None if speculation.model is None else "/d")
    given, defaults = parsed.override_generation_config, spec.generation.defaults
    assert (given.get("temperature"), given.get("top_k")) == (defaults.temperature, defaults.top_k)


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
