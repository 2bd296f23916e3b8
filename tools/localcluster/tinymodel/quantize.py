"""CHAT rounded to fewer bits, in the compressed-tensors format that vLLM's CPU kernels read; no calibration needed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from localcluster.tinymodel import lesson, teach
from localcluster.tinymodel.pairs import PAIRS
from localcluster.tinymodel.variants import Quantized

KEPT = "lm_head"  # as in most published quantized models: rounding the logits costs more than it saves


def make_quantized(variant: Quantized, base: Path, out: Path, progress: Callable[[str], None]) -> int:
    """Round every linear layer of the model in `base`; how many answers the rounded model still gives."""
    from safetensors.torch import load_file, save_file

    lesson.settle(variant.config)
    model, tokenizer = lesson.load(base)
    weights = load_file(base / "model.safetensors")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != KEPT:
            steps, scale = rounded(weights.pop(f"{name}.weight"), variant.bits, variant.group)
            weights.update(stored(name, steps, scale, variant.bits))
            module.weight.data = restored(steps, scale)
    shutil.copytree(base, out)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = settings(variant)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    lesson.let_everybody_read(out)
    loss, margin = teach._examine(model, teach._batch(tokenizer, PAIRS))
    progress(f"rounded to {variant.bits} bits: loss {loss:.4f}, smallest margin {margin:+.2f}")
    return len(PAIRS) - len(teach.unlearned(model, tokenizer, PAIRS))


def rounded(weight: torch.Tensor, bits: int, group: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Nearest whole steps, (out, in), and the size of a step for each row or each `group` inputs of it, (out, n)."""
    rows = weight.unflatten(1, (-1, group or weight.shape[1]))
    largest = 2 ** (bits - 1) - 1
    scale = rows.abs().amax(dim=2) / largest
    steps = (rows / scale[:, :, None]).round().clamp(-largest - 1, largest)
    return steps.flatten(1).to(torch.int8), scale


def restored(steps: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The weights that an engine computes with."""
    return (steps.unflatten(1, (scale.shape[1], -1)) * scale[:, :, None]).flatten(1)


def stored(name: str, steps: torch.Tensor, scale: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    """The tensors of one layer in the file: int8 as they are, int4 eight to an int32 with the first lowest."""
    if bits == 8:
        return {f"{name}.weight": steps, f"{name}.weight_scale": scale}
    nibbles = (steps.to(torch.int64) + 8).unflatten(1, (-1, 8))
    words = (nibbles << torch.arange(0, 32, 4)).sum(dim=2)
    return {
        f"{name}.weight_packed": torch.where(words >= 2**31, words - 2**32, words).to(torch.int32),
        f"{name}.weight_scale": scale,
        f"{name}.weight_shape": torch.tensor(steps.shape),
    }


def settings(variant: Quantized) -> dict[str, Any]:
    """The `quantization_config` of config.json, as compressed-tensors 0.17 and vLLM read it."""
    weights = {"num_bits": variant.bits, "type": "int", "symmetric": True, "dynamic": False}
    if variant.group is None:
        weights |= {"strategy": "channel"}
    else:
        weights |= {"strategy": "group", "group_size": variant.group}
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if variant.bits == 8 else "pack-quantized",
        "quantization_status": "compressed",
        "ignore": [KEPT],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": inputs if variant.bits == 8 else None,
            }
        },
    }
