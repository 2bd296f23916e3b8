"""Folders of LoRA adapters as PEFT saves them, as far as anybody looks at them without loading them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HIDDEN = 64
PREFIX = "base_model.model.model.layers"


def write_adapter(folder: Path, *, rank: int = 8, hidden: int = HIDDEN, layer: int = 0, **config: Any) -> Path:
    """A whole adapter of one module; `config` changes its adapter_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj"], **config}
    (folder / "adapter_config.json").write_text(json.dumps(document))
    tensors = {
        f"{PREFIX}.{layer}.self_attn.q_proj.lora_A.weight": (rank, hidden),
        f"{PREFIX}.{layer}.self_attn.q_proj.lora_B.weight": (hidden, rank),
    }
    header, end = {}, 0
    for name, shape in tensors.items():
        begin, end = end, end + shape[0] * shape[1] * 4
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    return folder
