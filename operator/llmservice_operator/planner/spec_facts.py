"""Facts of spec.model.architecture under the names of config.json; they win over what was read of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmservice_operator.api.model import Architecture

_NOT_OF_MEMORY = {"positions"}


def from_spec(facts: Architecture) -> dict[str, Any]:
    """A document for config_json.read, of what the user gave."""
    return facts.model_dump(mode="json", exclude_none=True, exclude=_NOT_OF_MEMORY)


def merge(inspected: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """What was read, with what was stated in its place."""
    return {**inspected, **stated}
