"""What is served: models of real sizes without weights, an LLMService for each case, and the plan for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from llmservice_api.constants import API_VERSION
from llmservice_api.service import LLMService
from llmservice_cli import models
from llmservice_operator.manifests.server import vllm_arguments
from llmservice_planner import gpus, memory
from llmservice_planner.constants import CONSTANTS
from llmservice_planner.plan import Plan, Request
from llmservice_planner.requests import request_of

from benchmarks.calibration import earlier
from benchmarks.gpu.served.engine_log import Value
from benchmarks.gpu.served.results import CONFIGS

LLAMA, SMALL, GEMMA, LARGE = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "google/gemma-3-12b-it",
    "Qwen/Qwen3-32B",
)
NAME = "model"
"""Of each service, and so the model that requests name."""
_TINY = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
_TINY_LAYERS = 6
"""One full layer after five with a window, where there are windows."""
_CPU: Mapping[str, Any] = {
    "accelerator": {"type": "cpu"},
    "precision": {"dtype": "float32"},
    "compilation": {"enforceEager": True},
    "runtime": {
        "env": [
            {"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"},
            {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"},
        ]
    },
}
_CPU_KV_CACHE_GIB = 1


@dataclass(frozen=True, slots=True)
class Machine:
    """What is served on."""

    product: str
    """As the driver calls it; empty for a CPU."""
    memory_gib: float
    vllm: str
    """Version of the installed vLLM."""

    @property
    def is_cpu(self) -> bool:
        return not self.product


@dataclass(frozen=True, slots=True)
class Case:
    """A model with the fields of a spec."""

    model: str = LLAMA
    spec: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    """Of vLLM, for which the spec has no field."""


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Objects are merged, everything else is replaced."""
    made = dict(base)
    for name, value in changes.items():
        old = made.get(name)
        made[name] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return made


def config(model: str, machine: Machine) -> dict[str, Any]:
    """config.json of the model; for a rehearsal of a tiny one of the same architecture, vocabulary and length."""
    real = dict(CONFIGS[model])
    return real | _TINY | {"num_hidden_layers": _TINY_LAYERS} if machine.is_cpu else real


def service(case: Case, machine: Machine, folder: Path) -> LLMService:
    """The LLMService whose model lies in a folder of the machine. InvalidSpec where the operator would refuse it."""
    base: Mapping[str, Any] = {"model": {"uri": f"file://{folder}"}}
    spec = merged(merged(base, _CPU if machine.is_cpu else {}), case.spec)
    metadata = {"name": NAME, "namespace": "default"}
    return LLMService.from_object({"apiVersion": API_VERSION, "kind": "LLMService", "metadata": metadata, "spec": spec})


def arguments(case: Case, machine: Machine, folder: Path, port: int) -> tuple[str, ...]:
    """vLLM's command line as the operator renders it, then what differs on this machine; the last of a flag counts."""
    rendered = vllm_arguments(service(case, machine, folder), machine.vllm)
    return (*rendered, *case.flags, "--host", "::", "--port", str(port), "--load-format", "dummy")


def request(case: Case, machine: Machine) -> Request:
    """The question to the planner, as the operator asks it, for the generation of this vLLM."""
    model = models.from_document(config(case.model, machine), "config")
    asked = request_of(
        service(case, machine, Path("/model")).spec,
        architecture=model.architecture,
        tensors=None,
        device=None if machine.is_cpu else gpus.device(machine.product, machine.memory_gib),
        vllm_version=machine.vllm,
        cpu_kv_cache_gib=_CPU_KV_CACHE_GIB,
    )
    return earlier.as_today(asked, machine.vllm)


def plan(case: Case, machine: Machine) -> Plan:
    """The planner's answer, with the constants of this vLLM's generation."""
    asked = request(case, machine)
    constants = CONSTANTS if machine.is_cpu else earlier.constants_of(earlier.ALL, machine.vllm, asked)
    return earlier.printed(memory.plan(asked, constants), machine.vllm)


def planned(case: Case, machine: Machine) -> dict[str, Value]:
    """The figures of the plan under the names of engine_log.py; what is not known is left out."""
    found = plan(case, machine)
    values = {
        "verdict": str(found.verdict),
        "weights_gib": found.weights_gib,
        "non_torch_gib": found.non_torch_gib,
        "activation_gib": found.activation_gib,
        "graph_gib": found.graph_gib,
        "kv_cache_gib": found.kv_cache_gib,
        "kv_cache_tokens": found.kv_cache_tokens,
        "max_concurrency": found.max_concurrency,
        "longest_request": found.max_model_len,
        "error_band": found.error_band,
    }
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items() if value}


def startup(name: str, case: Case, machine: Machine, measured: Mapping[str, Value], outcome: str) -> dict[str, Any]:
    """The start as a record of tools/benchmarks/calibration; nothing that was not measured is in it."""
    asked = request(case, machine)
    stated = {
        "gpu_memory_utilization": asked.gpu_memory_utilization,
        "max_model_len": asked.max_model_len,
        "max_num_seqs": asked.max_num_seqs,
        "max_num_batched_tokens": asked.max_num_batched_tokens,
        "quantization": "fp8" if asked.weights == "fp8" else None,
    }
    shown = ("weights_gib", "activation_gib", "non_torch_gib", "graph_gib", "kv_cache_gib", "kv_cache_tokens")
    return {
        "id": name,
        "model": case.model,
        "gpu": machine.product,
        "gpu_memory_gib_reported": machine.memory_gib,
        "num_gpus": 1,
        "tp": 1,
        "pp": 1,
        "vllm_version": machine.vllm,
        "dtype": "bfloat16",
        "kv_cache_dtype": asked.kv_cache_dtype,
        "enforce_eager": asked.enforce_eager,
        **{key: value for key, value in stated.items() if value is not None},
        **{key: measured[key] for key in shown if key in measured},
        **({"estimated_max_len": measured["estimated_max_len"]} if "estimated_max_len" in measured else {}),
        "outcome": outcome,
        "source": "docs/reference/gpu.md",
    }


def model_folder(work: Path, model: str, machine: Machine) -> Path:
    """The folder with config.json and a tokenizer of the model's vocabulary, made where there is none yet."""
    made = config(model, machine)
    folder = work / "models" / model.replace("/", "--")
    if not (folder / "tokenizer_config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(made), "utf-8")
        (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(made["vocab_size"])), "utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_CONFIG), "utf-8")
    return folder


_END = "<|end|>"
_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": _END,
    "clean_up_tokenization_spaces": False,
    "chat_template": _TEMPLATE,
}


def _tokenizer(size: int) -> dict[str, Any]:
    """tokenizer.json in which each byte is a token, and every other id decodes to something: weights of noise say any.

    Words are not learned: a prompt of so many ASCII characters has so many tokens.
    """
    tokens = [*_byte_characters(), *(f"t{number}" for number in range(256, size - 1)), _END]
    end = {"id": size - 1, "content": _END, "single_word": False, "lstrip": False, "rstrip": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | {"normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [],
        },
    }


@cache
def _byte_characters() -> tuple[str, ...]:
    """A printable character for each byte, as GPT-2's byte-level tokenizers choose them."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return tuple(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))
