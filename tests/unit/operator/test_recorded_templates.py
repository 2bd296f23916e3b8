"""Pod templates that operators of 24 November 2026 recorded call this image's programs: each command line is taken."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import pytest
from llmservice_fetch import __main__ as fetch
from llmservice_runtime import __main__ as runtime
from llmservice_runtime.options import from_namespace

MODEL = "--fetch=model=hf://Qwen/Qwen2.5-7B-Instruct"
PINNED = "--fetch=model=hf://Qwen/Qwen2.5-7B-Instruct@a09a35458c702b33eeacc393d103063234e8bc28"
ADAPTERS = "--adapters-file=/llmservice/adapters/adapters.json"
SERVE = {
    "a volume": (),
    "a CPU": ("--accelerator=cpu", "--drain-seconds=10"),
    "adapters": (MODEL, ADAPTERS),
    "a pinned model": (PINNED,),
    "a bucket": ("--fetch=model=s3://models/qwen2.5-7b-instruct",),
    "a draft model": (MODEL, "--fetch=draft=hf://Qwen/Qwen2.5-0.5B-Instruct"),
    "a start budget": ("--start-seconds=740", "--usual-seconds=185", MODEL),
}
"""Arguments of the server's container before `--`, beside the expected version."""
FETCH = {
    "adapters": (MODEL, ADAPTERS),
    "a cache": (MODEL, "--service=default/qwen-autoscaled"),
    "a pinned model": (PINNED, "--service=default/qwen-cached"),
    "a draft model": (MODEL, "--fetch=draft=hf://Qwen/Qwen2.5-0.5B-Instruct", "--service=default/qwen-drafted"),
}
"""Arguments of the fetching container."""
MIDDLEWARE = "llmservice_runtime.middleware.DrainMiddleware"


@pytest.mark.parametrize("given", SERVE.values(), ids=SERVE)
def test_the_supervisor_takes_it(given: Sequence[str]) -> None:
    options = from_namespace(runtime.parser().parse_args(["serve", "--expected-version=0.32.0", *given]))
    assert options.expected_version == "0.32.0"
    assert [f"--fetch={each}" for each in options.fetch] == [word for word in given if word.startswith("--fetch=")]


@pytest.mark.parametrize("given", FETCH.values(), ids=FETCH)
def test_the_fetching_container_takes_it(given: Sequence[str]) -> None:
    assert fetch.parser().parse_args(["serve", *given]).command == "serve"


def test_the_init_container_takes_it() -> None:
    assert runtime.parser().parse_args(["install", "/llmservice/runtime"]).command == "install"


def test_the_middleware_lies_where_vllm_is_told_to_find_it() -> None:
    module, _, name = MIDDLEWARE.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
