"""Small models of every kind of KV cache, as config.json: enough for vLLM to make them up with weights of noise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DOCUMENT = json.loads(Path(__file__).with_suffix(".json").read_text())
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    name: {**_DOCUMENT["base"], **differences} for name, differences in _DOCUMENT["models"].items()
}
LENGTH: int = _DOCUMENT["base"]["max_position_embeddings"]
