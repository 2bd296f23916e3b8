"""LLMServices that the end-to-end tests make: the smallest that the CPU engine serves, and variations of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

JSON = dict[str, Any]

MODEL = "file:///models/tiny-chat"
# Eager float32: starts in half the time of a compiled engine and decodes the taught sentences exactly.
ENGINE: Mapping[str, Any] = {
    "model": {"uri": MODEL},
    "accelerator": {"type": "cpu"},
    "precision": {"dtype": "float32"},
    "batching": {"maxModelLen": 512},
    "compilation": {"enforceEager": True},
}


def llmservice(name: str, **spec: Any) -> JSON:
    """A manifest; keyword arguments are merged into the spec, mappings deeply."""
    return {
        "apiVersion": "llmservice.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": merge(ENGINE, spec),
    }


def idle(name: str, **spec: Any) -> JSON:
    """A service with every child object and no pod: for what needs no engine."""
    return llmservice(name, **merge({"scaling": {"replicas": 0}}, spec))


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> JSON:
    """Mappings deeply; None takes a key away."""
    merged = copy.deepcopy(dict(base))
    for key, value in change.items():
        held = merged.get(key)
        if value is None:
            merged.pop(key, None)
            continue
        merged[key] = merge(held, value) if isinstance(held, dict) and isinstance(value, Mapping) else value
    return merged
