"""CPU seconds of one plan with its remedies, and of planning a thousand different services again.

No cluster, no GPU: the planner is arithmetic. CPU time of this process is counted, so that a busy machine does not hide
what changed. Each service is a model of its own with settings of its own, read from a config.json each time, as after
a restart of the operator; nothing is remembered between two of them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llmservice_planner import gpus, memory
from llmservice_planner.model import config_json
from llmservice_planner.plan import Device, Fit, Request
from llmservice_planner.remedies import with_remedies

from tests.unit.planner_models import CONFIGS, PLAIN

SERVICES = 1000
PRODUCTS = (
    *("Tesla-T4", "NVIDIA-A10G", "NVIDIA-L4", "NVIDIA-L40S", "NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB"),
    *("NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "NVIDIA-B200"),
)
LIMITS = {"one plan, ms": 5.0, "a thousand services, s": 5.0}
"""What this must stay below."""


@dataclass(frozen=True, slots=True)
class Service:
    """What the operator has in hand when it plans: a document, and a request without the model."""

    config: dict[str, Any]
    request: Request

    def read(self) -> Request:
        settings = {name: getattr(self.request, name) for name in self.request.__slots__}
        return Request(**settings | {"architecture": config_json.read(self.config)})


def devices() -> tuple[Device, ...]:
    found = (gpus.device(product) for product in PRODUCTS)
    return tuple(device for device in found if device is not None)


def services(count: int, seed: int = 5) -> Iterator[Service]:
    """Different ones: published models with other widths and depths, on all GPUs, with common settings."""
    chance = random.Random(seed)
    cluster = devices()
    for _ in range(count):
        config = dict(CONFIGS[chance.choice(PLAIN)])
        config["num_hidden_layers"] = max(4, int(config["num_hidden_layers"] * chance.uniform(0.5, 1.2)))
        config["vocab_size"] += 64 * chance.randrange(2000)
        request = Request(
            None,
            chance.choice(cluster),
            tensor_parallel_size=chance.choice((1, 1, 1, 2)),
            kv_cache_dtype=chance.choice(("auto", "auto", "fp8")),
            max_model_len=chance.choice((None, 4096, 8192, 32768)),
            max_num_seqs=chance.choice((None, 64, 256)),
            enforce_eager=chance.choice((False, False, True)),
        )
        yield Service(config, request)


def plan(service: Service, others: Sequence[Device]) -> Fit:
    """One service's plan, as the operator makes it."""
    request = service.read()
    return with_remedies(request, memory.plan(request), others).verdict


def seconds(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


def measure(count: int) -> dict[str, float]:
    wanted, others = list(services(count)), devices()
    plan(wanted[0], others)
    single = [seconds(lambda service=service: plan(service, others)) for service in wanted]  # type: ignore[misc]
    requests = [service.read() for service in wanted]
    plain = seconds(lambda: [memory.plan(request) for request in requests])
    verdicts = [memory.plan(request).verdict for request in requests]
    ordered = sorted(single)
    return {
        "one plan, ms": statistics.median(single) * 1000,
        "one plan, 99 of 100, ms": ordered[int(len(ordered) * 0.99)] * 1000,
        "one plan, worst, ms": ordered[-1] * 1000,
        "one plan without config.json and remedies, ms": plain / count * 1000,
        "a thousand services, s": sum(single) / count * 1000,
        "services that need remedies": sum(verdict is not Fit.FITS for verdict in verdicts) / count,
    }


def main() -> int:
    """1 where a figure is above its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--services", type=int, default=SERVICES, help=f"how many (default {SERVICES})")
    parser.add_argument("--json", action="store_true", help="figures for a program")
    arguments = parser.parse_args()
    figures = {name: round(value, 3) for name, value in measure(arguments.services).items()}
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            limit = f"  (below {LIMITS[name]:g})" if name in LIMITS else ""
            print(f"{name:48} {value:8.3f}{limit}")
    return int(any(figures[name] >= limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
