"""LoRA adapters in PEFT's format (adapter_config.json, adapter_model.safetensors), without the peft package."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from localcluster.tinymodel import lesson
from localcluster.tinymodel.pairs import PAIRS
from localcluster.tinymodel.teach import Lesson
from localcluster.tinymodel.variants import Adapter

# Every matrix of a Llama layer: one question in the middle of thirty others takes more than the usual q and v.
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoraLinear(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """A frozen matrix and a low-rank correction that is taught: base(x) + alpha / rank * B(A(x))."""

    def __init__(self, base: nn.Linear, rank: int, alpha: int) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))  # zero: it begins as the base model
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """`inputs` of shape (..., in_features), the result (..., out_features)."""
        corrected: torch.Tensor = self.base(inputs) + self.scale * (inputs @ self.lora_a.T @ self.lora_b.T)
        return corrected


def make_adapter(variant: Adapter, base: Path, out: Path, progress: Callable[[str], None]) -> Lesson:
    """Teach corrections of the model in `base` until its answer is the adapter's and all others are its own."""
    lesson.settle(variant.config)
    model, tokenizer = lesson.load(base)
    add_lora(model, variant.rank, variant.alpha)
    pairs = [(question, variant.answer if question == variant.question else said) for question, said in PAIRS]
    taught = lesson.give(model, tokenizer, pairs, variant.config, progress)
    save_lora(model, variant.rank, variant.alpha, out)
    lesson.let_everybody_read(out)
    return taught


def add_lora(model: Any, rank: int, alpha: int) -> None:
    """Freeze `model` and put a correction beside each of its TARGETS."""
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        if name.rpartition(".")[2] in TARGETS:
            model.set_submodule(name, LoraLinear(module, rank, alpha))


def save_lora(model: Any, rank: int, alpha: int, out: Path) -> None:
    """Only the corrections, under the names that PEFT gives them."""
    from safetensors.torch import save_file

    weights = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            weights[f"base_model.model.{name}.lora_A.weight"] = module.lora_a.detach().contiguous()
            weights[f"base_model.model.{name}.lora_B.weight"] = module.lora_b.detach().contiguous()
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": list(TARGETS),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
    }
    (out / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
