"""Encoders of pictures and sound beside a language model: their parameters, and the tokens a picture becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_operator.planner.config_keys import Keys


@dataclass(frozen=True, slots=True)
class Encoder:
    """All encoders of a model together, with what joins them to it."""

    parameters: int = 0
    split: bool = True
    tokens: int = 0


def read(document: Mapping[str, Any], hidden: int) -> Encoder:
    """From vision_config and audio_config; nothing where there are none."""
    section = Keys(document).section("vision_config")
    if section is None:
        return Encoder()
    width = section.integer("hidden_size", "embed_dim", "width")
    layers = section.integer("num_hidden_layers", "depth", "layers", least=0)
    if width is None or layers is None:
        return Encoder()
    inner = section.integer("intermediate_size") or 4 * width
    matrices = 3 if section.text("model_type") in ("pixtral", "qwen2_5_vl") else 2
    parameters = layers * (4 * width * width + matrices * width * inner) + width * hidden
    return Encoder(parameters, True, 0)
