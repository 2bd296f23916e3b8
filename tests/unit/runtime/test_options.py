"""Options go to the pod as text and come back the same; vLLM's flags are read as vLLM reads them."""

from __future__ import annotations

from typing import Any

import pytest
from llmservice_runtime.__main__ import parser
from llmservice_runtime.options import ServeOptions, from_namespace
from llmservice_runtime.supervisor.vllm_process import Flags, environment, read_flags, watchdog_arguments

ROUND_TRIPS: list[dict[str, Any]] = [
    {},
    {"drain_seconds": 60},
    {"accelerator": "cpu", "expected_version": "0.32.0", "weights": "fp8", "hang_unready_seconds": 0.5},
    {"start_seconds": 1234567, "state_port": 9000},
    {"fetch": ("model=hf://a/b@main", "draft=s3://bucket/a=b"), "context_extension": "yarn:4:32768"},
    {"adapters_file": "/adapters.json", "api_keys_file": "/keys", "keep_variable": ("A", "B")},
]


@pytest.mark.parametrize("changed", ROUND_TRIPS)
def test_round_trip(changed: dict[str, Any]) -> None:
    options, args = ServeOptions(**changed), ServeOptions(**changed).to_args()
    texts = {name: value if isinstance(value, tuple) else (value,) for name, value in changed.items()}
    assert set(args) == {f"--{name.replace('_', '-')}={text}" for name, all_ in texts.items() for text in all_}
    assert from_namespace(parser().parse_args(["serve", *args])) == options


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("--model m", {"model": "m"}),
        ("--model=m --served-model-name a b --port 1", {"model": "m", "served_model_names": ("a", "b"), "port": 1}),
        ("--served_model_name a", {"served_model_names": ("a",)}),
        ("-tp 2 -pp=3", {"tensor_parallel_size": 2, "pipeline_parallel_size": 3}),
        ("--data-parallel-size 2", {"data_parallel_size": 2}),
        ("--port 1 --port 2", {"port": 2}),
        ("--max-model-len auto", {"max_model_len": None, "max_model_len_given": True}),
        ("--max-model-len -1", {"max_model_len": None, "max_model_len_given": True}),
        ("--max-model-len 32k", {"max_model_len": None, "max_model_len_given": True}),
        ("--max-model-len 4096", {"max_model_len": 4096, "max_model_len_given": True}),
        ("--api-key a b", {"api_key": "b"}),
        ("--hf-overrides.a 1", {"overrides_config": True}),
        ("--gpu-memory-utilization 0.5", {"gpu_memory_utilization": 0.5}),
        ("--gpu-memory-utilization much", {"gpu_memory_utilization": 0.92}),
        ("--kv-cache-memory-bytes 8G", {"kv_cache_memory_fixed": True}),
        ("--unknown 3 --port 2", {"port": 2}),
        ("--trust-remote-code", {"trust_remote_code": True}),
        ("--trust-remote-code --no-trust-remote-code", {}),
    ],
)  # fmt: skip
def test_flags(args: str, expected: dict[str, Any]) -> None:
    assert read_flags(args.split()) == Flags(**expected)


def test_the_users_environment_wins_but_for_the_board() -> None:
    mine = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "5", "LLMSERVICE_DRAIN_FILE": "/elsewhere"}
    made = environment(ServeOptions(drain_file="/board"), Flags(), mine, print)
    assert made["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "5"
    assert made["LLMSERVICE_DRAIN_FILE"] == "/board"
    assert made["PYTHONFAULTHANDLER"] == "1"


@pytest.mark.parametrize(
    ("options", "inherited", "offline"),
    [
        pytest.param(ServeOptions(), {}, None, id="nothing is fetched"),
        pytest.param(ServeOptions(fetch=("model=hf://a/b",)), {}, "1", id="the model is fetched"),
        pytest.param(ServeOptions(adapters_file="/a"), {}, "1", id="adapters may be fetched"),
        pytest.param(ServeOptions(fetch=("model=hf://a/b",)), {"HF_HUB_OFFLINE": "0"}, "0", id="as the container says"),
    ],
)
def test_vllm_does_not_wait_for_a_hub(options: ServeOptions, inherited: dict[str, str], offline: str | None) -> None:
    assert environment(options, Flags(), inherited, print).get("HF_HUB_OFFLINE") == offline


WATCHED = '{"check_interval": 5, "dump_dir": "/tmp/llmservice-stacks", "timeout": 30}'


@pytest.mark.parametrize(
    ("changed", "args", "expected"),
    [
        pytest.param({}, "", ("--watchdog-config", WATCHED), id="a vLLM that has it"),
        pytest.param({"expected_version": "0.32.0"}, "", (), id="one that has not"),
        pytest.param({"expected_version": None}, "", (), id="one that nobody names"),
        pytest.param({}, "--watchdog-config.timeout 9", (), id="the user says"),
        pytest.param({}, '--watchdog_config={"timeout":9}', (), id="the user says, in JSON"),
        pytest.param({"hang_unready_seconds": 0}, "", (), id="hangs are not looked for"),
        pytest.param(
            {"hang_unready_seconds": 2.5, "stacks_dir": "/a"}, "",
            ("--watchdog-config", '{"check_interval": 1, "dump_dir": "/a", "timeout": 2}'), id="soon",
        ),
    ],
)  # fmt: skip
def test_the_watchdog_of_vllm(changed: dict[str, Any], args: str, expected: tuple[str, ...]) -> None:
    options = ServeOptions(**{"expected_version": "0.33.0", **changed})
    assert watchdog_arguments(("--model", "m", *args.split()), options) == expected
