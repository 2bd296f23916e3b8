"""Whether a folder holds a LoRA adapter that this server can load: what vLLM would find out late, or not at all.

vLLM copies an adapter of a smaller model into its slots without a complaint, and then answers nonsense.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmservice_runtime.safetensors_header import read_header

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
_LORA_A = re.compile(r"\.layers\.(?P<layer>\d+)\..*\.(?P<module>[A-Za-z0-9_]+)\.lora_A\.weight$")
# Their input is the hidden state itself in every architecture that has them.
_OF_HIDDEN_SIZE = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "qkv_proj", "gate_up_proj"})

Json = Mapping[str, Any]


def problem(folder: Path, *, max_rank: int, base: Json) -> str | None:
    """What is wrong, with its remedy; None where nothing is known to be. `base` is the base model's config.json."""
    if not folder.is_dir():
        return f"There is no folder {folder} in the container. Check its uri in spec.adapters."
    config = _read(folder / CONFIG)
    if config is None:
        return f"{folder} has no {CONFIG} that can be read. Its uri must name the folder of a PEFT LoRA adapter."
    weights = next((folder / name for name in WEIGHTS if (folder / name).exists()), None)
    if weights is None:
        return f"{folder} has none of {', '.join(WEIGHTS)}. The copy of the adapter is incomplete: copy it again."
    if not os.access(weights, os.R_OK):
        return f"{weights} may not be read by user {os.getuid()}. Make it readable, for example with chmod a+r."
    return _config_problem(config, max_rank) or _weights_problem(weights, base)


def _config_problem(config: Json, max_rank: int) -> str | None:
    if config.get("peft_type", "LORA") != "LORA":
        return f"It is a PEFT adapter of type {config['peft_type']}. vLLM serves LoRA adapters only."
    if not config.get("target_modules"):
        return f"Its {CONFIG} names no target_modules. Save it again with PEFT's save_pretrained."
    patterns = config.get("rank_pattern")
    ranks = [config.get("r"), *(patterns.values() if isinstance(patterns, dict) else ())]
    if not all(isinstance(rank, int) and rank > 0 for rank in ranks):
        return f"Its {CONFIG} gives no rank r. Save it again with PEFT's save_pretrained."
    if max(ranks) > max_rank:
        return (
            f"Its rank {max(ranks)} is greater than {max_rank}, the greatest that this server takes. "
            "Raise spec.lora.maxLoraRank, which restarts the server."
        )
    return None


def _weights_problem(weights: Path, base: Json) -> str | None:
    """An adapter of another model shows in the shapes; those of pickled files are left to vLLM."""
    if weights.suffix != ".safetensors":
        return None
    try:
        header = read_header(weights)
    except (OSError, ValueError) as error:
        return f"{weights} is damaged: {error}. The copy of the adapter is incomplete: copy it again."
    return next(_foreign(header, base.get("text_config") or base), None)


def _foreign(header: Json, base: Json) -> Iterator[str]:
    hidden, layers = base.get("hidden_size"), base.get("num_hidden_layers")
    for name, tensor in header.items():
        match = _LORA_A.search(name)
        if match is None:
            continue
        shape = list(tensor.get("shape") or ())
        if isinstance(layers, int) and int(match["layer"]) >= layers:
            yield _other_base(f"{name} is for layer {match['layer']}, and the base model has {layers} layers")
        if isinstance(hidden, int) and match["module"] in _OF_HIDDEN_SIZE and len(shape) == 2 and shape[1] != hidden:
            yield _other_base(f"{name} takes {shape[1]} values, and the base model's hidden size is {hidden}")


def _other_base(evidence: str) -> str:
    return f"It was made for another base model: {evidence}. Use an adapter that was trained on spec.model.uri."


def _read(path: Path) -> Json | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
