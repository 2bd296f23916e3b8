"""CPU, memory, accelerators and shared memory of the server container."""

from __future__ import annotations

import math
from typing import Any

from llmservice_api.service import LLMService
from llmservice_planner.quantity import GIB, add_memory, amount, count, same_amount
from llmservice_planner.requests import cpu_offload_gib, kv_offloading_gib
from llmservice_runtime import contract

from llmservice_operator.manifests.engine import vllm_version
from llmservice_operator.manifests.settings import Settings

Resources = dict[str, dict[str, str]]

_INIT_LIMITS = {"cpu": "1", "memory": "128Mi"}
INSPECT_LIMITS = {"cpu": "1", "memory": "512Mi"}
"""For the headers of a model of hundreds of shards, several at once."""
_FETCH_MEMORY = "128Mi"
"""Minimum request of the fetch container."""
_MOST_KV_CACHE_GIB = 2**20
"""A PiB: more than any machine has; sums are exact."""
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
"""Of whole GPUs, by accelerator type."""


def accelerator_resource(llm: LLMService) -> str | None:
    """The extended resource of one accelerator; None on CPUs."""
    accelerator = llm.spec.accelerator
    return accelerator.resource_name or RESOURCES.get(accelerator.type)


def shared_memory_gib(llm: LLMService, settings: Settings) -> int:
    """Size of /dev/shm, which is 64 MiB by default; 0 where that is enough.

    Ranks of one model exchange tensors through it. On CPUs vLLM's engine always has a separate worker process, which
    needs 160 MiB at least. vLLM keeps offloaded KV cache there, in a file that all ranks map.
    """
    offloaded = offloaded_gib(llm)
    if llm.spec.parallelism.accelerators > 1:
        return settings.shared_memory_gib + offloaded
    return offloaded + (1 if llm.spec.accelerator.type == "cpu" or offloaded else 0)


def offloaded_gib(llm: LLMService) -> int:
    """KV cache in the node's memory, rounded up; LMCache keeps its own elsewhere."""
    return math.ceil(kv_offloading_gib(llm.spec))


def server_resources(llm: LLMService, settings: Settings, host_memory_gib: int = 0) -> Resources:
    """Resources of the server; requests are always set. `host_memory_gib`: memory that vLLM pins by the plan, which may
    exceed the spec's. The shared-memory volume is added to the server's memory."""
    given = llm.spec.runtime.resources
    limits = {key: str(value) for key, value in (given.get("limits") or {}).items()}
    requests = {key: str(value) for key, value in (given.get("requests") or {}).items()}
    defaults = _default_requests(llm, settings, host_memory_gib)
    for name, default in defaults.items():
        requests.setdefault(name, limits.get(name) or default)
    _add_shared_memory(requests, limits, shared_memory_gib(llm, settings))
    resource = accelerator_resource(llm)
    if resource is not None:
        limits[resource] = str(llm.spec.parallelism.accelerators)
    return {"requests": requests} | ({"limits": limits} if limits else {})


def _default_requests(llm: LLMService, settings: Settings, host_memory_gib: int) -> dict[str, str]:
    gpus = llm.spec.parallelism.accelerators
    if llm.spec.accelerator.type == "cpu":
        memory = settings.cpu_only_memory_gib * gpus + cpu_kv_cache_gib(llm, settings) - settings.cpu_kv_cache_gib
        return {"cpu": settings.cpu_only_cpu, "memory": f"{memory}Gi"}
    asked = offloaded_gib(llm) + math.ceil(cpu_offload_gib(llm.spec, vllm_version(llm, settings)) * gpus)
    memory = settings.memory_gib_per_gpu * gpus + max(asked, host_memory_gib)
    return {"cpu": str(settings.cpu_per_gpu * gpus), "memory": f"{memory}Gi"}


def _add_shared_memory(requests: dict[str, str], limits: dict[str, str], gib: int) -> None:
    """Add the memory volume to the limit, against which it counts; Guaranteed pods stay Guaranteed."""
    limit = limits.get("memory")
    if limit is None or gib == 0:
        return
    if same_amount(limit, requests["memory"]):
        requests["memory"] = add_memory(limit, gib)
    limits["memory"] = add_memory(limit, gib)


def helper_requests(settings: Settings) -> dict[str, str]:
    """Requests of each container beside the server."""
    return {"cpu": settings.helper_cpu, "memory": settings.helper_memory}


def helper_resources(settings: Settings, limits: dict[str, str]) -> Resources:
    """Resources of a short-lived container of the operator's; `limits` are raised to its requests."""
    requests = helper_requests(settings)
    return {"requests": requests, "limits": {name: _larger(value, requests[name]) for name, value in limits.items()}}


def _larger(one: str, other: str) -> str:
    return one if amount(one) >= amount(other) else other


def init_resources(server: Resources, settings: Settings) -> Resources:
    """Resources of the container that copies the supervisor.

    Requests equal limits if the server's do: a pod is Guaranteed only if all of its containers are.
    """
    requests, limits = server["requests"], server.get("limits", {})
    is_guaranteed = all(name in limits and same_amount(limits[name], requests[name]) for name in ("cpu", "memory"))
    own = helper_resources(settings, _INIT_LIMITS)
    return {"requests": own["limits"], "limits": own["limits"]} if is_guaranteed else own


def fetch_resources(settings: Settings) -> Resources:
    """Resources of the fetch container, which runs as long as the server.

    Its requests stay small, also where the server is Guaranteed: the pod is then Burstable, and still fits its node.
    """
    found = helper_resources(settings, {"cpu": settings.fetch_cpu, "memory": f"{settings.fetch_memory_gib}Gi"})
    requests = found["requests"]
    return found | {"requests": requests | {"memory": _larger(requests["memory"], _FETCH_MEMORY)}}


def helpers(settings: Settings) -> dict[str, Resources]:
    """Resources of each container of the operator's, by name."""
    return {
        contract.RUNTIME_CONTAINER: helper_resources(settings, _INIT_LIMITS),
        contract.FETCH_CONTAINER: fetch_resources(settings),
        contract.INSPECT_CONTAINER: helper_resources(settings, INSPECT_LIMITS),
    }


def cpu_kv_cache_gib(llm: LLMService, settings: Settings) -> int:
    """GiB of KV cache on CPUs, a fixed integer: accelerator.memory, if set."""
    memory = llm.spec.accelerator.memory
    return settings.cpu_kv_cache_gib if memory is None else max(1, int(amount(memory) / GIB))


def effective_cpu_kv_cache_gib(llm: LLMService, settings: Settings) -> int:
    """GiB that vLLM reads from its environment: the user's variable, else the operator's."""
    for variable in llm.spec.runtime.env:
        stated = count(str(variable.get("value", "")), _MOST_KV_CACHE_GIB)
        if variable["name"] == "VLLM_CPU_KVCACHE_SPACE" and stated is not None:
            return stated
    return cpu_kv_cache_gib(llm, settings)


def with_requests(container: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """A user's container with requests for CPU and memory, which quotas require of every container."""
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    requests = {name: limits.get(name, value) for name, value in helper_requests(settings).items()}
    return container | {"resources": resources | {"requests": requests | (resources.get("requests") or {})}}
