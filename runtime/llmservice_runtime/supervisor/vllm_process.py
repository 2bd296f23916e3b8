"""The vLLM process: command, environment, the flags that the supervisor reads, and how it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llmservice_vllm.facts import GPU_MEMORY_UTILIZATION, MAX_LORA_RANK
from llmservice_vllm.flags import FlagTable, Match
from llmservice_vllm.modules import ENTRY
from llmservice_vllm.versions import flag_table_or_default

from llmservice_runtime import contract, credentials
from llmservice_runtime.bounded_json import flag_object
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor import addresses
from llmservice_runtime.supervisor.processes import Child, Reaper

_PROXIES = "FORWARDED_ALLOW_IPS"
WATCHDOG = "--watchdog-config"
HEADLESS_ENTRY = "llmservice_runtime.headless"
"""Runs vLLM without an API."""
_INTEGER = re.compile(r"-?[0-9]{1,18}")


def command(module: str = ENTRY) -> tuple[str, ...]:
    """The command of vLLM's server with the supervisor's Python; the arguments follow on standard input."""
    return (sys.executable, "-u", "-m", "llmservice_runtime.launch", module)


class Launched:
    """A vLLM process that imports its modules, and starts once it gets its arguments."""

    def __init__(self, reaper: Reaper, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """OSError if the process cannot be started."""
        theirs, self._arguments = os.pipe2(os.O_CLOEXEC)
        try:
            self.child = reaper.start(command, environment, merge_stderr=True, stdin=theirs)
        except OSError:
            os.close(self._arguments)
            raise
        finally:
            os.close(theirs)

    def start(self, arguments: Sequence[str]) -> None:
        """Pass the arguments; blocks until long ones are read. No effect if the process has ended."""
        # The caller that waits for the process handles its end.
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._arguments, "w", encoding="utf-8") as pipe:
            json.dump(list(arguments), pipe)


def environment(
    options: ServeOptions, flags: Flags, inherited: Mapping[str, str], log: Callable[[str], None]
) -> dict[str, str]:
    """vLLM's environment: defaults, overridden by the container's variables, without credentials.

    Credentials are for the fetch. The hub's are kept only where the model's own code may fetch more (`needs_hub`).
    """
    fetches = bool(options.fetch or options.adapters_file)
    defaults = {
        # vLLM's default of 5 s equals that of common pools: a request sent while the connection closes is lost.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(contract.KEEP_ALIVE_SECONDS),
        # Workers that end with a signal then print a traceback.
        "PYTHONFAULTHANDLER": "1",
        # The fetch container has fetched everything; online, vLLM would wait for an unreachable hub.
        **({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if fetches else {}),
    }
    variables = {**defaults, **inherited}
    variables = credentials.without(variables, options.keep_variable, hub=needs_hub(flags, variables))
    if dropped := sorted(inherited.keys() - variables.keys()):
        log(f"credentials not passed to vLLM (to pass one, set it in spec.runtime.env): {', '.join(dropped)}")
    if contract.HF_TOKEN_ENV in variables:
        log("HF_TOKEN is passed to vLLM: with spec.model.trustRemoteCode the model's code may fetch from the hub")
    variables |= {contract.DRAIN_FILE_ENV: options.drain_file, contract.API_KEYS_FILE_ENV: options.api_keys_file or ""}
    if flags.host == addresses.EVERY:
        variables[_PROXIES] = addresses.trusted_proxies(variables.get(_PROXIES))
    return variables


def needs_hub(flags: Flags, variables: Mapping[str, str]) -> bool:
    """Whether vLLM itself may fetch from the hub: the model's own code may name code of other repositories."""
    is_offline = variables.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return flags.trust_remote_code and not is_offline


@dataclass(frozen=True)
class Flags:
    """The part of vLLM's command line that the supervisor uses."""

    model: str = ""
    served_model_names: tuple[str, ...] = ()
    host: str = ""
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
    nodes: int = 1
    """Pods of the replica, which the supervisor's options say."""
    load_format: str = "auto"
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION
    kv_cache_memory_fixed: bool = False
    max_lora_rank: int = MAX_LORA_RANK
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
        """The Authorization header where vLLM has an API key of its own."""
        key = self.api_key or environment.get(contract.API_KEY_ENV)
        return {"Authorization": f"Bearer {key}"} if key else {}

    @property
    def gpus(self) -> int:
        """Of this pod."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size // self.nodes


def read_flags(args: Sequence[str], version: str | None = None) -> Flags:
    """Parse flags as that vLLM does: any spelling, and the last one counts. Invalid values become the default."""
    values = _values(args, flag_table_or_default(version))

    def last(name: str) -> str | None:
        return values[name][-1] if values.get(name) else None

    def number(name: str, default: int) -> int:
        text = last(name) or ""
        return int(text) if _INTEGER.fullmatch(text) else default

    length = number("--max-model-len", 0)
    speculation = flag_object(last("--speculative-config") or "")
    return Flags(
        model=last("--model") or "",
        served_model_names=tuple(values.get("--served-model-name", ())),
        host=last("--host") or "",
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


def watchdog_arguments(args: Sequence[str], options: ServeOptions) -> tuple[str, ...]:
    """Arguments with which vLLM's processes write their stacks once they are stuck for as long as makes the pod
    unready.

    Empty for a vLLM without such a watchdog (before 0.33), or if `args` configure it.
    """
    table, seconds = flag_table_or_default(options.expected_version), max(1, int(options.hang_unready_seconds))
    is_given = WATCHDOG in _values(args, table)
    if not options.hang_unready_seconds or is_given or WATCHDOG not in table.by_spelling:
        return ()
    config = {"check_interval": max(1, seconds // 6), "dump_dir": options.stacks_dir, "timeout": seconds}
    return (WATCHDOG, json.dumps(config))


def _fraction(text: str | None) -> float:
    """The number; the default for invalid text, which vLLM reports itself."""
    try:
        return float(text or Flags.gpu_memory_utilization)
    except ValueError:
        return Flags.gpu_memory_utilization


def _values(args: Sequence[str], table: FlagTable) -> dict[str, list[str]]:
    """Values of each flag by name; a negation removes it."""
    values: dict[str, list[str]] = {}
    for _, resolution, following in table.grouped(args):
        if not isinstance(resolution, Match):
            continue
        if resolution.is_negated:
            values.pop(resolution.flag.name, None)
        else:
            values[resolution.flag.name] = [*(() if resolution.value is None else (resolution.value,)), *following]
    return values


async def stop(child: Child, *, grace_seconds: float) -> bool:
    """End vLLM and its process group. True if it ended on SIGTERM, within `grace_seconds` each.

    vLLM ignores a SIGTERM while it loads, so a second one follows; then SIGKILL.
    """
    ended_in_time = False
    for _ in range(2):
        child.signal(signal.SIGTERM)
        if ended_in_time := await ends_within(child, grace_seconds):
            break
    child.kill_group()
    await child.ended
    return ended_in_time


async def ends_within(child: Child, seconds: float) -> bool:
    await asyncio.wait([child.ended], timeout=seconds)
    return child.ended.done()


def is_local(model: str) -> bool:
    """Whether a model is a path rather than a name on a hub."""
    return model.startswith(("/", "./", "../")) or os.path.isdir(model)  # noqa: PTH112
