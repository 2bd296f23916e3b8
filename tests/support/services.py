"""LLMServices that the end-to-end tests make: the smallest that the CPU engine serves, and variations of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from localcluster.install import STAND_IN_IMAGE
from tests.support.stand_in.behaviour import VARIABLE, Behaviour

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

SMALL: Mapping[str, Any] = {
    "numHiddenLayers": 2,
    "hiddenSize": 256,
    "numAttentionHeads": 8,
    "numKeyValueHeads": 8,
    "vocabSize": 4096,
    "intermediateSize": 1024,
    "maxPositionEmbeddings": 2048,
}
"""Facts of a model that fits everywhere."""
MILLION_TOKENS: Mapping[str, Any] = {**SMALL, "maxPositionEmbeddings": 2**20}
"""Of one that takes requests of a million tokens, for which no CPU engine of the tests has room."""


def llmservice(name: str, **spec: Any) -> JSON:
    """A manifest; keyword arguments are merged into the spec, mappings deeply."""
    return {
        "apiVersion": "llmservice.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": merge(ENGINE, spec),
    }


def one_of_several(name: str, **spec: Any) -> JSON:
    """A manifest for a machine that several engines share: each by itself would bind its threads to the same core."""
    floating = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    env = [{"name": name, "value": value} for name, value in floating.items()]
    return llmservice(name, **merge({"runtime": {"env": env}}, spec))


def idle(name: str, **spec: Any) -> JSON:
    """A service with every child object and no pod: for what needs no engine."""
    return llmservice(name, **merge({"scaling": {"replicas": 0}}, spec))


STAND_IN: Mapping[str, Any] = {
    "runtime": {"image": STAND_IN_IMAGE, "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}},
    # Its model is nothing to plan for.
    "fitPolicy": "Ignore",
    "drain": {"timeoutSeconds": 10},
}


def stand_in(name: str, behaviour: Mapping[str, Any] | None = None, **spec: Any) -> JSON:
    """A service of the stand-in for vLLM's process, in the product's own pod: it starts in a second.

    `behaviour` has fields of stand_in.behaviour.Behaviour. A further variable goes into spec.runtime.env beside it.
    """
    merged = merge(STAND_IN, spec)
    given = merged["runtime"].get("env", [])
    if behaviour:
        given = [{"name": VARIABLE, "value": Behaviour(**behaviour).to_env()}, *given]
    return llmservice(name, **merge(merged, {"runtime": {"env": given}} if given else {}))


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
