"""vLLM's own client, `vllm bench serve`, with the load of `llmservice bench`: the same is sent at the same moments.

Its `benchmark` is called in place of its command, whose reader of a data set needs pandas, which no group of packages
here has. In a process of its own, since it imports all of vLLM: `python -m tests.support.vllm_client` takes a Wish as
JSON on standard input and prints vLLM's result file.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from typing import Any

from tests.support.patience import at_most


@dataclass(frozen=True)
class Wish:
    """What is to be sent; the load is that of `LoadOptions` with these fields."""

    url: str
    model: str
    tokenizer: str
    salt: str
    """Another for each run: none may find its prompts in the prefix cache of the one before."""
    load: Mapping[str, Any]
    clients: int | None = None
    """Instead of the load's arrivals."""
    warmup: int = 0


def measured(wish: Wish) -> dict[str, Any]:
    """vLLM's result, and the client's CPU seconds as `cpu_seconds`."""
    command = (sys.executable, "-m", "tests.support.vllm_client")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    text = json.dumps(asdict(wish))
    ran = subprocess.run(
        command, input=text, env=environment, capture_output=True, text=True, timeout=at_most(300), check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


async def send(wish: Wish) -> dict[str, Any]:
    """The load, by vLLM's code."""
    from llmservice_cli.bench.traffic import LoadOptions, make_load
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.serve import TaskType, benchmark
    from vllm.tokenizers import get_tokenizer

    tokenizer = get_tokenizer(wish.tokenizer)
    requests = [
        SampleRequest(
            prompt=planned.prompt,
            prompt_len=len(tokenizer(planned.prompt).input_ids),
            expected_output_len=planned.output_tokens,
            request_id=str(planned.index),
            timestamp=planned.arrival,
            request_overrides={"cache_salt": f"{wish.salt}-{planned.index}"},
        )
        for planned in make_load(LoadOptions(**wish.load))
    ]
    before = resource.getrusage(resource.RUSAGE_SELF)
    result: dict[str, Any] = await benchmark(
        task_type=TaskType.GENERATION,
        endpoint_type="vllm",
        api_url=f"{wish.url}/v1/completions",
        base_url=wish.url,
        model_id=wish.model,
        model_name=wish.model,
        tokenizer=tokenizer,
        input_requests=requests,
        logprobs=None,
        request_rate=float("inf"),
        burstiness=1.0,
        disable_tqdm=True,
        num_warmups=wish.warmup,
        profile=False,
        selected_percentile_metrics=["ttft", "tpot", "itl", "e2el"],
        selected_percentiles=[99.0],
        ignore_eos=True,
        goodput_config_dict={},
        max_concurrency=wish.clients,
        lora_modules=None,
        extra_headers=None,
        extra_body={"temperature": 0},
        self_timed=wish.clients is None,
    )
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**{name: value for name, value in result.items() if isinstance(value, int | float)}, "cpu_seconds": spent}


def main() -> None:
    """Of standard input."""
    with redirect_stdout(sys.stderr):  # what vLLM prints
        result = asyncio.run(send(Wish(**json.load(sys.stdin))))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
